// Parallel coordinates: the fields that vary, then what came of them. A line is a setting.

const AXES = 6; // numbers at most, behind the fields
const LINE = 13; // of text: words and numbers on an axis are so far apart at least
const LETTERS = 16; // of a word on an axis

const axesOf = () => {
  const groups = visible();
  const based = Boolean(baseline());
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
    minus: based,
    value: (group) => (isBase(group) ? 0 : (numberOf(group, i).value ?? null)),
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
        has: (group, chosen) => chosen.includes(String(axis.value(group))),
        spans: (chosen) => words.filter((word) => chosen.includes(word)).map((word) => [at.get(word), at.get(word)]),
        range: (low, high) => words.filter((word) => at.get(word) >= low && at.get(word) <= high),
      };
    }
    const bend = axis.log ? Math.log10 : (value) => value;
    const unbend = (value) => Number((axis.log ? 10 ** value : value).toPrecision(6));
    const [low, high] = padded(extent(values.map(bend)), 0.04);
    const place = (value) => (bend(value) - low) / (high - low || 1);
    const few = [...new Set(values)].sort((a, b) => a - b);
    const text = (value) => (axis.number ? shown(axis.number, value) : Number(value.toPrecision(3)).toString());
    const scale = axis.number?.percent ? 100 : 1;
    const round = () => {
      const all = ticksOf([scale * low, scale * high], 4);
      return scale === 100 && !axis.minus ? sharesOf(all) : all;
    };
    const ticks = !few.length
      ? [] // no number, no scale
      : few.length <= 6 && !axis.number
        ? few.map((value) => [place(value), text(value)])
        : round().map(([value, word]) => [
            (value / scale - low) / (high - low || 1),
            axis.log ? Number((10 ** value).toPrecision(2)).toString() : word,
          ]);
    return {
      ...axis,
      ticks,
      place: (group) => {
        const value = axis.value(group);
        return value === null || value === undefined ? null : place(value);
      },
      has: (group, [from, to]) => {
        const value = axis.value(group);
        return value !== null && value !== undefined && value >= from && value <= to;
      },
      spans: ([from, to]) => (few.length ? [[place(from), place(to)]] : []),
      range: (from, to) => [from, to].map((share) => unbend(low + share * (high - low))),
    };
  });
};

// Of all cells: what the filter hides now stays chosen when it is taken away.
const within = (axes, brushes) =>
  [...data.groups.values()]
    .filter((group) =>
      axes.every((axis) => {
        const range = brushes[axis.key];
        return !range || axis.has(group, range);
      }),
    )
    .map((group) => group.key);

// A cell with a value on one axis and none on its neighbours has a stub there, long enough to look out from the axis.
const STUB = 30;
const wayThrough = (xs, ys) => {
  const alone = (_, i) => Number.isFinite(ys[i]) && ![ys[i - 1], ys[i + 1]].some(Number.isFinite);
  const stubs = xs.flatMap((x, i) => (alone(x, i) ? [`M${x.toFixed(1)} ${ys[i].toFixed(1)}h${STUB}`] : []));
  const parts = ys.map((y, i) => (alone(y, i) ? NaN : y));
  return lineOf(xs, parts) + stubs.join("");
};

