// The cells: a row for each setting, its seeds below it on demand, numbers as they are or against the pinned one.

let against = null; // differences from the pinned setting, once they are there

// A number of a setting as it is asked for now: its value and half of its interval, or a word.
const APART = "not comparable";
const NO_SEED = "no seed in common";
const numberOf = (group, index) => {
  const said = group.numbers[index];
  const base = data.groups.get(state.base);
  if (base && group.key !== base.key) {
    const number = against?.metrics.indexOf(data.head.numbers[index].key) ?? -1;
    const [value, half, paired] = against?.of[group.key]?.[number] ?? [];
    if (Number.isFinite(value)) return {value, half, paired: paired === 1, difference: true};
    return {word: whyNone(group, said, base.numbers[index], number)};
  }
  return typeof said === "string" ? {word: said} : {value: said[0], spread: said[1], half: said[2]};
};
const whyNone = (group, said, pinned, number) => {
  if (typeof said === "string") return said;
  if (typeof pinned === "string") return `baseline ${pinned === "–" ? "has none" : pinned}`;
  if (!against) return "…";
  if (number < 0) return "not here";
  return shareSeeds(group, data.groups.get(state.base)) ? APART : NO_SEED;
};
// Settings of one run each are compared whatever their seeds are.
const shareSeeds = (group, base) => {
  const measured = (run) => run && Object.keys(run.values).length > 0;
  const seeds = (each) => each.runs.map((id) => data.runs[id]).filter(measured).map((run) => run.seed);
  const single = group.runs.length === 1 && base.runs.length === 1;
  return single || seeds(group).some((seed) => seeds(base).includes(seed));
};

const numberCell = (number, entry) => {
  if (entry.word !== undefined) return el("td", {class: "right word"}, entry.word);
  if (!entry.difference) {
    const spread =
      entry.spread === null ? null : el("span", {class: "soft"}, ` ± ${shown(number, entry.spread, false)}`);
    return el("td", {class: "right"}, shown(number, entry.value), spread);
  }
  const known = Number.isFinite(entry.half);
  const clear = known && Math.abs(entry.value) > entry.half;
  const range = known
    ? `[${shown(number, entry.value - entry.half, true)}, ${shown(number, entry.value + entry.half, true)}]`
    : "one seed: no interval";
  const how = entry.paired ? "95% interval of the differences item by item" : "95% interval, not paired by item";
  return el(
    "td",
    {class: `right ${clear ? (entry.value > 0 ? "up" : "down") : "unclear"}`, title: known ? how : range},
    shown(number, entry.value, true),
    el("span", {class: "range"}, known ? range : "no interval"),
  );
};

const chipOf = (word, text = word) => el("span", {class: `chip ${word}`}, text);
const NO_MATCH = "No cell passes the filter.";
const statesOf = (group) => {
  const counts = new Map();
  for (const word of states(group)) counts.set(word, (counts.get(word) ?? 0) + 1);
  return [...counts];
};
const statusOf = (group) =>
  statesOf(group).map(([word, count]) => chipOf(word, group.runs.length > 1 ? `${count} ${word}` : word));

const columns = () => [
  {key: "cell", title: "Cell", sort: (group) => group.label},
  {key: "status", title: "Status", sort: (group) => states(group).join()},
  ...data.head.numbers.map((number, i) => ({
    key: number.key,
    title: number.title,
    unit: number.unit,
    number,
    index: i,
    help: number.help,
    sort: (group) => (isBase(group) ? 0 : (numberOf(group, i).value ?? null)),
  })),
  // What varies stands in the names, too: here it sorts, behind what is looked for first.
  ...data.head.fields
    .map((field, i) => ({key: field.path, title: field.title, field: i, sort: (group) => group.values[i]}))
    .filter((column) => !["objective", "calibration", "model"].includes(column.key)),
];

const sorted = (groups) => {
  const column = state.sort && columns().find((each) => each.key === state.sort[0]);
  if (!column) return groups;
  const value = new Map(groups.map((group) => [group, column.sort(group)]));
  return groups.sort((a, b) => {
    const [x, y] = [value.get(a), value.get(b)];
    if ((x === null) !== (y === null)) return x === null ? 1 : -1; // what has no number goes last
    const order = typeof x === "string" || typeof y === "string" ? String(x).localeCompare(String(y)) : x - y;
    return order * state.sort[1];
  });
};

