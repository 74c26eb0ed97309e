// Held-out pairs of the run in focus: all of them as points, the worst token by token; samples before and after.

const NO_PAIRS = {run: null, details: null, problem: ""};
let shownPairs = NO_PAIRS;
const pairsNow = () => (shownPairs.run === focus() ? shownPairs.details : null);

const loadPairs = async () => {
  const id = focus();
  if (shownPairs.run !== id) {
    shownPairs = {...NO_PAIRS, run: id}; // another run's pairs do not stand under this one's name meanwhile
    repaint("pairs");
  }
  if (!id) return;
  const base = state.base;
  try {
    const [details, other] = await Promise.all([source.details(id), loadBase(id)]);
    if (focus() !== id || state.base !== base) return;
    const same = shownPairs.base === base && JSON.stringify(shownPairs.details?.detail) === JSON.stringify(details.detail);
    shownPairs = {run: id, details, base, problem: ""};
    basePairs = other;
    if (!same) repaint("pairs");
  } catch (error) {
    if (focus() !== id || shownPairs.details) return;
    shownPairs = {...NO_PAIRS, run: id, problem: `Its pairs could not be read: ${error.message}`};
    repaint("pairs");
  }
};

// The pinned setting's run with the same seed, to hold the same pairs against; where it has none, its first one.
let basePairs = null;
const loadBase = async (id) => {
  const runs = data.groups.get(state.base)?.runs ?? [];
  const same = runs.find((each) => data.runs[each]?.seed === data.runs[id].seed) ?? runs[0];
  // A sum of log-probabilities is not held against a mean.
  if (!data.runs[same] || same === id || data.runs[same].unit !== data.runs[id].unit) return null;
  return {...(await source.details(same)), seed: data.runs[same].seed};
};
const driftIn = (details, name) => {
  const pairs = details?.detail.pairs;
  if (!pairs) return null;
  pairs.index ??= new Map(details.names[pairs[0]].map((each, i) => [each, i]));
  pairs.drifts ??= [unpack(pairs[1]), unpack(pairs[2])];
  const i = pairs.index.get(name);
  return i === undefined ? null : pairs.drifts.map((values) => values[i]);
};

const paintPairs = () => {
  const [id, details] = [focus(), pairsNow()];
  const detail = details?.detail ?? {};
  $("pairs-note").textContent = id ? `of ${groupOfRun(id)?.label}, seed ${data.runs[id].seed}` : NOTHING_CHOSEN;
  $("pairs").querySelector(".two").hidden = !id;
  if (!id) {
    $("pair").hidden = true;
    return paintSamples([]);
  }
  if (!details) {
    const why = shownPairs.problem || "Its pairs are being read …";
    nothing("cloud", why);
    $("worst-list").replaceChildren(el("li", {class: "soft"}, why));
    $("worst-head").hidden = true;
    $("worst-unit").textContent = "";
    $("pair").hidden = true;
    return paintSamples([]);
  }
  paintCloud(details, detail);
  paintWorst(id, details);
  paintPair(details);
  paintSamples(detail.samples ?? []);
};

const paintWorst = (id, details) => {
  const worst = details.detail.displaced ?? [];
  // Both numbers as the run's evaluation has them, in its unit; where it kept none, the sums over tokens.
  const measured = worst.every(([number]) => driftIn(details, details.texts[number].row));
  const unit = measured ? data.runs[id].unit : "nats";
  const items = worst.map(([number, ...logps]) => {
    const text = details.texts[number];
    const [w, l] = measured ? driftIn(details, text.row) : changesOf(logps);
    return el(
      "li",
      {},
      el(
        "button",
        {type: "button", "data-pair": text.row, "aria-pressed": String(text.row === chosenPair(details))},
        el("span", {class: "drift"}, moved(w, unit)),
        el("span", {class: "drift soft"}, moved(l, unit)),
        el("span", {class: "prompt"}, text.prompt),
      ),
    );
  });
  const none = () =>
    details.detail.problem ?? (data.runs[id].state === "ok" ? "Its evaluation kept no tokens." : "Not evaluated yet.");
  const list = items.length ? items : [el("li", {class: "soft"}, none())];
  keepFocus($("worst-list"), () => $("worst-list").replaceChildren(...list));
  $("worst-head").replaceChildren(
    ...["Δz_w", "Δz_l"].map((name) => el("span", {class: "drift"}, symbols(name))),
    "Prompt",
  );
  $("worst-head").hidden = !worst.length;
  const cut = details.most && worst.length >= details.most;
  const more = cut ? `; this file has ${details.most} of each run, rcray watch all` : "";
  $("worst-unit").textContent = worst.length ? `changes in ${unit}${more}` : "";
};
const moved = (value, unit) => fixed(value, unit === "nats" ? 2 : 3, true); // a mean per token is smaller
const changesOf = (logps) => {
  const sums = logps.map((text) => unpack(text).reduce((sum, value) => sum + value, 0));
  return [sums[1] - sums[0], sums[3] - sums[2]];
};
const chosenPair = (details) => {
  const worst = details.detail.displaced ?? [];
  if (state.pair && driftIn(details, state.pair)) return state.pair;
  return worst.length ? details.texts[worst[0][0]].row : null;
};

