// Scores against one setting: a point for each run, and their mean at each value.
// setting: { name, scale: "log", "linear" or "names", values: [value, ...], labels: [text, ...] }
// points: { place (among the values), score, row, color, label, href }

const MOST_MEANS = 12;

function positions(setting) {
  if (setting.scale === "names") return setting.values.map((_, place) => (place + 0.5) / setting.values.length);
  const numbers = setting.values.map((value) => (setting.scale === "log" ? Math.log(value) : value));
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  return numbers.map((value) => 0.06 + 0.88 * (high === low ? 0.5 : (value - low) / (high - low)));
}

function scatter(setting, points, metric, select) {
  const { width, height, left, right, top, bottom } = CHART;
  const scores = points.map((point) => point.score);
  let [low, high] = [Math.min(...scores), Math.max(...scores)];
  const margin = 0.06 * (high - low || Math.abs(high) || 1);
  [low, high] = [low - margin, high + margin];
  const places = positions(setting).map((share) => left + share * (width - left - right));
  const y = (value) => height - bottom - ((value - low) / (high - low)) * (height - top - bottom);
  const grid = ticks(low, high, 4).map((value) => [
    drawn("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
    drawn("text", { class: "tick", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)),
  ]);
  // A label that would touch the one before it is left out.
  let free = -Infinity;
  const below = [...places.keys()].sort((a, b) => places[a] - places[b]).map((place) => {
    const text = setting.labels[place];
    const half = 3.3 * text.length;
    if (places[place] - half < free) return null;
    free = places[place] + half + 8;
    return drawn("text", { class: "tick", x: places[place], y: height - 8, "text-anchor": "middle" }, text);
  });
  const means = setting.values.map((_, place) => {
    const here = points.filter((point) => point.place === place).map((point) => point.score);
    return here.length ? [places[place], y(here.reduce((a, b) => a + b, 0) / here.length)] : null;
  }).filter((pair) => pair).sort((a, b) => a[0] - b[0]);
  const line = means.length <= MOST_MEANS ? drawn("polyline", { class: "mean", points: means.map((pair) => pair.join(",")).join(" ") }) : null;
  const readout = element("p", { class: "readout", "aria-live": "polite" }, "\u00a0");
  const dots = points.map((point) => {
    const show = () => { readout.replaceChildren(data(point.label), `: ${metric} ${short(point.score)}`); };
    return drawn("a", { class: "point", href: point.href, "data-run": point.row, css: { "--run": point.color }, onfocus: show,
      onpointerenter: show, "aria-label": `${point.label}: ${metric} ${short(point.score)}` },
      drawn("circle", { cx: places[point.place], cy: y(point.score), r: 4.5 }));
  });
  const figure = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${metric} against ${setting.name}: arrow keys move` },
    grid, below, line, dots);
  arrowKeys(figure, dots, alongLine(dots.length));
  return element("figure", { class: "chart" }, element("figcaption", {}, metric, " against ", data(setting.name),
    setting.scale === "log" ? " (logarithmic)" : ""), figure, readout);
}