const headOf = (column) =>
  el(
    "th",
    {
      class: column.number ? "right" : column.key === "cell" ? "name" : null,
      title: column.help ?? null,
      scope: "col",
      "aria-sort": state.sort?.[0] === column.key ? (state.sort[1] > 0 ? "ascending" : "descending") : null,
    },
    el(
      "button",
      {type: "button", "data-sort": column.key},
      symbols(column.title),
      column.unit ? el("span", {class: "unit"}, column.unit) : null,
    ),
  );

// A number of one seed: against the pinned cell's run with the same seed, where one is pinned.
const seedNumber = (group, run, number) => {
  const metric = number.key;
  const base = group.key === state.base ? null : data.groups.get(state.base);
  if (!base) return {value: run.values[metric]};
  const other = base.runs.map((id) => data.runs[id]).find((each) => each?.seed === run.seed);
  if (number.likelihood && other && other.unit !== run.unit) return {title: APART};
  if (!other) return {title: `the pinned cell has no seed ${run.seed}`};
  return {
    value: run.values[metric] - other.values[metric],
    title: `minus the pinned cell's seed ${run.seed}; one run has no interval over seeds`,
  };
};

const seedRow = (group, id, list) => {
  const run = data.runs[id];
  if (!run) return null;
  const steps = `${run.step} of ${run.total ?? "?"} steps`;
  const where = LIVE ? el("code", {}, id) : el("a", {href: `report.html#run-${id}`, class: "mono"}, id);
  const cells = list.map((column) => {
    if (column.key === "cell")
      return el(
        "td",
        {class: "seed"},
        el(
          "button",
          {
            type: "button",
            class: "link",
            "data-run": id,
            "aria-pressed": state.run === id ? "true" : null,
            title: "its band, moves and pairs below",
          },
          `seed ${run.seed}`,
        ),
        " ",
        where,
      );
    if (column.key === "status")
      return el(
        "td",
        {class: "status"},
        chipOf(run.state),
        el("span", {class: "soft small"}, run.doing || (run.interrupted ? `interrupted, ${steps}` : steps)),
      );
    if (!column.number) return el("td");
    const {value, title} = seedNumber(group, run, column.number);
    return el(
      "td",
      {class: "right soft", title},
      Number.isFinite(value) ? shown(column.number, value, column.number.sign || Boolean(title)) : "–",
    );
  });
  return el("tr", {class: "seed-row", "data-run-row": id}, el("td", {class: "first"}), cells);
};

const pinOf = (group, pinned) =>
  el(
    "button",
    {
      type: "button",
      class: "pin",
      "data-pin": group.key,
      title: pinned ? "unpin" : "pin as the baseline: every number becomes the difference from it",
      "aria-label": `pin ${group.label} as the baseline`,
      "aria-pressed": String(pinned),
    },
    "⚑",
  );

const rowsOf = (group, list) => {
  const pinned = group.key === state.base;
  const many = group.runs.length;
  const rows = [
    el(
      "tr",
      {
        "data-key": group.key,
        class: `${state.selected.has(group.key) ? "selected" : ""} ${isShown(group.key) ? "" : "dim"} ${pinned ? "pinned" : ""}`,
      },
      el(
        "td",
        {class: "first"},
        el("input", {
          type: "checkbox",
          "data-select": group.key,
          "aria-label": `select ${group.label}`,
          checked: state.selected.has(group.key),
        }),
        pinOf(group, pinned),
      ),
      list.map((column) => {
        if (column.key === "cell") return el("td", {class: "name"}, glyph(group), el("span", {class: "what"}, group.label));
        if (column.key === "status") {
          const doing = group.runs.map((id) => data.runs[id]?.doing).find(Boolean);
          return el(
            "td",
            {class: "status"},
            el(
              "button",
              {
                type: "button",
                class: "link",
                "data-open": group.key,
                "aria-expanded": String(state.opened.has(group.key)),
                "aria-label": `each seed of ${group.label}`,
                title: "each seed",
              },
              state.opened.has(group.key) ? "▾" : "▸",
            ),
            statusOf(group),
            doing ? el("span", {class: "soft small"}, doing) : null,
          );
        }
        if (column.number) return numberCell(column.number, numberOf(group, column.index));
        return el("td", {}, String(group.values[column.field] ?? "–"));
      }),
    ),
  ];
  const span = list.length;
  for (const id of group.runs) {
    const run = data.runs[id];
    if (run?.error)
      rows.push(
        el(
          "tr",
          {class: "error", "data-error": id},
          el("td"),
          el(
            "td",
            {colspan: span},
            chipOf(run.state),
            many > 1 ? `seed ${run.seed}: ` : "",
            el("span", {class: "mono"}, run.error),
          ),
        ),
      );
    if (run?.note)
      rows.push(
        el("tr", {class: "note"}, el("td"), el("td", {colspan: span}, many > 1 ? `seed ${run.seed}: ` : "", run.note)),
      );
  }
  if (state.opened.has(group.key)) rows.push(...group.runs.map((id) => seedRow(group, id, list)).filter(Boolean));
  return rows;
};

