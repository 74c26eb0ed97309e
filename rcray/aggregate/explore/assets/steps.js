// Over the steps: at one of them the band and the move of one run; what goes through the steps.

let finer = {run: null, key: "", curves: null}; // of the run in focus, every point that was recorded
const refine = async () => {
  const id = focus();
  const run = data.runs[id];
  const key = `${id} ${run?.step}`;
  if (!LIVE || !run || !(run.curves?.width > 1) || finer.key === key) return;
  finer = {run: id, key, curves: finer.run === id ? finer.curves : null};
  const curves = await source.records(id).catch(() => null); // the coarser ones stay
  if (finer.key === key && curves?.x) {
    finer.curves = curves;
    repaint("finer");
  }
};
const focusCurve = (column) => {
  const id = focus();
  return id && curveOf(data.runs[id], column, finer.run === id ? finer.curves : null);
};

const paintBand = () => {
  const id = focus();
  const group = id && groupOfRun(id);
  const [ratio, lower, upper] = ["log_r", "true_band_lower", "true_band_upper"].map(focusCurve);
  if (!ratio?.x.length) {
    $("band-said").textContent = "";
    return nothing("band", id ? "No step was recorded yet." : NOTHING_CHOSEN);
  }
  const [low, high] = ["band_lower", "band_upper"].map(focusCurve);
  const finite = [...ratio.y, ...[...lower.y, ...upper.y].filter((value) => Math.abs(value) < 4)];
  const inner = extent(finite);
  const clipped = [Math.max(inner[0], -6), Math.min(inner[1], 6)];
  const y = padded(clipped[0] < clipped[1] ? clipped : inner, 0.12); // all of it may lie beyond
  const plot = frame("band", {
    x: [0, endStep()],
    y,
    xTicks: stepTicks(endStep()),
    xTitle: "step",
    yTitle: "log r",
    height: 250,
    left: 56,
  });
  const {layer, X, Y} = plot;
  const held = (value) => Y(Math.max(y[0] - 1, Math.min(y[1] + 1, value))); // an open edge is beyond the frame
  if (lower.x.length)
    layer.append(
      draw("path", {
        class: "true-band",
        d: areaOf(Array.from(lower.x, X), Array.from(lower.y, held), Array.from(upper.y, held)),
      }),
    );
  for (const edge of [low, high])
    layer.append(draw("path", {class: "head-band", d: lineOf(Array.from(edge.x, X), Array.from(edge.y, held))}));
  if (ratio.low)
    layer.append(
      draw("path", {
        class: `spread ${group.colour}`,
        d: areaOf(Array.from(ratio.x, X), Array.from(ratio.low, Y), Array.from(ratio.high, Y)),
      }),
    );
  layer.append(
    draw("path", {class: `curve ${group.colour}`, d: lineOf(Array.from(ratio.x, X), Array.from(ratio.y, Y))}),
  );
  const step = stepNow();
  cursor(plot, step);
  const {i, first, last} = bucketAt(ratio, step);
  const j = at(lower, step);
  if (Number.isFinite(ratio.y[i]))
    layer.append(draw("circle", {class: `here ${group.colour}`, cx: X(ratio.x[i]), cy: Y(ratio.y[i]), r: 4}));
  const edge = (value) => (Math.abs(value) > 20 ? "open" : fixed(value, 2, true));
  const [least, greatest] = [ratio.low ?? ratio.y, ratio.high ?? ratio.y].map((values) => values[i]);
  let said = `Step ${last}: log r ${fixed(ratio.y[i], 2, true)}`;
  if (first < last)
    said = `Steps ${first} to ${last}: log r ${fixed(ratio.y[i], 2, true)} on average (${fixed(least, 2, true)} to ${fixed(greatest, 2, true)})`;
  if (j >= 0) {
    const [inside, outside] = [
      lower.y[j] <= least && greatest <= upper.y[j],
      greatest < lower.y[j] || least > upper.y[j],
    ];
    const verdict = inside ? ", inside" : outside ? ", outside" : Number.isNaN(least) ? "" : ", some of them inside";
    const empty = lower.y[j] > upper.y[j];
    said += `; true band at step ${lower.x[j]}: ${empty ? "empty" : `${edge(lower.y[j])} to ${edge(upper.y[j])}${verdict}`}`;
  }
  $("band-said").textContent = `${said}. Shade: the band of the update; dotted: the band at the head.`;
  scrub("band", plot);
};

// The interval that a step lies in; past the last probe, where the next one is still to come, the last interval. None
// where both probes around the step are there and nothing was foreseen between them.
const intervalAt = (all, step, probed) => {
  const begun = all.filter(([start]) => start <= step).pop();
  if (!begun) return all.length && probed >= all[0][1] ? all[0] : null;
  return step < begun[1] || probed <= begun[1] ? begun : null;
};

