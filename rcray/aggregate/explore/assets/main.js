// Begins: reads the address, loads, draws, and goes on listening.

const paintHead = () => {
  const {name, title, description} = data.head;
  document.title = title;
  $("name").textContent = name;
  $("title").textContent = title;
  $("description").textContent = description;
  const counts = new Map();
  for (const run of Object.values(data.runs)) counts.set(run.state, (counts.get(run.state) ?? 0) + 1);
  $("chips").replaceChildren(
    ...[...counts].map(([word, count]) =>
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
    ),
  );
  $("report").hidden = LIVE;
};
const inView = () => {
  const count = visible().length;
  return count === data.groups.size ? "all cells" : `${count} of ${data.groups.size} cells`;
};
const paintBar = () => {
  const count = [...state.selected].filter((key) => data.groups.has(key)).length;
  $("chosen").textContent = choosing() ? `${count} of ${data.groups.size} selected` : inView();
  $("clear").hidden = !choosing();
  const base = state.base && data.groups.get(state.base);
  $("pinned").replaceChildren(...(base ? ["against ", el("strong", {}, base.label)] : []));
  $("unpin").hidden = !base;
  $("copy-command").disabled = !commandOf();
  if ($("filter").value !== state.filter) $("filter").value = state.filter;
};
onPaint(["data", "filter"], paintHead);
onPaint(["data", "selected", "base", "filter"], paintBar);

// The command that runs the cells in view: the file's own, with --only where it is not all of them.
const commandOf = () => {
  const wanted = new Set(chosenGroups().flatMap((group) => group.runs));
  return data.head.commands
    .map(({text, runs}) => {
      const own = runs.filter((id) => wanted.has(id));
      own.forEach((id) => wanted.delete(id));
      if (!own.length) return null;
      return own.length === runs.length ? text : `${text} --only ${own.join(",")}`;
    })
    .filter(Boolean)
    .join("\n");
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
$("copy-command").addEventListener("click", (event) => copy(event.currentTarget, commandOf()));
$("copy-link").addEventListener("click", (event) => copy(event.currentTarget, location.href));
$("clear").addEventListener("click", () => select([]));
$("unpin").addEventListener("click", () => pin(null));
$("chips").addEventListener("click", ({target}) => {
  const word = target.dataset.state;
  if (word) change({filter: state.filter === word ? "" : word});
});
$("filter").addEventListener("input", (event) => change({filter: event.target.value}));
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target !== $("filter")) select([]);
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
    if (take(said)) {
      repaint("data");
      if (state.base && data.groups.has(state.base)) {
        against = await source.differences(state.base);
        repaint("differences");
      }
    }
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
