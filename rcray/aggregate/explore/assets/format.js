// Numbers, words and elements. Every text goes in by textContent: nothing of a store is ever markup.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

const fill = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
};
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// z_w and z_l with their indices below the line, in HTML and in SVG.
const symbols = (text, make = el) =>
  text
    .split(/(z_[wl])/)
    .map((part) => {
      if (!/^z_[wl]$/.test(part)) return part;
      if (make === el) return [el("i", {}, "z"), el("sub", {}, part[2])];
      return [
        draw("tspan", {"font-style": "italic"}, "z"),
        draw("tspan", {dy: 3, "font-size": "75%"}, part[2]),
        draw("tspan", {dy: -3}, "\u200b"),
      ];
    })
    .flat();

const fixed = (value, digits, sign = false) => {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "undefined" : value < 0 ? "−∞" : "+∞";
  const text = Math.abs(value).toFixed(digits);
  const zero = Number(text) === 0;
  return (zero ? "" : value < 0 ? "−" : sign ? "+" : "") + text;
};
const shown = (number, value, sign = number.sign) => fixed(number.percent ? 100 * value : value, number.digits, sign);

const countOf = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

const unpack = (text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Float32Array(bytes.buffer);
};

const extent = (values) => {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values)
    if (Number.isFinite(value)) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  return low <= high ? [low, high] : [0, 1];
};
const padded = ([low, high], share = 0.06) => {
  const room = (high - low || Math.abs(high) || 1) * share;
  return [low - room, high + room];
};

// The entries of a menu; one that is the same stays as it is, and open.
const offer = (menu, entries, chosen) => {
  const mark = JSON.stringify(entries);
  if (menu.dataset.mark !== mark) {
    menu.dataset.mark = mark;
    menu.replaceChildren(...entries.map(([value, text]) => el("option", {value}, text)));
  }
  menu.value = chosen;
};

// Builds a part of the page anew; what had the focus in it has it again, told by its data-* attributes.
const keepFocus = (box, build) => {
  const active = box.contains(document.activeElement) ? document.activeElement : null;
  const marks = [...(active?.attributes ?? [])].filter(({name}) => name.startsWith("data-"));
  build();
  if (!marks.length || active.isConnected) return;
  const same = marks.map(({name, value}) => `[${name}="${CSS.escape(value)}"]`).join("");
  box.querySelector(`${active.localName}${same}`)?.focus({preventScroll: true});
};

// A tooltip for whatever is under the pointer.
const tip = {
  show(event, ...lines) {
    const box = $("tip");
    box.replaceChildren(...lines.map((line, i) => el("div", {class: i ? "soft" : null}, symbols(line))));
    box.hidden = false;
    const [width, height] = [box.offsetWidth, box.offsetHeight];
    const left = Math.min(event.clientX + 14, innerWidth - width - 8);
    const top = event.clientY + 14 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 14;
    box.style.left = `${Math.max(8, left)}px`;
    box.style.top = `${Math.max(8, top)}px`;
  },
  hide() {
    $("tip").hidden = true;
  },
};
