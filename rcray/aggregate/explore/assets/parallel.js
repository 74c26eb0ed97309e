// Parallel coordinates: the fields that vary, then what came of them. A line is a setting.

const AXES = 6; // numbers at most, behind the fields

const axesOf = () => {
  const groups = visible();
  const fields = data.head.fields.map((field, i) => ({
    key: field.path,
    title: field.title,
    numeric: field.numeric,
    log: field.log,
    value: (group) => group.values[i],
  }));
  const numbers = data.head.numbers.slice(0, AXES).map((number, i) => ({
    key: number.key,
    title: number.unit ? `${number.title} (${number.unit})` : number.title,
    numeric: true,
    number,
    value: (group) => (group.key === state.base ? 0 : (numberOf(group, i).value ?? null)),
  }));
  return [...fields, ...numbers].map((axis) => {
    const values = groups.map(axis.value).filter((value) => value !== null && value !== undefined);
    if (!axis.numeric) {
      const words = [...new Set(values.map(String))];
      const at = new Map(words.map((word, i) => [word, words.length > 1 ? 1 - i / (words.length - 1) : 0.5]));
      return {
        ...axis,
        ticks: words.map((word) => [at.get(word), word]),
        place: (group) => at.get(String(axis.value(group))) ?? null,
        words: true,
      };
    }
    const bend = axis.log ? Math.log10 : (value) => value;
    const [low, high] = padded(extent(values.map(bend)), 0.04);
    const place = (value) => (bend(value) - low) / (high - low || 1);
    const few = [...new Set(values)].sort((a, b) => a - b);
    const text = (value) => (axis.number ? shown(axis.number, value) : Number(value.toPrecision(3)).toString());
    const ticks = !few.length
      ? [] // no number, no scale
      : few.length <= 6 && !axis.number
        ? few.map((value) => [place(value), text(value)])
        : ticksOf(axis.number?.percent ? [100 * low, 100 * high] : [low, high], 4).map(([value, word]) => {
            const own = axis.number?.percent ? value / 100 : value;
            return [(own - low) / (high - low || 1), axis.log ? Number((10 ** own).toPrecision(2)).toString() : word];
          });
    return {
      ...axis,
      ticks,
      place: (group) => {
        const value = axis.value(group);
        return value === null || value === undefined ? null : place(value);
      },
    };
  });
};

const within = (axes, brushes) =>
  visible()
    .filter((group) =>
      axes.every((axis) => {
        const range = brushes[axis.key];
        if (!range) return true;
        const place = axis.place(group);
        return place !== null && place >= range[0] - 1e-6 && place <= range[1] + 1e-6;
      }),
    )
    .map((group) => group.key);

const paintParallel = () => {
  const axes = axesOf();
  const box = $("parallel").querySelector(".plot");
  const wide = Math.max(axes.length * 100, box.clientWidth);
  const [top, tall, left] = [34, 176, 70];
  const gap = (wide - left - 56) / Math.max(1, axes.length - 1);
  const X = (i) => left + i * gap;
  const Y = (place) => top + tall * (1 - place);
  const svg = draw("svg", {width: wide, height: top + tall + 26, role: "img"});
  const lines = draw("g", {class: "lines"});
  const groups = visible().sort((a, b) => isShown(a.key) - isShown(b.key));
  for (const group of groups) {
    const places = axes.map((axis) => axis.place(group));
    lines.append(
      draw("path", {
        class: `line ${group.colour} ${isShown(group.key) ? "" : "dim"} ${state.selected.has(group.key) ? "chosen" : ""}`,
        "data-key": group.key,
        d: lineOf(
          places.map((_, i) => X(i)),
          places.map((place) => (place === null ? NaN : Y(place))),
        ),
        "stroke-dasharray": dashOf(group),
      }),
    );
  }
  svg.append(lines);
  axes.forEach((axis, i) => svg.append(axisOf(axis, axes, X(i), Y, top, tall, svg)));
  lines.addEventListener("pointermove", (event) => {
    const key = event.target.dataset.key;
    hover(key ?? null);
    if (key) tip.show(event, data.groups.get(key).label);
  });
  lines.addEventListener("pointerleave", () => {
    hover(null);
    tip.hide();
  });
  lines.addEventListener("click", (event) => event.target.dataset.key && toggle(event.target.dataset.key));
  box.replaceChildren(svg);
};

const axisOf = (axis, axes, x, Y, top, tall, svg) => {
  const part = draw("g", {class: "axis", "data-axis": axis.key, transform: `translate(${x.toFixed(1)} 0)`});
  const title = draw("text", {class: "title", x: 0, y: 16, "text-anchor": "middle"}, symbols(axis.title, draw));
  const line = draw("line", {x1: 0, x2: 0, y1: top, y2: top + tall});
  const grip = draw("rect", {class: "grip", x: -14, y: top - 6, width: 28, height: tall + 12});
  part.append(title, line, grip);
  for (const [place, text] of axis.ticks) {
    const word = draw(
      "text",
      {
        class: axis.words ? "tick word" : "tick",
        x: -7,
        y: Y(place) + 4,
        "text-anchor": "end",
        "data-word": axis.words ? text : null,
      },
      text.length > 16 ? `${text.slice(0, 15)}…` : text,
    );
    if (axis.words) word.addEventListener("click", () => brush(axes, axis.key, [place - 0.01, place + 0.01]));
    part.append(draw("line", {x1: -4, x2: 0, y1: Y(place), y2: Y(place)}), word);
  }
  const range = state.brushes[axis.key];
  if (range)
    part.append(
      draw("rect", {
        class: "brush",
        x: -9,
        width: 18,
        y: Y(Math.min(1.03, range[1])),
        height: Math.max(4, Y(Math.max(-0.03, range[0])) - Y(Math.min(1.03, range[1]))),
      }),
    );
  let shade = null;
  const own = draw("g", {});
  part.append(own);
  const unY = (y) => 1 - (y - top) / tall;
  let from = null;
  const height = (event) => event.clientY - svg.getBoundingClientRect().top;
  grip.addEventListener("pointerdown", (event) => {
    from = height(event);
    grip.setPointerCapture(event.pointerId);
  });
  grip.addEventListener("pointermove", (event) => {
    if (from === null) return;
    const to = height(event);
    if (!shade) own.append((shade = draw("rect", {class: "brush", x: -9, width: 18})));
    shade.setAttribute("y", Math.min(from, to));
    shade.setAttribute("height", Math.abs(to - from));
  });
  grip.addEventListener("pointerup", (event) => {
    const [begun, to] = [from, height(event)];
    from = null;
    if (Math.abs(to - begun) < 4) brush(axes, axis.key, null);
    else brush(axes, axis.key, [unY(Math.max(begun, to)), unY(Math.min(begun, to))]);
  });
  return part;
};

const brush = (axes, key, range) => {
  const brushes = {...state.brushes};
  if (range) brushes[key] = range;
  else delete brushes[key];
  const keys = Object.keys(brushes).length ? within(axes, brushes) : [];
  select(keys, brushes);
};
onPaint(["data", "selected", "base", "filter", "brushes", "differences", "size"], paintParallel);
