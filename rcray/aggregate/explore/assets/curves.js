// Over the steps: a curve of every chosen setting, or its difference from the pinned one's, seed by seed.

const VIEW = ["data", "news", "selected", "filter", "run", "size"];
const FEW = 12; // curves, so that spreads and intervals do not cover each other
const NEAR = 10; // pixels from a curve

// The last step is no place of its own: a live page goes on from it with the steps to come.
const goTo = (step) => change({step: step >= lastStep() ? null : Math.max(1, step)});

const cursor = (plot, step) => {
  if (!plot.cursor) {
    plot.cursor = draw("line", {class: "cursor", y1: plot.top, y2: plot.top + plot.tall});
    plot.layer.append(plot.cursor);
  }
  for (const end of ["x1", "x2"]) plot.cursor.setAttribute(end, plot.X(step));
};

// A drag goes through the steps, and so does a press, but for one on a curve: that selects its setting, as elsewhere.
const scrub = (card, plot, keyAt = () => null) => {
  let key = null;
  const go = ([x]) => goTo(Math.round(plot.unX(x)));
  dragging(card, {
    start: (from, event) => {
      key = keyAt(from, event);
      if (!key) go(from);
    },
    move: (from, to) => {
      if (key && Math.hypot(to[0] - from[0], to[1] - from[1]) < 4) return;
      key = null;
      go(to);
    },
    end: (_, to) => (key ? toggle(key) : go(to)),
    cancel: () => (key = null),
  });
};

// One curve minus another, where both have a point of the same steps.
const minus = (one, other) => {
  const [x, y] = [[], []];
  for (let [i, j] = [0, 0]; one.width === other.width && i < one.x.length && j < other.x.length; ) {
    if (one.x[i] === other.x[j]) {
      x.push(one.x[i]);
      y.push(one.y[i] - other.y[j]);
    }
    const [own, pinned] = [one.x[i], other.x[j]];
    if (own <= pinned) i += 1;
    if (pinned <= own) j += 1;
  }
  return {x, y, width: one.width};
};

// Runs of a setting, each with the pinned setting's run of the same seed.
const matchedRuns = (group, base) =>
  group.runs.flatMap((id) => {
    const other = base.runs.find((each) => data.runs[each] && data.runs[each].seed === data.runs[id]?.seed);
    return other ? [[id, other]] : [];
  });

const NO_CURVE = {x: [], y: [], half: [], width: 1, fewer: null};
const gapOf = (group, base, column) => {
  if (group.key === base.key) {
    const own = meanOf(group, column);
    return {...own, y: own.y.map(() => 0), half: own.y.map(() => NaN), shared: own.seeds};
  }
  const [unit, pinned] = [group, base].map((each) => each.runs.map((id) => data.runs[id]?.unit).find(Boolean));
  if (column.startsWith("probe_z_") && unit !== pinned) return {...NO_CURVE, apart: true};
  const known = (id) => data.runs[id] && curveOf(data.runs[id], column);
  const gaps = matchedRuns(group, base)
    .map((ids) => ids.map(known))
    .filter((curves) => curves.every((curve) => curve?.x.length))
    .map(([own, other]) => minus(own, other))
    .filter((gap) => gap.x.length);
  if (!gaps.length) {
    const gap = minus(meanOf(group, column), meanOf(base, column));
    return {...gap, half: gap.y.map(() => NaN), shared: 0, fewer: null};
  }
  const mean = meanCurve(gaps);
  const half = mean.counts.map((n, i) => (n > 1 ? (data.head.t95[n - 2] * mean.spread[i]) / Math.sqrt(n) : NaN));
  return {...mean, half, shared: gaps.length};
};
// What is drawn of a setting: the mean over its seeds and their spread, or the mean difference and half its interval.
const drawnOf = (group, column) => {
  const base = baseline();
  if (!base) {
    const mean = meanOf(group, column);
    return {...mean, half: mean.seeds > 1 ? mean.spread : mean.spread.map(() => NaN)};
  }
  const name = `${group.key} ${base.key} ${column}`;
  if (!data.gaps.has(name)) data.gaps.set(name, gapOf(group, base, column));
  return data.gaps.get(name);
};
const tracesOf = (group, column) => {
  const base = baseline();
  const known = (id) => data.runs[id] && curveOf(data.runs[id], column);
  if (!base) return group.runs.map((id) => [id, known(id)]);
  if (isBase(group)) return [];
  const gap = (own, other) => own && other && minus(own, other);
  return matchedRuns(group, base).map(([id, other]) => [id, gap(known(id), known(other))]);
};