const drawn = new Map(); // the rows of each setting
const paintTable = () => {
  const [list, table] = [columns(), $("table")];
  const groups = sorted(visible());
  drawn.clear();
  for (const group of groups) drawn.set(group.key, rowsOf(group, list));
  keepFocus(table, () => {
    table.tHead.replaceChildren(
      el("tr", {}, el("th", {class: "first"}, el("span", {class: "hidden"}, "select, pin")), list.map(headOf)),
    );
    const body = el(
      "tbody",
      {},
      groups.length
        ? [...drawn.values()]
        : el("tr", {}, el("td", {class: "soft", colspan: list.length + 1}, NO_MATCH)),
    );
    table.tBodies[0]?.remove();
    table.append(body);
  });
  const runs = Object.keys(data.runs).length;
  const how = data.head.several ? "± standard deviation over seeds" : "± standard error";
  const base = baseline();
  $("cells-note").textContent = base
    ? "Differences from the pinned cell, with 95% intervals."
    : `${countOf(data.groups.size, "setting")}, ${countOf(runs, "run")}; ${how}.`;
  if (state.base && !base) $("cells-note").textContent += " The pinned cell of this link is not here.";
  if (base && against?.note) $("cells-note").textContent += ` ${against.note}`;
  if (base && groups.some((group) => data.head.numbers.some((_, i) => numberOf(group, i).word === APART)))
    $("cells-note").textContent += ` ${APART}: measured in another way, as sums and means are.`;
  if (groups.length < data.groups.size)
    $("cells-note").textContent += ` ${groups.length} ${groups.length === 1 ? "passes" : "pass"} the filter.`;
};

// Of steps alone, rows say how far their cells are: to draw all of them anew would hold up whoever scrolls.
const paintNews = () => {
  const list = columns();
  keepFocus($("table"), () => {
    for (const key of new Set([...data.news].map((id) => groupOfRun(id)?.key))) {
      if (!drawn.has(key)) continue; // the filter hides it
      const [first, ...others] = drawn.get(key);
      drawn.set(key, rowsOf(data.groups.get(key), list));
      others.forEach((row) => row.remove());
      first.replaceWith(...drawn.get(key));
    }
  });
};

onPaint(["data", "selected", "base", "filter", "sort", "differences", "opened", "run"], paintTable);
onPaint(["news"], paintNews);

// A range of values is none of differences: what was chosen by it stays chosen, the range goes.
const pin = async (key) => {
  against = null;
  const fields = new Set((data.head?.fields ?? []).map((field) => field.path));
  const kept = Object.entries(state.brushes).filter(([path]) => key === state.base || fields.has(path));
  change({base: key, brushes: Object.fromEntries(kept)});
  await compare();
};
const compare = async () => {
  const key = state.base;
  if (!data.groups.has(key)) return;
  let differences = null;
  try {
    differences = await source.differences(key);
  } catch (error) {
    differences = {metrics: [], of: {}, note: `The differences could not be read: ${error.message}.`};
  }
  if (state.base !== key || differences === against) return;
  against = differences;
  repaint("differences");
};

$("table").addEventListener("click", (event) => {
  const button = event.target.closest("button, a");
  if (button?.dataset.sort) {
    const key = button.dataset.sort;
    change({sort: state.sort?.[0] === key && state.sort[1] > 0 ? null : [key, state.sort?.[0] === key ? 1 : -1]});
  } else if (button?.dataset.pin) pin(state.base === button.dataset.pin ? null : button.dataset.pin);
  else if (button?.dataset.open) {
    const opened = new Set(state.opened);
    if (!opened.delete(button.dataset.open)) opened.add(button.dataset.open);
    change({opened});
  } else if (button?.dataset.run) change({run: button.dataset.run, pair: null});
  else if (!button) {
    const row = event.target.closest("tr[data-key]");
    if (row) toggle(row.dataset.key);
  }
});
$("table").addEventListener("pointerover", (event) => hover(event.target.closest("tr[data-key]")?.dataset.key ?? null));
$("table").addEventListener("pointerleave", () => hover(null));
