// Two planes of settings: where both likelihoods went, and what accuracy was had for the distance.

const indexOf = (key) => data.head.numbers.findIndex((number) => number.key === key);

// The states of a setting's runs in words, none where all are done; `ended`: none goes on, and not all are done.
const fateOf = (group) => {
  const own = states(group);
  if (own.every((word) => word === "ok" || word === "cached")) return {said: "", ended: false};
  const words = statesOf(group).map(([word, count]) => (own.length > 1 ? `${count} ${word}` : word));
  return {said: words.join(", "), ended: !own.some((word) => word === "running" || word === "pending")};
};

// Where a setting stands, by two numbers; one that has none stands where its newest probe is.
const placeOf = (group, [first, second], columns) => {
  const [x, y] = [first, second].map((index) => (index < 0 ? {word: ""} : numberOf(group, index)));
  if (x.word === undefined && y.word === undefined) return {x, y};
  if (baseline() && !isBase(group)) return null;
  const curves = columns.map((column) => meanOf(group, column));
  if (!curves.every((curve) => curve.x.length)) return null;
  const [a, b] = curves.map((curve) => curve.y[curve.y.length - 1]);
  if (!Number.isFinite(a) || !Number.isFinite(b)) return null;
  const step = curves[0].x[curves[0].x.length - 1];
  return {x: {value: a}, y: {value: b}, probe: step};
};

// The way there, on the probe set, as far as the step that is looked at.
const wayOf = (group, columns) => {
  const [xs, ys] = columns.map((column) => meanOf(group, column));
  return xs.x.map((step, i) => [step, xs.y[i], ys.y[i]]);
};

const scatter = (card, {keys, columns, percent, titles, zero, corners}) => {
  const indices = keys.map(indexOf);
  const inView = visible();
  const places = new Map(inView.map((group) => [group, placeOf(group, indices, columns)]).filter(([, place]) => place));
  if (!places.size) return nothing(card, inView.length ? "No cell has both numbers yet." : NO_MATCH);
  const based = Boolean(baseline());
  const shown = [...places].filter(([group]) => !state.zoom || isShown(group.key));
  const scale = [1, percent ? 100 : 1];
  const fits = (axis) => {
    const ends = shown.flatMap(([group, place]) => {
      if (based && group.key === state.base) return [0];
      const {value, half} = place[axis];
      const reach = based && Number.isFinite(half) ? half : 0;
      return [value - reach, value + reach];
    });
    const ways = based
      ? []
      : shown
          .filter(([group]) => state.selected.has(group.key))
          .flatMap(([group]) => wayOf(group, columns).map((point) => point[axis === "x" ? 1 : 2]));
    return padded(
      extent([...ends, ...ways, ...(zero || based ? [0] : [])].map((value) => value * scale[axis === "x" ? 0 : 1])),
      0.08,
    );
  };
  const names = titles.map((title) => (based ? `${title.replace(", held-out", "")}, minus the pinned` : title));
  const y = fits("y");
  const yTicks = percent && !based ? sharesOf(ticksOf(y)) : undefined;
  const plot = frame(card, {x: fits("x"), y, yTicks, xTitle: names[0], yTitle: names[1], height: 292});
  const {layer, X, Y} = plot;
  if (zero || based) zeroLines(plot);
  const marks = [];
  for (const [group, place] of places) {
    const own = based && group.key === state.base;
    const [x, y] = own ? [0, 0] : [place.x.value * scale[0], place.y.value * scale[1]];
    const dim = !own && !isShown(group.key);
    if (state.selected.has(group.key) && !based) {
      const way = wayOf(group, columns);
      layer.append(
        draw("path", {
          class: `way ${group.colour}`,
          d: lineOf(
            way.map((p) => X(p[1])),
            way.map((p) => Y(p[2] * scale[1])),
          ),
        }),
      );
      const here = way.filter((point) => point[0] <= (state.step ?? Infinity)).pop();
      if (here && state.step)
        layer.append(
          draw("circle", {class: `here ${group.colour}`, cx: X(here[1]), cy: Y(here[2] * scale[1]), r: 3.5}),
        );
    }
    if (!own && !dim && (based || state.selected.has(group.key))) {
      for (const [axis, half] of [
        ["x", place.x.half],
        ["y", place.y.half * scale[1]],
      ]) {
        if (!Number.isFinite(half)) continue;
        const ends =
          axis === "x"
            ? {x1: X(x - half), x2: X(x + half), y1: Y(y), y2: Y(y)}
            : {x1: X(x), x2: X(x), y1: Y(y - half), y2: Y(y + half)};
        layer.append(draw("line", {class: `whisker ${group.colour}`, ...ends}));
      }
    }
    const fate = fateOf(group);
    const standing = place.probe === undefined ? "" : fate.ended ? "ended" : "passing";
    const mark = markOf(group, X(x), Y(y), 5.5, `${dim ? "dim" : ""} ${standing} ${own ? "own" : ""}`);
    mark.addEventListener("pointermove", (event) => {
      hover(group.key);
      const said = keys.map((key, i) => indices[i] >= 0 && sentence(group, indices[i])).filter(Boolean);
      const which = fate.ended ? "its last" : fate.said ? "on the way: newest" : "not evaluated: last";
      const measured = place.probe === undefined ? said : [`${which} probe, step ${place.probe}`];
      const lines = [fate.said, ...measured];
      tip.show(event, group.label, ...lines.filter(Boolean));
    });
    mark.addEventListener("pointerleave", () => {
      hover(null);
      tip.hide();
    });
    marks.push([mark, X(x), Y(y), group.key, dim]);
  }
  if (corners && !based) cornersOf(plot, corners, marks);
  marks.sort((a, b) => b[4] - a[4]).forEach(([mark]) => layer.append(mark));
  brushed(card, plot, marks);
};

