// Learning curves: a chart for each metric. The arrow keys or the pointer move a cursor over the steps.

const CHART = { width: 460, height: 210, left: 54, right: 14, top: 12, bottom: 28 };

// About `count` round numbers from low to high.
function ticks(low, high, count) {
  const rough = (high - low || Math.abs(high) || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 2.5, 5, 10].find((each) => each * power >= rough) || 10);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at += 1) found.push(at * step);
  return found;
}

// lines: { label, run, dev, points: [[step, value], ...] }
function chart(title, lines, several) {
  const points = lines.flatMap((line) => line.points);
  const last = Math.max(...points.map((point) => point[0]), 1);
  const numbers = points.map((point) => point[1]).sort((a, b) => a - b);
  let [low, high] = [numbers[0], numbers[numbers.length - 1]];
  if (low >= 0 && low <= high / 2) low = 0;
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const { width, height, left, right, top, bottom } = CHART;
  const x = (step) => left + (step / last) * (width - left - right);
  const y = (value) => height - bottom - ((value - low) / (high - low)) * (height - top - bottom);
  const kind = (line) => `line ${several ? `run${line.run % 6}` : line.dev ? "run1" : "run0"}${several && line.dev ? " dev" : ""}`;
  const grid = ticks(low, high, 4).map((value) => [
    drawn("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
    drawn("text", { class: "tick", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)),
  ]);
  const below = ticks(0, last, 4).map((step) =>
    drawn("text", { class: "tick", x: x(step), y: height - 8, "text-anchor": "middle" }, short(step)));
  const curves = lines.map((line) => line.points.length === 1
    ? drawn("circle", { class: `${kind(line)} dot`, cx: x(line.points[0][0]), cy: y(line.points[0][1]), r: 3 })
    : drawn("polyline", { class: kind(line), points: line.points.map(([step, value]) => `${x(step)},${y(value)}`).join(" ") }));
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
    const known = lines.map((line) => [line, line.points.find((point) => point[0] === step)]).filter(([, point]) => point);
    readout.replaceChildren(`step ${short(step)}: `, ...known.flatMap(([line, point], place) => [
      place ? ", " : "", data(line.label), ` ${short(point[1])}`]));
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
  }, grid, below, curves, cursor);
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
