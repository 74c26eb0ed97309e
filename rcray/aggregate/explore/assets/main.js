// Begins: reads the address, loads, draws, and goes on listening.

const paintHead = () => {
  const {name, title, description} = data.head;
  document.title = title;
  $("name").textContent = name;
  $("title").textContent = title;
  $("description").textContent = description;
  const counts = new Map();
  for (const run of Object.values(data.runs)) counts.set(run.state, (counts.get(run.state) ?? 0) + 1);
  const chips = [...counts].map(([word, count]) =>
    el(
      "button",
      {
        type: "button",
        class: `chip ${word}`,
        "data-state": word,
        "aria-pressed": String(state.filter === word),
        title: state.filter === word ? "show every cell" : `show only cells with a run that is ${word}`,
      },
      `${count} ${word}`,
    ),
  );
  keepFocus($("chips"), () => $("chips").replaceChildren(...chips));
  $("report").hidden = LIVE;
};
const inView = () => {
  const count = visible().length;
  return count === data.groups.size ? "all cells" : `${count} of ${data.groups.size} cells`;
};
const paintBar = () => {
  const count = chosenGroups().length;
  const hidden = [...state.selected].filter((key) => data.groups.has(key)).length - count;
  const more = choosing() && hidden > 0 ? `, ${hidden} more hidden by the filter` : "";
  $("chosen").textContent = choosing() ? `${count} of ${data.groups.size} selected${more}` : inView();
  $("clear").hidden = !choosing() && state.step === null;
  const base = state.base && data.groups.get(state.base);
  $("pinned").replaceChildren(...(base ? ["against ", el("strong", {}, base.label)] : []));
  $("unpin").hidden = !base;
  const {text, note} = commandOf();
  $("copy-command").disabled = !text;
  $("command-note").textContent = note;
  if ($("filter").value !== state.filter) $("filter").value = state.filter;
};
onPaint(["data", "filter"], paintHead);
onPaint(["data", "selected", "brushes", "base", "filter", "step"], paintBar);

// The command that runs the cells in view, and the baseline that they are held against: the file's own, with --only
// where it is not all of them; and what to know of it, or why there is none.
const commandOf = () => {
  const chosen = chosenGroups();
  const base = chosen.length ? baseline() : null;
  const wanted = new Set([...chosen, ...(base ? [base] : [])].flatMap((group) => group.runs));
  const lines = [];
  const added = base && !chosen.includes(base) ? "The command has the pinned cell, too." : "";
  let note = data.head.no_command || (wanted.size ? added : NOTHING_CHOSEN);
  for (const {text, runs, searches} of data.head.commands) {
    const own = runs.filter((id) => wanted.has(id));
    own.forEach((id) => wanted.delete(id));
    if (!own.length) continue;
    const whole = own.length === runs.length;
    lines.push(whole || searches ? text : `${text} --only ${own.join(",")}`);
    if (searches && !whole) note = "A search chooses its cells by itself: the command is that of the whole search.";
  }
  return {text: lines.join("\n"), note};
};

const copy = async (button, text) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // a page of a file may not: by way of a field
    const field = el("textarea", {class: "hidden"}, text);
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  button.dataset.copied = text;
  const before = (button.dataset.title ??= button.textContent);
  button.textContent = "Copied";
  setTimeout(() => {
    button.textContent = before;
  }, 1200);
};
$("copy-command").addEventListener("click", (event) => copy(event.currentTarget, commandOf().text));
$("copy-link").addEventListener("click", (event) =>
  copy(event.currentTarget, location.href.split("#")[0] + hashOf(state)),
);
$("clear").addEventListener("click", clear);
$("unpin").addEventListener("click", () => pin(null));
$("chips").addEventListener("click", ({target}) => {
  const word = target.dataset.state;
  if (word) change({filter: state.filter === word ? "" : word});
});
$("filter").addEventListener("input", (event) => change({filter: event.target.value}));
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target !== $("filter")) clear();
});

let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) {
    width = innerWidth;
    repaint("size");
  }
});
addEventListener("hashchange", () => {
  const [before, view] = [state.base, readHash()];
  clearTimeout(written.later);
  written.later = null;
  state = view;
  repaint(...WHOLE);
  if (view.base !== before) pin(view.base);
});

const update = async () => {
  let pause = POLL;
  try {
    const said = await source.load();
    await released();
    $("problem").hidden = true;
    const changed = take(said);
    if (changed) repaint(changed);
    await compare();
    if (shownPairs.problem) await loadPairs();
    $("live").replaceChildren(...(LIVE ? [chipOf("running", "live")] : []));
  } catch (error) {
    pause = 2 * POLL;
    $("live").replaceChildren(chipOf("failed", "no answer"));
    $("problem").hidden = Boolean(data.head);
    $("problem").textContent = `Nothing could be read: ${error.message}`;
  }
  document.body.dataset.ready = "yes";
  if (LIVE) setTimeout(update, pause);
};
state = readHash();
update();