const sentence = (group, index) => {
  const [number, entry] = [data.head.numbers[index], numberOf(group, index)];
  if (entry.word !== undefined) return `${number.title}: ${entry.word}`;
  const half = Number.isFinite(entry.half)
    ? ` (95%: ${shown(number, entry.value - entry.half)} to ${shown(number, entry.value + entry.half)})`
    : "";
  return `${number.title} ${shown(number, entry.value, number.sign || entry.difference)}${number.unit ? ` ${number.unit}` : ""}${half}`;
};

// What each quarter means, in whichever of its corners no mark lies. Where there is no room for the name, it is left
// out: it would stand in the neighbour's, and lie.
const cornersOf = ({layer, X, Y, left, top, inner, tall}, corners, marks) => {
  corners.forEach((text, i) => {
    const [x0, x1] = i % 2 ? [X(0), left + inner] : [left, X(0)];
    const [y0, y1] = i > 1 ? [Y(0), top + tall] : [top, Y(0)];
    const name = draw("text", {class: "corner"}, text);
    layer.append(name);
    const long = name.getComputedTextLength();
    if (long > x1 - x0 - 10 || y1 - y0 < 18) return name.remove();
    const xs = i % 2 ? [x1 - 6 - long, x0 + 6] : [x0 + 6, x1 - 6 - long];
    const ys = i > 1 ? [y1 - 6, y0 + 13] : [y0 + 13, y1 - 6];
    const free = ([x, y]) =>
      !marks.some(([, mx, my]) => mx > x - 8 && mx < x + long + 8 && my > y - 18 && my < y + 10);
    const places = ys.flatMap((y) => xs.map((x) => [x, y]));
    const place = places.find(free);
    if (!place) return name.remove();
    fill(name, {x: place[0].toFixed(1), y: place[1].toFixed(1)}, []);
  });
};