let drawnCurves = null; // the plot, and what stands in it
const choiceNow = () => data.head.choices.find((each) => each.key === state.curve) ?? data.head.choices[0];

// From the lowest to the highest: of the curves, and of what is shaded as far as it leaves the curves a third.
const heightsOf = (curves, shaded) => {
  const [low, high] = extent(curves.flatMap(({y}) => y));
  if (!shaded) return [low, high];
  const room = high > low ? high - low : Infinity;
  const ends = curves.flatMap(({y, half}) => y.flatMap((value, i) => (half[i] ? [value - half[i], value + half[i]] : [])));
  const [least, most] = ends.length ? extent(ends) : [low, high];
  return [Math.max(Math.min(least, low), low - room), Math.min(Math.max(most, high), high + room)];
};

const paintCurves = () => {
  const choice = choiceNow();
  offer(
    $("curve"),
    data.head.choices.map((each) => [each.key, each.title]),
    choice.key,
  );
  $("curve-title").replaceChildren(...symbols(choice.title));
  $("curve-title").title = choice.help;
  const base = baseline();
  const wanted = [...new Set([...chosenGroups(), ...(base ? [base] : [])])];
  const all = wanted.map((group) => ({group, curve: drawnOf(group, choice.key)}));
  const curves = all.filter(({curve}) => curve.x.length);
  drawnCurves = null;
  if (!curves.length) {
    const stepped = runsToShow().some((id) => data.runs[id].curves?.x);
    const why = stepped ? "These cells have no record of this." : "No step was recorded yet.";
    $("curve-said").textContent = "";
    return nothing("curves", chosenGroups().length ? why : NOTHING_CHOSEN);
  }
  const few = curves.length <= FEW;
  const plot = frame("curves", {
    x: [0, endStep()],
    y: padded(heightsOf(curves.map(({curve}) => curve), few)),
    xTicks: stepTicks(endStep()),
    xTitle: "step",
    yTitle: base ? `minus the pinned${choice.unit ? ` (${choice.unit})` : ""}` : choice.unit,
    height: 250,
    left: 56,
  });
  const {layer, X, Y} = plot;
  for (const {group, curve} of curves) {
    const {x, y, half} = curve;
    const xs = x.map(X);
    if (few && half.some(Number.isFinite))
      layer.append(
        draw("path", {
          class: `spread ${group.colour}`,
          d: areaOf(
            xs,
            y.map((value, i) => Y(value - half[i])),
            y.map((value, i) => Y(value + half[i])),
          ),
        }),
      );
    for (const [id, trace] of state.seeds ? tracesOf(group, choice.key) : [])
      if (trace?.x.length)
        layer.append(
          draw("path", {
            class: `trace ${group.colour}`,
            "data-trace": id,
            d: lineOf(Array.from(trace.x, X), Array.from(trace.y, Y)),
          }),
        );
    layer.append(
      draw("path", {
        class: `curve ${group.colour} ${group.key === hovered ? "hover" : ""}`,
        "data-key": group.key,
        "data-last": x[x.length - 1],
        "stroke-dasharray": dashOf(group),
        d: lineOf(xs, y.map(Y)),
      }),
    );
  }
  drawnCurves = {plot, choice, curves, apart: all.filter(({curve}) => curve.apart)};
  plot.svg.addEventListener("pointermove", pointAtCurve);
  plot.svg.addEventListener("pointerleave", () => {
    hover(null);
    tip.hide();
  });
  scrub("curves", plot, (place, event) => curveAt(place, event)?.group.key);
  paintCurveStep();
};

