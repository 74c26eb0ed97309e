// Where the data comes from: the page itself, or the server that it came from. Both answer alike.

const COLOURS = 12; // of style.css
const data = {head: null, runs: {}, groups: new Map(), means: new Map(), gaps: new Map(), news: new Set(), version: 0};
const LIVE = document.body.dataset.live === "yes";
const POLL = 1500; // milliseconds

const ask = async (path) => {
  const answer = await fetch(path, {cache: "no-store"});
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
};

// What was answered to a question, as long as it is the newest; a failure is no answer.
const remember = (make) => {
  const known = new Map();
  return (key, stamp = "") => {
    if (known.get(key)?.stamp !== stamp) {
      const entry = {stamp, answer: make(key)};
      known.set(key, entry);
      entry.answer.catch(() => known.get(key) === entry && known.delete(key));
    }
    return known.get(key).answer;
  };
};

const embedded = () => {
  const whole = JSON.parse($("data").textContent);
  const place = () => new Map(data.head.groups.map((group, i) => [group.key, i]));
  return {
    load: async () => whole,
    details: async (run) => ({...whole.details, detail: whole.details.runs[run] ?? {}}),
    records: async () => null,
    differences: remember(async (base) => {
      const {metrics, values} = whole.differences;
      const [at, count, numbers] = [place(), data.head.groups.length, unpack(values)];
      const of = {};
      for (const [key, i] of at) {
        const j = at.get(base);
        if (i === j) continue;
        const [first, second] = [Math.min(i, j), Math.max(i, j)];
        const row = first * count - (first * (first + 1)) / 2 + (second - first - 1);
        of[key] = metrics.map((_, m) => {
          const [value, half, paired] = numbers.subarray(
            3 * (row * metrics.length + m),
            3 * (row * metrics.length + m) + 3,
          );
          return [j < i ? value : -value, half, paired];
        });
      }
      return {metrics, of, note: whole.differences.note};
    }),
  };
};

const served = () => {
  const at = (what) => remember(async (key) => ask(`${what}/${encodeURIComponent(key)}`));
  const [details, records, differences] = [at("details"), at("records"), at("differences")];
  const now = (run) => `${data.runs[run]?.step} ${data.runs[run]?.state}`; // what it was then is not what it is
  const evaluated = (run) => `${now(run)} ${data.headVersion}`; // a later evaluation changes the tables, and no step
  return {
    load: () => ask(`state?after=${data.version}`),
    details: async (run) => {
      const answer = await details(run, evaluated(run));
      return {...answer, detail: answer.runs[run] ?? {}};
    },
    records: (run) => records(run, now(run)),
    differences: (base) => differences(base, data.headVersion), // a step more of a running cell does not change them
  };
};
const source = LIVE ? served() : embedded();

// Takes what a source says, and tells what is to be drawn anew: all of it, or only what steps alone have changed
// (`data.news` has whose), or nothing.
const take = (said) => {
  if (said.version !== undefined && said.version === data.version) return null;
  const same = said.head_version !== undefined && said.head_version === data.headVersion;
  data.version = said.version ?? 1;
  Object.assign(data.runs, said.runs);
  data.gaps.clear();
  for (const run of Object.keys(said.runs)) {
    data.news.add(run);
    data.means.delete(groupOfRun(run)?.key);
  }
  if (same) return "news";
  data.head = said.head;
  data.headVersion = said.head_version ?? 1;
  const known = new Set(said.head.groups.flatMap((group) => group.runs));
  for (const run of Object.keys(data.runs)) if (!known.has(run)) delete data.runs[run];
  const colours = [...new Set(said.head.groups.map((group) => group.objective))];
  data.groups = new Map(
    said.head.groups.map((group) => [group.key, {...group, colour: `c${colours.indexOf(group.objective) % COLOURS}`}]),
  );
  data.colours = colours;
  data.means = new Map();
  return "data";
};

// One column of a run: steps, values, and perhaps the extremes of each bucket.
const curveOf = (run, column, finer = null) => {
  const curves = finer ?? run.curves;
  if (!curves?.x) return null;
  const kept = (curves.unpacked ??= new Map());
  if (!kept.has(column)) {
    const name = column === "root_kl" ? "probe_kl" : column;
    const [kind, ...parts] = curves.y[name];
    let [y, low, high] = parts.map(unpack);
    const width = kind === "d" ? curves.width : 1; // steps in a bucket, whose last one is x
    if (column === "root_kl") y = y.map((value) => Math.sqrt(Math.max(0, value)));
    kept.set(column, {x: unpack(curves.x[kind]), y, low, high, width});
  }
  return kept.get(column);
};

const intervalsOf = (run) => {
  if (!run?.curves?.x) return [];
  if (!run.curves.intervals) {
    const flat = unpack(run.curves.i);
    run.curves.intervals = Array.from({length: flat.length / 8}, (_, i) => flat.subarray(8 * i, 8 * i + 8));
  }
  return run.curves.intervals;
};

// The mean of a setting's seeds, and how far they are apart (one standard deviation). A bucket that a running seed has
// not filled yet is the same bucket: its last step is no place of its own. `fewer`: from which step on seeds are missing.
const meanOf = (group, column) => {
  if (!data.means.has(group.key)) data.means.set(group.key, new Map());
  const means = data.means.get(group.key);
  if (!means.has(column)) {
    const curves = group.runs.map((id) => data.runs[id] && curveOf(data.runs[id], column));
    means.set(column, meanCurve(curves.filter((curve) => curve?.x.length)));
  }
  return means.get(column);
};
const meanCurve = (curves) => {
  const [seeds, width] = [curves.length, Math.max(1, ...curves.map((curve) => curve.width))];
  const sums = new Map();
  for (const curve of curves)
    curve.x.forEach((x, i) => {
      if (!Number.isFinite(curve.y[i])) return;
      const bucket = Math.ceil(x / width);
      const sum = sums.get(bucket) ?? {x, count: 0, sum: 0, squares: 0};
      sum.x = Math.max(sum.x, x);
      sum.count += 1;
      sum.sum += curve.y[i];
      sum.squares += curve.y[i] ** 2;
      sums.set(bucket, sum);
    });
  const all = [...sums.values()].sort((a, b) => a.x - b.x);
  const x = all.map((each) => each.x);
  const y = all.map((each) => each.sum / each.count);
  const spread = all.map(({count, squares}, i) =>
    count > 1 ? Math.sqrt(Math.max(0, (squares - count * y[i] ** 2) / (count - 1))) : 0,
  );
  const fewer = x[all.map(({count}) => count).lastIndexOf(seeds) + 1] ?? null;
  return {x, y, spread, seeds, width, fewer, counts: all.map(({count}) => count)};
};

// The bucket that a step lies in: its place, its first and its last step. Where every point is one step, that one.
const bucketAt = (curve, step) => {
  let i = at(curve, step);
  if (curve.width > 1 && curve.x[i] < step && i + 1 < curve.x.length) i += 1;
  return {i, first: Math.floor((curve.x[i] - 1) / curve.width) * curve.width + 1, last: curve.x[i]};
};
const at = (curve, step) => {
  // the last point up to a step
  if (!curve?.x.length) return -1;
  let [low, high] = [0, curve.x.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (curve.x[middle] <= step) low = middle;
    else high = middle - 1;
  }
  return low;
};