const paintMoves = () => {
  const run = data.runs[focus()];
  const all = intervalsOf(run);
  const step = stepNow();
  const probes = ["probe_z_w", "probe_z_l"].map((column) => run && curveOf(run, column));
  const i = at(probes[0], step);
  const next = probes[0] ? Math.min(i + 1, probes[0].x.length - 1) : -1;
  const foreseen = intervalAt(all, step, next < 0 ? -1 : probes[0].x[next]);
  if (!all.length && !(next > 0)) {
    $("moves-said").textContent = "";
    return nothing("moves", run ? "No interval between two probes yet." : NOTHING_CHOSEN);
  }
  const words = Object.keys(data.head.pathways);
  const came = foreseen
    ? [foreseen[4], foreseen[5]]
    : [0, 1].map((side) => probes[side].y[next] - probes[side].y[next - 1]);
  const ends = [
    ...all.flatMap((each) => [
      [each[2], each[3]],
      [each[4], each[5]],
    ]),
    came,
    [0, 0],
  ];
  const typical = (axis) => {
    const sizes = ends
      .map((end) => Math.abs(end[axis]))
      .filter(Number.isFinite)
      .sort((a, b) => a - b);
    const here = [came[axis], foreseen ? foreseen[2 + axis] : 0].filter(Number.isFinite).map(Math.abs);
    const reach = Math.max(sizes[Math.floor(0.95 * (sizes.length - 1))], ...here, 1e-6) * 1.15;
    return [-reach, reach];
  };
  const plot = frame("moves", {
    x: typical(0),
    y: typical(1),
    xTitle: `move of z_w (${run.unit})`,
    yTitle: `move of z_l (${run.unit})`,
    height: 250,
  });
  const {layer, X, Y} = plot;
  zeroLines(plot);
  // A move that is no number has no place.
  const dot = (kind, [x, y], r) =>
    Number.isFinite(x) && Number.isFinite(y) ? [draw("circle", {class: kind, cx: X(x), cy: Y(y), r})] : [];
  for (const each of all)
    layer.append(...dot("ghost foreseen", each.slice(2, 4), 2), ...dot("ghost made", each.slice(4, 6), 2));
  const arrow = (kind, [x, y]) => {
    const end = dot(`tip ${kind}`, [x, y], kind === "made" ? 4.5 : 7);
    if (end.length) layer.append(draw("line", {class: `arrow ${kind}`, x1: X(0), y1: Y(0), x2: X(x), y2: Y(y)}), ...end);
  };
  arrow("made", came);
  if (foreseen) arrow("foreseen", [foreseen[2], foreseen[3]]); // dashes and a ring: what came shows through
  const word = (kind) => el("strong", {class: kind}, kind);
  const others = [" Faint: ", word("foreseen"), " and ", word("made"), " in the other intervals."];
  const pair = ([w, l]) => `(${fixed(w, 2, true)}, ${fixed(l, 2, true)})`;
  if (foreseen) {
    const [start, end] = foreseen;
    const [guess, real] = [words[foreseen[6]], words[foreseen[7]]];
    $("moves-said").replaceChildren(
      `Steps ${start} to ${end}: `,
      word("foreseen"),
      ` ${pair([foreseen[2], foreseen[3]])}, pathway ${guess}; `,
      word("made"),
      ` ${pair(came)}, pathway ${real}${guess === real ? ": as foreseen" : ""}.`,
      ...others,
    );
  } else {
    $("moves-said").replaceChildren(
      `Steps ${probes[0].x[next - 1]} to ${probes[0].x[next]}: `,
      word("made"),
      ` ${pair(came)}; nothing was foreseen here.`,
      ...(all.length ? others : []),
    );
  }
};

const paintScrubber = () => {
  const range = $("step");
  range.max = lastStep();
  range.value = stepNow();
  $("step-said").textContent = `step ${stepNow()} of ${mostOf((run) => run.total)}`;
  const id = focus();
  const ids = runsToShow();
  const offered = ids.includes(id) || !id ? ids : [id, ...ids];
  offer(
    $("run"),
    offered.map((each) => [each, `${groupOfRun(each)?.label ?? ""} · seed ${data.runs[each].seed}`]),
    id,
  );
  $("seeds").checked = state.seeds;
  $("zoom").checked = state.zoom;
};

onPaint([...VIEW, "step"], paintScrubber);
onPaint([...VIEW, "step", "finer"], paintBand);
onPaint([...VIEW, "step"], paintMoves);
onPaint(["data", "news", "selected", "filter", "run"], refine);

let playing = null;
const stopPlaying = () => {
  clearInterval(playing);
  playing = null;
  $("play").textContent = "▶";
  $("play").setAttribute("aria-label", "play");
};
$("play").addEventListener("click", () => {
  if (playing) return stopPlaying();
  $("play").textContent = "❚❚";
  $("play").setAttribute("aria-label", "pause");
  let step = stepNow() >= lastStep() ? 1 : stepNow();
  playing = setInterval(() => {
    step = Math.min(lastStep(), step + Math.max(1, Math.round(lastStep() / 120)));
    goTo(step);
    if (step >= lastStep()) stopPlaying();
  }, 60);
});
$("step").addEventListener("input", (event) => goTo(Number(event.target.value)));
$("curve").addEventListener("change", (event) => change({curve: event.target.value}));
$("run").addEventListener("change", (event) => change({run: event.target.value, pair: null}));
$("seeds").addEventListener("change", (event) => change({seeds: event.target.checked}));
$("zoom").addEventListener("change", (event) => change({zoom: event.target.checked}));