// The curve below the pointer, or the nearest one: a line is too thin to be met.
const curveAt = ([x, y], {target}) => {
  const {plot, curves} = drawnCurves;
  const {key, trace} = target.dataset ?? {};
  const met = curves.find(({group}) => (trace ? group.runs.includes(trace) : group.key === key));
  if (met) return met;
  let [nearest, least] = [null, NEAR];
  for (const each of curves) {
    const [step, value] = pointOf(each.curve, plot.unX(x));
    const distance = Math.hypot(plot.X(step) - x, plot.Y(value) - y);
    if (distance < least) [nearest, least] = [each, distance];
  }
  return nearest;
};
// Where a curve is at a step that may lie between two of its points; beyond its ends, the end.
const pointOf = ({x, y}, step) => {
  const place = Math.max(x[0], Math.min(x[x.length - 1], step));
  const i = at({x}, place);
  const share = i + 1 < x.length ? (place - x[i]) / (x[i + 1] - x[i]) : 0;
  return [place, share ? y[i] + share * (y[i + 1] - y[i]) : y[i]];
};
const pointAtCurve = (event) => {
  const {plot, choice, curves} = drawnCurves;
  const area = plot.svg.getBoundingClientRect();
  const place = [event.clientX - area.left, event.clientY - area.top];
  const met = curveAt(place, event);
  plot.svg.classList.toggle("pointing", Boolean(met));
  hover(met?.group.key ?? null);
  if (!met) return tip.hide();
  const run = data.runs[event.target.dataset.trace];
  const {i, first, last} = bucketAt(met.curve, Math.round(plot.unX(place[0])));
  const where = met.curve.width > 1 ? `steps ${first} to ${last}` : `step ${last}`;
  const value = run ? "" : `${where}: ${valueAt(met.curve, i)}${choice.unit ? ` ${choice.unit}` : ""}`;
  tip.show(event, run ? `${met.group.label} · seed ${run.seed}` : met.group.label, ...[value].filter(Boolean));
};
const valueAt = ({y, half}, i) => {
  const based = Boolean(baseline());
  const [low, high] = [y[i] - half[i], y[i] + half[i]].map((end) => fixed(end, 3, true));
  return `${fixed(y[i], 3, based)}${based && Number.isFinite(half[i]) ? ` [${low}, ${high}]` : ""}`;
};

// Names of some cells of many.
const someOf = (curves) => {
  const labels = curves.map(({group}) => group.label);
  return `${labels.slice(0, 2).join("; ")}${labels.length > 2 ? `; ${labels.length - 2} more` : ""}`;
};
// How differences from the pinned cell were taken, and why some have no interval.
const howTaken = () => {
  const {curves, apart} = drawnCurves;
  const others = curves.filter(({group}) => !isBase(group));
  const [none, one, several] = [(n) => n === 0, (n) => n === 1, (n) => n > 1].map((has) =>
    others.filter(({curve}) => has(curve.shared)),
  );
  const drawnAs = curves.length <= FEW ? "shade: " : `of more than ${FEW} curves not drawn: `;
  return [
    `Each minus ${baseline().label}.`,
    several.length ? `Seed by seed: mean over the seeds that both have; ${drawnAs}its 95% t-interval.` : "",
    one.length ? `One seed in common, no interval: ${someOf(one)}.` : "",
    none.length ? `No seed in common, difference of the means without an interval: ${someOf(none)}.` : "",
    apart.length ? `${APART}, another unit: ${someOf(apart)}.` : "",
  ];
};
// Of a running cell in focus: when its next point comes, where that is not with its next step.
const nextPoint = (column) => {
  const run = data.runs[focus()];
  if (!LIVE || run?.state !== "running" || !run.curves?.x || !run.probe_every) return "";
  if (run.curves.y[column === "root_kl" ? "probe_kl" : column][0] !== "p") return "";
  const probe = Math.ceil(run.step / run.probe_every) * run.probe_every + 1;
  const next = Math.min(probe, run.total ?? probe);
  return `Measured at probes: ${groupOfRun(focus()).label} is at step ${run.step}, its next point comes at step ${next}.`;
};

// What a step alone changes.
const paintCurveStep = () => {
  if (!drawnCurves) return;
  const {plot, choice, curves} = drawnCurves;
  const base = baseline();
  cursor(plot, stepNow());
  const told = curves.filter(({group}) => !base || !isBase(group));
  const said = told.slice(0, 4).map(({group, curve}) => {
    const {i} = bucketAt(curve, stepNow());
    const place = curve.x[i];
    const elsewhere = curve.width > 1 ? place < stepNow() : place !== stepNow();
    const about = [
      elsewhere ? `step ${place}` : "",
      curve.fewer === null ? "" : `over fewer seeds from step ${curve.fewer}`,
    ].filter(Boolean);
    return `${group.label}: ${valueAt(curve, i)}${about.length ? ` (${about.join(", ")})` : ""}`;
  });
  const width = Math.max(...curves.map(({curve}) => curve.width));
  const where = width > 1 ? `Around step ${stepNow()}, means of ${width} steps` : `Step ${stepNow()}`;
  const spread = curves.length <= FEW && data.head.several ? ["Band: ± one standard deviation over seeds."] : [];
  const end = told.length > 4 ? "; …" : said.length ? "." : "";
  $("curve-said").textContent = [
    `${where}${choice.unit ? ` (${choice.unit})` : ""}. ${said.join("; ")}${end}`,
    ...(base ? howTaken() : spread),
    nextPoint(choice.key),
  ]
    .filter(Boolean)
    .join(" ");
};

onPaint([...VIEW, "curve", "seeds", "base"], paintCurves);
onPaint(["step"], paintCurveStep);
