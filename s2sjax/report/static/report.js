// The report: builds its sections from the values in the page.

function scoresTable(runs) {
  const signed = runs.some((run) => run.scores.some((score) => score.signature));
  const rows = runs.flatMap((run, number) => run.scores.map((score) => [
    data(run.label, { class: `run${number % 6} label` }), data(score.group ? `${score.label}, ${score.group}` : score.label),
    element("td", { class: "number" }, score.value), score.higher ? "higher" : "lower", element("td", { class: "number" }, short(score.examples)),
    ...(signed ? [score.signature ? data(score.signature, { class: "signature" }) : "–"] : []),
  ]));
  const missing = runs.filter((run) => run.missing).map((run) => note(`${run.label} has no scores: ${run.missing}`));
  const head = ["run", "metric", "score", "better is", "examples", ...(signed ? ["signature"] : [])];
  return [rows.length ? table("scores", head, rows) : null, ...missing];
}

function comparisons(report) {
  const base = report.runs[report.base];
  return Object.entries(report.comparisons).map(([number, found]) => {
    const run = report.runs[number];
    const title = element("h3", {}, data(run.label), " against ", data(base.label));
    if (found.why) return [title, note(`not compared: ${found.why}`)];
    const rows = found.rows.map(([metric, a, b, difference, p, verdict]) => [
      metric, ...[a, b, difference, p].map((cell) => element("td", { class: "number" }, cell)),
      verdict.replace(/^A is/, `${base.label} is`).replace(/^B is/, `${run.label} is`)]);
    return [title, table("significance", ["metric", data(base.label), data(run.label), "difference", "p", "at p < 0.05"], rows),
      note(`paired bootstrap resampling, ${short(found.resamples)} resamples; ± is half the width of the 95% confidence interval`),
      ...found.notes.map(note)];
  }).flat();
}

function lengthTable(lengths, shown) {
  if (lengths.why) return [note(lengths.why)];
  const most = Math.max(...lengths.buckets.flatMap((bucket) => bucket.values), 1e-9);
  const bar = (value, run) => element("td", {}, value === null ? "–" : [
    element("span", { class: "value" }, value.toFixed(2), lengths.format ? "%" : ""),
    element("span", { class: `bar run${shown[run] % 6}`, css: { "--share": Math.max(value, 0) / most } })]);
  const rows = lengths.buckets.map((bucket) => [
    bucket.low === bucket.high ? `${bucket.low}` : `${bucket.low} to ${bucket.high}`, element("td", { class: "number" }, short(bucket.examples)),
    ...bucket.values.map(bar)]);
  const head = [`source length (${lengths.unit})`, "examples", ...lengths.labels.map((label) => (
    lengths.labels.length > 1 ? data(`${lengths.metric} of ${label}`) : lengths.metric))];
  return [table("quality by source length", head, rows), note(`${lengths.higher ? "higher" : "lower"} is better; each row is scored as a separate corpus`)];
}

function configuration(report) {
  const several = report.runs.length > 1;
  const differs = (row) => row.slice(1).some((value) => value !== row[1]);
  const state = { text: "", differing: several };
  const place = element("div", {});
  const draw = () => {
    const rows = report.fields.filter((row) => (!state.differing || differs(row)) && row[0].includes(state.text));
    const cells = rows.map((row) => element("tr", { class: several && differs(row) ? "differs" : null },
      element("th", { scope: "row" }, several && differs(row) ? "≠ " : "", data(row[0])),
      row.slice(1).map((value) => element("td", {}, value === null ? "–" : data(value)))));
    place.replaceChildren(rows.length ? table("configuration", ["field", ...report.runs.map((run) => data(run.label))], cells)
      : note(state.text ? "no such field" : "the runs have the same configuration"));
  };
  draw();
  const only = element("label", {}, element("input", { type: "checkbox", checked: several,
    onchange: (event) => { state.differing = event.target.checked; draw(); } }), " only fields that differ");
  const find = element("label", {}, "find ", element("input", { type: "search", oninput: (event) => { state.text = event.target.value; draw(); } }));
  return [element("p", { class: "controls" }, several ? only : null, find), place];
}

function speedTable(runs) {
  const names = [...new Set(runs.flatMap((run) => run.speed.map((row) => row[0])))];
  if (!names.length) return [note("nothing has been logged yet")];
  const value = (run, name) => (run.speed.find((row) => row[0] === name) || ["", "–"])[1];
  const memory = names.some((name) => name.startsWith("memory")) ? null : note("memory was not logged: the backend does not report it, or an older version of s2sjax trained the run");
  return [table("speed and memory", ["", ...runs.map((run) => data(run.label))],
    names.map((name) => [name, ...runs.map((run) => element("td", { class: "number" }, value(run, name)))])), memory];
}

function outputsSection(examples, shown) {
  if (!examples) return [note("there are no outputs: no run has been evaluated")];
  const left = examples.views.flatMap((views, run) => views.why.map((why) => `${examples.labels.length > 1 ? `${examples.labels[run]}: ` : ""}${why}`));
  const legend = element("p", { class: "note" }, element("del", {}, "struck out"), ": in the reference only; ", element("ins", {}, "underlined"), ": in the output only");
  return [examples.unaligned ? note(examples.unaligned) : legend, ...left.map(note), ...outputsView({ ...examples, shown })];
}

// The heads of one sentence: cross-attention, and the self-attention of both sides.
function headsSection(examples) {
  const found = examples ? examples.views.map((views, run) => [views.heads, run]).filter(([heads]) => heads) : [];
  if (!found.length) return [note("no run has attention with several heads, or its model is not there")];
  return found.flatMap(([heads, run]) => [
    element("p", {}, examples.labels.length > 1 ? [data(examples.labels[run]), ": "] : null, `example ${heads.row + 1}, `, data(examples.sources[heads.row])),
    ...Object.entries(heads.views).flatMap(([of, view]) => [element("h3", {}, `Attention ${ATTENTION_OF[of]}`), headsFigure(view)])]);
}

function showReport() {
  const report = values();
  const runs = report.runs;
  const sections = [
    section("scores", "Scores", scoresTable(runs), comparisons(report)),
    section("curves", "Learning curves", learningCurves(runs)),
    section("lengths", "Quality by source length", lengthTable(report.lengths, report.shown)),
    section("outputs", "Outputs, best and worst", outputsSection(report.examples, report.shown)),
    section("heads", "Attention by layer and head", headsSection(report.examples)),
    section("speed", "Speed and memory", speedTable(runs)),
    section("configuration", "Configuration", configuration(report)),
  ];
  const about = element("ul", { class: "about" }, runs.map((run, number) => element("li", {},
    data(run.label, { class: `run${number % 6} label` }), `: ${run.model}, ${run.task}, in `, element("code", {}, data(run.folder)), run.evaluation ? `; ${run.evaluation}` : "")));
  const links = sections.map((each) => element("a", { href: `#${each.id}` }, each.firstChild.textContent));
  document.getElementById("page").append(
    element("header", {}, element("h1", {}, "s2sjax report"), about, element("nav", { "aria-label": "sections" }, links)),
    ...sections, element("footer", {}, `s2sjax ${report.version}, ${report.date.replace("T", " ").slice(0, 16)} UTC`));
}

showReport();