const paintCloud = (details, detail) => {
  if (!detail.pairs) return nothing("cloud", "No pair was measured yet.");
  const names = details.names[detail.pairs[0]];
  driftIn(details, names[0]);
  const [w, l] = detail.pairs.drifts;
  const {unit} = data.runs[focus()];
  const plot = frame("cloud", {
    x: padded(extent([...w, 0])),
    y: padded(extent([...l, 0])),
    xTitle: `Δz_w of a pair (${unit})`,
    yTitle: `Δz_l of a pair (${unit})`,
    height: 270,
  });
  const {layer, X, Y} = plot;
  zeroLines(plot);
  const texts = new Map((detail.displaced ?? []).map(([number]) => [details.texts[number].row, details.texts[number]]));
  const colour = groupOfRun(focus())?.colour ?? "";
  const chosen = chosenPair(details);
  names.forEach((name, i) => {
    if (!Number.isFinite(w[i]) || !Number.isFinite(l[i])) return;
    const kept = texts.get(name);
    const point = draw("circle", {
      class: `pair ${colour} ${kept ? "kept" : ""} ${name === chosen ? "chosen" : ""}`,
      cx: X(w[i]).toFixed(1),
      cy: Y(l[i]).toFixed(1),
      r: name === chosen ? 6 : kept ? 4 : 2.5,
      "data-point": name,
    });
    point.addEventListener("pointermove", (event) =>
      tip.show(
        event,
        name,
        `Δz_w ${moved(w[i], unit)}, Δz_l ${moved(l[i], unit)} ${unit}`,
        kept ? kept.prompt : "text is kept of the most displaced only",
      ),
    );
    point.addEventListener("pointerleave", tip.hide);
    point.addEventListener("click", () => change({pair: name}));
    layer.append(point);
  });
};

// A token's colour: what its log-probability gained (blue) or lost (orange), at most two nats deep. An answer is one stop
// of the Tab key, and the arrows go on from there: a long one is no wall.
const tokensOf = (tokens, start, trained) =>
  el(
    "p",
    {class: "tokens"},
    tokens.map((token, i) => {
      const gained = trained[i] - start[i];
      const depth = Math.round(Math.min(1, Math.abs(gained) / 2) * 10);
      return el(
        "span",
        {
          class: `token ${gained < 0 ? "lost" : "won"}-${depth}`,
          "data-change": gained.toFixed(4),
          "data-said": `${fixed(start[i], 2)} → ${fixed(trained[i], 2)} nats (${fixed(gained, 2, true)})`,
          tabindex: i ? -1 : 0,
          "aria-describedby": "tip",
        },
        token.replaceAll("\n", "⏎\n"),
      );
    }),
  );

