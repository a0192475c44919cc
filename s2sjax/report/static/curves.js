// Learning curves: a chart for each metric. The arrow keys or the pointer move a cursor over the steps.

const CHART = { width: 460, height: 210, left: 54, right: 20, top: 12, bottom: 28 };
const MOST_READ = 6;

// About `count` round numbers from low to high.
function ticks(low, high, count) {
  const rough = (high - low || Math.abs(high) || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 2.5, 5, 10].find((each) => each * power >= rough) || 10);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at += 1) found.push(at * step);
  return found;
}

function median(numbers) {
  return [...numbers].sort((a, b) => a - b)[Math.floor(numbers.length / 2)];
}

// lines: { label, run, dev, color, points: [[step, value], ...] or [[step, mean, low, high, runs], ...] }
// state.only: the number of the run whose values are read, or null for all.
function chart(title, lines, several, state = { only: null }) {
  const points = lines.flatMap((line) => line.points);
  const last = points.reduce((most, point) => Math.max(most, point[0]), 1);
  const extent = (line) => line.points.flatMap((point) => point.slice(1, 4)).reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  const extents = lines.map(extent);
  let low = Math.min(...extents.map(([least]) => least));
  // A line that explodes leaves the chart to the others: see training_curves.py.
  const [highs, begins] = [extents.map(([, most]) => most), lines.map((line) => line.points[0][3] ?? line.points[0][1])];
  let high = Math.min(Math.max(...highs), Math.max(low + 2 * (median(highs) - low), ...begins));
  if (low >= 0 && low <= high / 2) low = 0;
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const { width, height, left, right, top, bottom } = CHART;
  const x = (step) => left + (step / last) * (width - left - right);
  const y = (value) => height - bottom - ((value - low) / (high - low)) * (height - top - bottom);
  const style = (line) => ({ "data-run": line.run, css: line.color ? { "--run": line.color } : {} });
  const kind = (line) => `line ${several ? `run${line.run % 6}` : line.dev ? "run1" : "run0"}${several && line.dev ? " dev" : ""}`;
  const grid = ticks(low, high, 4).map((value) => [
    drawn("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
    drawn("text", { class: "tick", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)),
  ]);
  const below = ticks(0, last, 4).map((step) =>
    drawn("text", { class: "tick", x: x(step), y: height - 8, "text-anchor": "middle" }, short(step)));
  const path = (pairs) => pairs.map(([step, value]) => `${x(step)},${y(value)}`).join(" ");
  const curves = lines.map((line) => (line.points.length === 1
    ? drawn("circle", { ...style(line), class: `${kind(line)} dot`, cx: x(line.points[0][0]), cy: y(line.points[0][1]), r: 3 })
    : drawn("polyline", { ...style(line), class: kind(line), points: path(line.points) })));
  const bands = lines.filter((line) => line.points.some((point) => point[4] > 1)).map((line) => drawn("polygon", {
    ...style(line), class: kind(line).replace("line", "band"),
    points: path([...line.points.map((point) => [point[0], point[2]]), ...line.points.map((point) => [point[0], point[3]]).reverse()]) }));
  const area = { x: left - 4, y: top - 4, width: width - left - right + 8, height: height - top - bottom + 8 };
  const cursor = drawn("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
  const readout = element("p", { class: "readout", "aria-live": "polite" }, "\u00a0");
  const steps = [...new Set(points.map((point) => point[0]))].sort((a, b) => a - b);
  let at = steps.length;
  const show = (place) => {
    at = Math.min(Math.max(place, 0), steps.length - 1);
    const step = steps[at];
    cursor.setAttribute("x1", x(step));
    cursor.setAttribute("x2", x(step));
    cursor.setAttribute("visibility", "visible");
    const known = lines.filter((line) => state.only === null || line.run === state.only)
      .map((line) => [line, line.points.find((point) => point[0] === step)]).filter(([, point]) => point);
    const range = ([, , least, most, runs]) => (runs > 1 ? ` (${short(least)} to ${short(most)}, ${runs} runs)` : "");
    readout.replaceChildren(`step ${short(step)}: `, ...known.slice(0, MOST_READ).flatMap(([line, point], place) => [
      place ? ", " : "", data(line.label), ` ${short(point[1])}${range(point)}`]), known.length > MOST_READ ? ", …" : "");
  };
  const figure = drawn("svg", {
    viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "img",
    "aria-label": `${title} against the step, from ${short(lines[0].points[0][1])} to ${short(lines[0].points[lines[0].points.length - 1][1])}; arrow keys read the values`,
    onkeydown: (event) => {
      const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: steps.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      show(next);
    },
    onpointermove: (event) => {
      const box = figure.getBoundingClientRect();
      const step = (((event.clientX - box.left) / box.width) * width - left) / (width - left - right) * last;
      show(steps.reduce((best, each, place) => (Math.abs(each - step) < Math.abs(steps[best] - step) ? place : best), 0));
    },
  }, grid, below, drawn("svg", { ...area, viewBox: `${area.x} ${area.y} ${area.width} ${area.height}` }, bands.reverse(), curves.reverse()), cursor); // the first is on top
  return element("figure", { class: "chart" }, element("figcaption", {}, title), figure, readout);
}

function learningCurves(runs) {
  const panels = new Map();
  runs.forEach((run, number) => run.curves.forEach((curve) => {
    const points = curve.points.filter((point) => point[1] !== null);
    const label = runs.length > 1 ? `${run.label}${curve.dev ? " (dev)" : ""}` : curve.dev ? "dev" : "training";
    if (!points.length) return;
    if (!panels.has(curve.panel)) panels.set(curve.panel, []);
    panels.get(curve.panel).push({ label, run: number, dev: curve.dev, points });
  }));
  if (!panels.size) return [note("no learning curves: nothing has been logged yet")];
  const several = runs.length > 1;
  const names = [...panels.keys()].sort((a, b) => b.includes("loss") - a.includes("loss"));
  const key = several
    ? [...runs.map((run, number) => [`run${number % 6}`, run.label]), ["dev", "dev (dashed)"]]
    : [["run0", "training"], ["run1", "dev"]];
  return [
    element("ul", { class: "key" }, key.map(([kind, text]) => element("li", { class: kind }, data(text)))),
    element("div", { class: "charts" }, names.map((name) => chart(name, panels.get(name), several))),
  ];
}
