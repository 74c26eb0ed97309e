// What is looked at: one object, kept in the address bar, so that a link is a view.

const fresh = () => ({
  selected: new Set(), // keys of settings; none: all of them
  base: null, // the pinned setting
  step: null, // null: the last one, whichever that is by now
  curve: null,
  seeds: false,
  filter: "",
  sort: null, // [column, 1 or -1]
  run: null, // whose band, moves and pairs are shown
  pair: null,
  zoom: false,
  opened: new Set(), // keys of settings whose seeds are listed
  brushes: {}, // axis: [low, high] of its values, or the words that were chosen of it
});
let state = fresh();

const readHash = () => {
  const said = new URLSearchParams(location.hash.slice(1));
  const view = fresh();
  for (const [name, field] of [
    ["sel", "selected"],
    ["open", "opened"],
  ])
    view[field] = new Set((said.get(name) ?? "").split(",").filter(Boolean));
  for (const name of ["base", "curve", "run", "pair"]) view[name] = said.get(name);
  view.filter = said.get("filter") ?? "";
  view.step = Number(said.get("step")) || null;
  view.seeds = said.has("seeds");
  view.zoom = said.has("zoom");
  const sort = (said.get("sort") ?? "").match(/^(-?)(.+)$/);
  view.sort = sort && [sort[2], sort[1] ? -1 : 1];
  for (const part of said.getAll("axis")) {
    try {
      const [path, ...range] = JSON.parse(part);
      const words = range.every((value) => typeof value === "string");
      if (range.length && (words || (range.length === 2 && range[0] <= range[1]))) view.brushes[path] = range;
    } catch {
      // of another version, or cut off on its way: the cells that it chose are named anyway
    }
  }
  return view;
};

const hashOf = (view) => {
  const said = new URLSearchParams();
  if (view.selected.size) said.set("sel", [...view.selected].join(","));
  if (view.opened.size) said.set("open", [...view.opened].join(","));
  for (const name of ["base", "curve", "step", "run", "pair", "filter"]) if (view[name]) said.set(name, view[name]);
  for (const name of ["seeds", "zoom"]) if (view[name]) said.set(name, "");
  if (view.sort) said.set("sort", (view.sort[1] < 0 ? "-" : "") + view.sort[0]);
  for (const [path, range] of Object.entries(view.brushes)) said.append("axis", JSON.stringify([path, ...range]));
  const text = said
    .toString()
    .replaceAll("%2C", ",")
    .replaceAll("%3A", ":")
    .replace(/=(?=&|$)/g, "");
  return text ? `#${text}` : "";
};

const painters = []; // [what it depends on, what it draws]
let pending = null;
const WHOLE = ["data", ...Object.keys(fresh())];

// The address follows the view, ten times a second at most: browsers refuse more than that.
let written = {at: 0, later: null};
const writeHash = () => {
  if (written.later) return;
  const wait = written.at + 100 - performance.now();
  const write = () => {
    written = {at: performance.now(), later: null};
    const hash = hashOf(state);
    if (hash !== location.hash) history.replaceState(null, "", hash || location.pathname + location.search);
  };
  if (wait <= 0) write();
  else written.later = setTimeout(write, wait);
};

// Draws what depends on the names given, once a frame; the address follows.
const repaint = (...names) => {
  if (!pending) {
    pending = new Set();
    requestAnimationFrame(() => {
      const changed = pending;
      pending = null;
      for (const [needs, paint] of painters) if (needs.some((name) => changed.has(name))) paint();
      data.news.clear();
      writeHash();
    });
  }
  names.forEach((name) => pending.add(name));
};
// What is drawn anew between a press and its release is not pressed: news waits for the release, but not for one that
// nobody saw, outside of the window.
const LONGEST_PRESS = 5000; // milliseconds
let pressed = null;
const released = () => pressed?.promise;
const release = () => {
  pressed?.resolve();
  pressed = null;
};
addEventListener(
  "pointerdown",
  (event) => {
    if (event.button !== 0 || pressed) return;
    let resolve;
    const promise = new Promise((done) => (resolve = done));
    const own = {promise, resolve};
    pressed = own;
    setTimeout(() => pressed === own && release(), LONGEST_PRESS);
  },
  true,
);
for (const name of ["pointerup", "pointercancel", "blur"]) addEventListener(name, release, true);

// A run that was chosen goes with the cells that it is one of.
const change = (patch) => {
  Object.assign(state, patch);
  const names = Object.keys(patch);
  if (state.run && (names.includes("selected") || names.includes("filter")) && !runsToShow().includes(state.run)) {
    Object.assign(state, {run: null, pair: null});
    names.push("run", "pair");
  }
  repaint(...names);
};
const onPaint = (needs, paint) => painters.push([needs, paint]);

const select = (keys, brushes = {}) => change({selected: new Set(keys), brushes});
const clear = () => change({selected: new Set(), brushes: {}, run: null, pair: null, step: null});
const toggle = (key) => {
  const selected = new Set(state.selected);
  if (!selected.delete(key)) selected.add(key);
  change({selected, brushes: {}, ...(selected.has(key) ? {run: null, pair: null} : {})});
};

// The same setting in every view answers the pointer.
let hovered = null;
const hover = (key) => {
  if (key === hovered) return;
  hovered = key;
  document.querySelectorAll(".hover").forEach((node) => node.classList.remove("hover"));
  if (key) document.querySelectorAll(`[data-key="${CSS.escape(key)}"]`).forEach((node) => node.classList.add("hover"));
};