const tokenAt = ({target}) => target.closest("#pair [data-said]");
const stepTo = (token, next) => {
  if (!next) return;
  token.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
};
$("pair").addEventListener("pointermove", (event) => {
  const token = tokenAt(event);
  if (token) tip.show(event, token.dataset.said);
  else tip.hide();
});
$("pair").addEventListener("pointerleave", tip.hide);
$("pair").addEventListener("focusin", (event) => {
  const token = tokenAt(event);
  if (!token) return;
  const {left, bottom} = token.getBoundingClientRect();
  tip.show({clientX: left - 14, clientY: bottom - 8}, token.dataset.said);
});
$("pair").addEventListener("focusout", tip.hide);
$("pair").addEventListener("keydown", (event) => {
  const token = tokenAt(event);
  if (!token || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
  event.preventDefault();
  stepTo(token, event.key === "ArrowLeft" ? token.previousElementSibling : token.nextElementSibling);
});

const paintPair = (details) => {
  const name = chosenPair(details);
  const box = $("pair");
  box.hidden = !name;
  if (!name) return;
  const entry = (details.detail.displaced ?? []).find(([number]) => details.texts[number].row === name);
  const drift = driftIn(details, name);
  const other = state.base && driftIn(basePairs, name);
  const {unit} = data.runs[focus()];
  const both = ([w, l]) => `${moved(w, unit)}, ${moved(l, unit)}`;
  const facts = drift ? [`Δz_w ${moved(drift[0], unit)}, Δz_l ${moved(drift[1], unit)} ${unit}`] : [];
  const seed = other && basePairs.seed !== data.runs[focus()].seed ? ` (seed ${basePairs.seed})` : "";
  if (other && drift)
    facts.push(`the pinned cell${seed}: ${both(other)} (difference ${both(drift.map((value, i) => value - other[i]))})`);
  const head = el(
    "div",
    {class: "card-head"},
    el("h3", {}, name),
    el("p", {class: "soft", id: "pair-facts"}, symbols(facts.join("; "))),
  );
  if (!entry)
    return box.replaceChildren(
      head,
      el("p", {class: "soft"}, "Text and tokens are kept of the most displaced pairs only (evaluation.displaced)."),
    );
  const text = details.texts[entry[0]];
  const logps = entry.slice(1).map(unpack);
  const [w, l] = changesOf(entry.slice(1));
  box.replaceChildren(
    head,
    el(
      "div",
      {class: "answers"},
      el("div", {}, el("h4", {}, "Prompt"), el("p", {class: "text"}, text.prompt)),
      el(
        "div",
        {id: "chosen-tokens"},
        el("h4", {}, `Chosen: ${fixed(w, 2, true)} nats over ${text.chosen.length} tokens`),
        tokensOf(text.chosen, logps[0], logps[1]),
      ),
      el(
        "div",
        {id: "rejected-tokens"},
        el("h4", {}, `Rejected: ${fixed(l, 2, true)} nats over ${text.rejected.length} tokens`),
        tokensOf(text.rejected, logps[2], logps[3]),
      ),
    ),
    el(
      "p",
      {class: "soft scale"},
      "log-probability of a token: ",
      [10, 6, 3].map((n) => el("span", {class: `token lost-${n}`}, fixed(-n / 5, 1))),
      [3, 6, 10].map((n) => el("span", {class: `token won-${n}`}, fixed(n / 5, 1, true))),
      " nats or more",
    ),
  );
};

const paintSamples = (samples) => {
  $("samples").hidden = !samples.length;
  const answer = (said) =>
    el(
      "td",
      {},
      said.flags.map((flag) => chipOf("degenerate", flag)),
      el("span", {class: "text"}, said.text || "–"),
      said.ended ? null : " …",
      el("span", {class: "unit soft"}, `${said.tokens} tokens`),
    );
  $("samples-list").replaceChildren(
    ...samples.map((sample) =>
      el(
        "article",
        {class: "card sample"},
        el("p", {}, el("strong", {}, "Prompt "), el("span", {class: "text"}, sample.prompt)),
        el("p", {}, el("strong", {}, "Chosen "), el("span", {class: "text"}, sample.chosen)),
        el(
          "div",
          {class: "scroll"},
          el(
            "table",
            {},
            el(
              "thead",
              {},
              el(
                "tr",
                {},
                ["", "Before training", "After training"].map((title) => el("th", {}, title)),
              ),
            ),
            el(
              "tbody",
              {},
              ["greedy", "drawn"].map((way, i) =>
                el("tr", {}, el("th", {scope: "row"}, way), answer(sample.start[i]), answer(sample.trained[i])),
              ),
            ),
          ),
        ),
      ),
    ),
  );
};

$("worst-list").addEventListener("click", (event) => {
  const button = event.target.closest("[data-pair]");
  if (button) change({pair: button.dataset.pair});
});
onPaint(["data", "selected", "filter", "run", "base"], loadPairs);
onPaint(["pairs", "pair", "size"], paintPairs);