// A press on a mark selects it or lets it go; a drag selects what lies in the rectangle, with shift in addition. What a
// zoom leaves outside of the frame is neither seen nor selected.
const brushed = (card, plot, all) => {
  const {left, top, inner, tall} = plot;
  const marks = all.filter(([, x, y]) => x >= left && x <= left + inner && y >= top && y <= top + tall);
  let box = null;
  dragging(card, {
    cancel: () => {
      box?.remove();
      box = null;
    },
    move: ([x0, y0], [x1, y1]) => {
      if (!box && Math.hypot(x1 - x0, y1 - y0) < 4) return;
      if (!box) plot.svg.append((box = draw("rect", {class: "brush"})));
      for (const [name, value] of Object.entries({
        x: Math.min(x0, x1),
        y: Math.min(y0, y1),
        width: Math.abs(x1 - x0),
        height: Math.abs(y1 - y0),
      }))
        box.setAttribute(name, value);
    },
    end: ([x0, y0], [x1, y1], event) => {
      if (box) {
        box.remove();
        box = null;
        const inside = marks.filter(
          ([, x, y]) =>
            x >= Math.min(x0, x1) && x <= Math.max(x0, x1) && y >= Math.min(y0, y1) && y <= Math.max(y0, y1),
        );
        const keys = inside.map(([, , , key]) => key);
        if (keys.length) select(event.shiftKey ? [...state.selected, ...keys] : keys);
        return;
      }
      const near = marks.map(([, x, y, key]) => [Math.hypot(x - x1, y - y1), key]).sort((a, b) => a[0] - b[0])[0];
      if (near && near[0] < 12) toggle(near[1]);
    },
  });
};

// Steps move nothing here but by a probe: the mark of a cell on its way, and the way of one that is selected.
const probed = new Map();
const newestProbe = (group) => meanOf(group, "probe_z_w").x.at(-1);
const paintProbes = () => {
  const groups = new Set([...data.news].map(groupOfRun).filter(Boolean));
  if ([...groups].some((group) => probed.get(group.key) !== newestProbe(group))) paintOverview();
};

const paintOverview = () => {
  const unit = data.head.unit;
  for (const group of data.groups.values()) probed.set(group.key, newestProbe(group));
  scatter("plane", {
    keys: ["preference/drift_w", "preference/drift_l"],
    columns: ["probe_z_w", "probe_z_l"],
    zero: true,
    titles: [`Δz_w, held-out (${unit})`, `Δz_l, held-out (${unit})`],
    corners: ["reversed", "i: both rise", "ii: both fall", "iii: winner kept, loser down"],
  });
  scatter("frontier", {
    keys: ["dynamics/root_kl", "preference/accuracy"],
    columns: ["root_kl", "probe_accuracy"],
    percent: true,
    titles: ["√KL to the start model, per token (√nats)", "accuracy, held-out (%)"],
  });
  const kinds = [...new Set([...data.groups.values()].map((group) => group.kind))];
  $("legend").replaceChildren(
    ...data.colours.map((name, i) => el("span", {class: "key"}, el("span", {class: `swatch c${i % COLOURS}`}), name)),
    data.colours.length > COLOURS
      ? el("span", {class: "key"}, `${data.colours.length} objectives share ${COLOURS} colours`)
      : "",
    ...kinds.map((kind) =>
      el(
        "span",
        {class: "key"},
        glyph({kind, colour: "ink", key: ""}),
        draw(
          "svg",
          {class: "sample-line", width: 26, height: 8, "aria-hidden": "true"},
          draw("line", {x1: 0, x2: 26, y1: 4, y2: 4, "stroke-dasharray": dashOf({kind})}),
        ),
        kind === "none" ? "no calibration (no RC)" : kind,
      ),
    ),
    [...data.groups.values()].some((group) => !states(group).some((word) => word === "ok" || word === "cached"))
      ? el("span", {class: "key"}, "dashed mark: on the way, at its newest probe; ×: ended without a result, at its last")
      : "",
    el("span", {class: "key"}, "drag: select the marks in a rectangle, with Shift in addition"),
    el("span", {class: "key"}, "of selected cells: thin line, the way on the probe set; cross, the 95% interval"),
  );
  $("notes").replaceChildren(...data.head.notes.map((note) => el("p", {}, symbols(note))));
};
// A step moves a mark along the ways of selected cells, and nothing else here.
const paintWays = () => state.selected.size && !baseline() && paintOverview();
onPaint(["data", "selected", "base", "filter", "zoom", "differences", "size"], paintOverview);
onPaint(["step"], paintWays);
onPaint(["news"], paintProbes);
