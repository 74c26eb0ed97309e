// Plots as SVG: a frame with axes, marks, lines, and dragging.

// Steps are whole.
const stepTicks = (last) =>
  ticksOf([0, last], 4)
    .filter(([step]) => Number.isInteger(step))
    .map(([step]) => [step, String(step)]);

// Round values, about as many as asked for and never one alone: an axis with one number has no scale.
const ticksOf = ([low, high], count = 5) => {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const between = (n) => Math.floor(high / n + 1e-9) - Math.ceil(low / n - 1e-9) + 1;
  const steps = [0.5, 1, 2, 5, 10].map((n) => n * power);
  const step = steps.filter((n) => between(n) > 1).reduce((best, n) => (best >= rough ? best : n), steps[0]);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i += 1) ticks.push(i * step);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return ticks.map((value) => [value, fixed(value, Math.min(digits, 6))]);
};

// A share is no more than all: what an axis has beyond is room, and no number.
const sharesOf = (ticks) => ticks.filter(([percent]) => percent >= 0 && percent <= 100);

const headingOf = (card) => $(card).querySelector("h2, h3").textContent;

// A frame in a card's .plot: scales, axes and a layer to draw into, clipped to the frame.
const frame = (card, {x, y, xTitle = "", yTitle = "", height = 280, left = 54, xTicks, yTicks}) => {
  const box = $(card).querySelector(".plot");
  const width = Math.max(240, box.clientWidth);
  const [top, right, bottom] = [12, 14, 40];
  const [inner, tall] = [width - left - right, height - top - bottom];
  const X = (value) => left + ((value - x[0]) / (x[1] - x[0])) * inner;
  const Y = (value) => top + tall - ((value - y[0]) / (y[1] - y[0])) * tall;
  const named = `${headingOf(card)}: ${[yTitle, xTitle].filter(Boolean).join(" against ")}`;
  const svg = draw("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": named});
  const axes = draw("g", {class: "axes"});
  for (const [value, text] of xTicks ?? ticksOf(x, Math.max(3, inner / 90))) {
    axes.append(
      draw("line", {class: "grid", x1: X(value), x2: X(value), y1: top, y2: top + tall}),
      draw("text", {x: X(value), y: top + tall + 16, "text-anchor": "middle"}, text),
    );
  }
  for (const [value, text] of yTicks ?? ticksOf(y, Math.max(3, tall / 50))) {
    axes.append(
      draw("line", {class: "grid", x1: left, x2: left + inner, y1: Y(value), y2: Y(value)}),
      draw("text", {x: left - 7, y: Y(value) + 4, "text-anchor": "end"}, text),
    );
  }
  axes.append(
    draw("text", {class: "title", x: left + inner / 2, y: height - 6, "text-anchor": "middle"}, symbols(xTitle, draw)),
    draw(
      "text",
      {class: "title", x: 0, y: 0, transform: `translate(13 ${top + tall / 2}) rotate(-90)`, "text-anchor": "middle"},
      symbols(yTitle, draw),
    ),
  );
  const clip = `clip-${card}`;
  const layer = draw("g", {"clip-path": `url(#${clip})`});
  svg.append(
    draw(
      "defs",
      {},
      draw("clipPath", {id: clip}, draw("rect", {x: left, y: top - 4, width: inner + 6, height: tall + 8})),
    ),
    axes,
    layer,
  );
  box.replaceChildren(svg);
  return {
    svg,
    layer,
    X,
    Y,
    left,
    top,
    inner,
    tall,
    width,
    height,
    unX: (place) => x[0] + ((place - left) / inner) * (x[1] - x[0]),
    unY: (place) => y[0] + ((top + tall - place) / tall) * (y[1] - y[0]),
  };
};

// The lines on which either number of a plot is 0.
const zeroLines = ({layer, X, Y, left, top, inner, tall}) =>
  layer.append(
    draw("line", {class: "zero", x1: X(0), x2: X(0), y1: top, y2: top + tall}),
    draw("line", {class: "zero", x1: left, x2: left + inner, y1: Y(0), y2: Y(0)}),
  );