const paintParallel = () => {
  const axes = axesOf();
  const box = $("parallel").querySelector(".plot");
  if (!axes.length) {
    $("parallel-note").textContent = "";
    return nothing("parallel", "Nothing varies between the cells, and nothing was measured yet.");
  }
  const wide = Math.max(axes.length * 90, box.clientWidth);
  const most = Math.max(...axes.map((axis) => (axis.words ? axis.ticks.length : 0)));
  const first = axes[0].ticks.map(([, text]) => Math.min(text.length, LETTERS));
  const [top, tall, left] = [40, Math.max(170, most * LINE), Math.max(70, 14 + 7 * Math.max(0, ...first))];
  const gap = (wide - left - 56) / Math.max(1, axes.length - 1);
  const X = (i) => left + i * gap;
  const Y = (place) => top + tall * (1 - place);
  const named = `${headingOf("parallel")}: a line for each of ${visible().length} cells over ${axes.length} axes`;
  const svg = draw("svg", {width: wide, height: top + tall + 26, role: "group", "aria-label": named});
  const more = data.head.numbers.length - AXES;
  const rest = more > 0 ? ` ${more} more ${more === 1 ? "number is" : "numbers are"} in the table.` : "";
  $("parallel-note").textContent = `Drag along an axis, or select words, to choose cells.${rest}`;
  const lines = draw("g", {class: "lines"});
  const groups = visible().sort((a, b) => isShown(a.key) - isShown(b.key));
  for (const group of groups) {
    const places = axes.map((axis) => axis.place(group));
    lines.append(
      draw("path", {
        class: `line ${group.colour} ${isShown(group.key) ? "" : "dim"} ${state.selected.has(group.key) ? "chosen" : ""}`,
        "data-key": group.key,
        d: wayThrough(
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
  keepFocus(box, () => box.replaceChildren(svg));
};

const axisOf = (axis, axes, x, Y, top, tall, svg) => {
  const part = draw("g", {class: "axis", "data-axis": axis.key, transform: `translate(${x.toFixed(1)} 0)`});
  const title = draw(
    "text",
    {class: "title", x: 0, y: 14, "text-anchor": "middle"},
    symbols(axis.title, draw),
    axis.minus ? draw("tspan", {class: "minus", x: 0, dy: 13}, "minus the pinned") : null,
  );
  const line = draw("line", {x1: 0, x2: 0, y1: top, y2: top + tall});
  const grip = draw("rect", {class: "grip", x: -14, y: top - 6, width: 28, height: tall + 12});
  part.append(title, line, grip);
  let last = -Infinity; // where a number was written
  for (const [place, text] of axis.ticks) {
    part.append(draw("line", {x1: -4, x2: 0, y1: Y(place), y2: Y(place)}));
    if (!axis.words && tall * (place - last) < LINE) continue;
    last = place;
    const own = {class: "tick", x: -7, y: Y(place) + 4, "text-anchor": "end"};
    const word = draw("text", own, text.length > LETTERS ? `${text.slice(0, LETTERS - 1)}…` : text);
    if (axis.words) {
      fill(
        word,
        {
          class: "tick word",
          "data-word": text,
          "data-of": axis.key,
          tabindex: 0,
          role: "button",
          "aria-label": `${axis.title}: ${text}`,
          "aria-pressed": String(state.brushes[axis.key]?.includes(text) ?? false),
        },
        [],
      );
      word.addEventListener("click", () => toggleWord(axes, axis.key, text));
      word.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        toggleWord(axes, axis.key, text);
      });
    }
    part.append(word);
  }
  const held = (place) => Math.max(-0.03, Math.min(1.03, place)); // what lies beyond the axis is drawn at its end
  for (const [low, high] of axis.spans(state.brushes[axis.key] ?? (axis.words ? [] : [NaN, NaN]))) {
    if (!Number.isFinite(low)) continue;
    const [y0, y1] = [Y(held(high)), Y(held(low))];
    const room = Math.max(0, (8 - (y1 - y0)) / 2);
    part.append(draw("rect", {class: "brush", x: -9, width: 18, y: y0 - room, height: y1 - y0 + 2 * room}));
  }
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
    if (from === null) return; // pressed elsewhere
    const [begun, to] = [from, height(event)];
    from = null;
    if (Math.abs(to - begun) < 4) brush(axes, axis.key, null);
    else brush(axes, axis.key, axis.range(unY(Math.max(begun, to)), unY(Math.min(begun, to))));
  });
  grip.addEventListener("pointercancel", () => {
    from = null;
    shade?.remove();
    shade = null;
  });
  return part;
};

const toggleWord = (axes, key, word) => {
  const chosen = state.brushes[key] ?? [];
  brush(axes, key, chosen.includes(word) ? chosen.filter((each) => each !== word) : [...chosen, word]);
};

// A range of values, or words; none of them: the axis chooses nothing any more.
const brush = (axes, key, range) => {
  const brushes = {...state.brushes};
  if (range?.length) brushes[key] = range;
  else delete brushes[key];
  const keys = Object.keys(brushes).length ? within(axes, brushes) : [];
  select(keys, brushes);
};
onPaint(["data", "selected", "base", "filter", "brushes", "differences", "size"], paintParallel);
