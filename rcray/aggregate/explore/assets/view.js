// What is in view: the cells that pass the filter, those that are chosen of them, the baseline, the run in focus.

const states = (group) => group.runs.map((id) => data.runs[id]?.state ?? "pending");
// Every part of the page asks for these at every step: they are looked for once.
let passing = {filter: null, version: null, groups: []};
const visible = () => {
  if (passing.filter !== state.filter || passing.version !== data.version)
    passing = {filter: state.filter, version: data.version, groups: passTheFilter()};
  return [...passing.groups];
};
// A word that is the state of some run asks for that state: `ok` is not in `tokens`. Any other is a part of a text.
const passTheFilter = () => {
  const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const known = new Set(Object.values(data.runs).map((run) => run.state));
  return [...data.groups.values()].filter((group) => {
    const [own, text] = [states(group), [group.label, ...group.values.map(String)].join(" ").toLowerCase()];
    return words.every((word) => (known.has(word) ? own.includes(word) : text.includes(word) || own.join(" ").includes(word)));
  });
};
// A brush that no cell lies in chooses none; nothing chosen at all is everything.
const choosing = () => state.selected.size > 0 || Object.keys(state.brushes).length > 0;
const isShown = (key) => !choosing() || state.selected.has(key);

// The pinned setting, while it is here; it is where every difference is 0. A link may name one that is not.
const baseline = () => data.groups.get(state.base);
const isBase = (group) => group.key === baseline()?.key;

const chosenGroups = () => visible().filter((group) => isShown(group.key));
const runsToShow = () =>
  chosenGroups()
    .flatMap((group) => group.runs)
    .filter((id) => data.runs[id]);
const focus = () => {
  if (state.run && data.runs[state.run]) return state.run;
  const ids = runsToShow();
  return ids.find((id) => data.runs[id].curves?.x) ?? ids[0] ?? null;
};
const NOTHING_CHOSEN = "No cell is chosen.";
const groupOfRun = (id) => [...data.groups.values()].find((group) => group.runs.includes(id));
const mostOf = (what) => Math.max(1, ...runsToShow().map((id) => what(data.runs[id]) ?? 1));
const lastStep = () => mostOf((run) => run.step); // that was recorded
const stepNow = () => Math.min(state.step ?? Infinity, lastStep());
// Where the axis ends: a young curve would be a dot at the left of all the steps to come.
const endStep = () => {
  const last = lastStep();
  const power = 10 ** Math.floor(Math.log10(last));
  return Math.min(
    Math.max(last, mostOf((run) => run.total)),
    [1, 2, 5, 10].map((n) => n * power).find((n) => n >= last),
  );
};