// Where nothing is drawn, nothing answers a drag: what listened last knows marks that are gone.
const nothing = (card, text) => {
  if (draggers.has(card)) dragging(card, {});
  $(card)
    .querySelector(".plot")
    .replaceChildren(el("p", {class: "soft empty"}, text));
};

// Points that are no number part a line.
const lineOf = (xs, ys) => {
  let [path, open] = ["", false];
  for (let i = 0; i < xs.length; i += 1) {
    if (!Number.isFinite(ys[i]) || !Number.isFinite(xs[i])) {
      open = false;
      continue;
    }
    path += `${open ? "L" : "M"}${xs[i].toFixed(1)} ${ys[i].toFixed(1)}`;
    open = true;
  }
  return path;
};
const areaOf = (xs, lows, highs) => {
  const there = [...xs.keys()].filter((i) => Number.isFinite(lows[i]) && Number.isFinite(highs[i]));
  if (!there.length) return "";
  const up = there.map((i) => `${xs[i].toFixed(1)} ${highs[i].toFixed(1)}`);
  const down = there.reverse().map((i) => `${xs[i].toFixed(1)} ${lows[i].toFixed(1)}`);
  return `M${up.join("L")}L${down.join("L")}Z`;
};

// Without calibration a mark is open, with one it is filled; kinds have shapes, objectives colours.
const SHAPES = {
  none: (r) => `M${-r} 0A${r} ${r} 0 1 0 ${r} 0A${r} ${r} 0 1 0 ${-r} 0Z`,
  published: (r) => `M${-r * 0.9} ${-r * 0.9}H${r * 0.9}V${r * 0.9}H${-r * 0.9}Z`,
  update: (r) => `M0 ${-r * 1.3}L${r * 1.3} 0L0 ${r * 1.3}L${-r * 1.3} 0Z`,
  normalised: (r) => `M0 ${-r * 1.2}L${r * 1.1} ${r * 0.8}L${-r * 1.1} ${r * 0.8}Z`,
};
const CROSS = (r) => `M${-r} ${-r}L${r} ${r}M${-r} ${r}L${r} ${-r}`; // ended without a result, whatever its kind
const markOf = (group, x, y, r = 5.5, extra = "") =>
  draw("path", {
    class: `mark ${group.colour} ${group.kind === "none" ? "open" : ""} ${extra}`,
    d: extra.includes("ended") ? CROSS(r) : (SHAPES[group.kind] ?? SHAPES.update)(r),
    transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`,
    "data-key": group.key,
  });
const glyph = (group) =>
  draw(
    "svg",
    {class: "glyph", width: 16, height: 16, viewBox: "-8 -8 16 16", "aria-hidden": "true"},
    markOf(group, 0, 0, 5),
  );
const dashOf = (group) => ({none: "5 3", published: "1.5 2.5"})[group.kind] ?? null;

// Dragging over a card's plot: tells the place in its coordinates, from the press to the release. What listens is the
// place of the drawing, which stays when the drawing is made anew in the middle of it.
const draggers = new Map();
const dragging = (card, handlers) => {
  const known = draggers.get(card);
  if (known) return Object.assign(known, {start: null, move: null, end: null, cancel: null}, handlers);
  const own = {...handlers};
  draggers.set(card, own);
  const box = $(card).querySelector(".plot");
  let from = null;
  const place = (event) => {
    const area = box.getBoundingClientRect();
    return [event.clientX - area.left, event.clientY - area.top];
  };
  box.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    from = place(event);
    box.setPointerCapture(event.pointerId);
    own.start?.(from, event);
  });
  box.addEventListener("pointermove", (event) => {
    if (from) own.move?.(from, place(event), event);
  });
  const over = (event) => {
    if (!from) return;
    const begun = from;
    from = null;
    own.end?.(begun, place(event), event);
  };
  box.addEventListener("pointerup", over);
  box.addEventListener("pointercancel", () => {
    from = null;
    own.cancel?.();
  });
  return own;
};
