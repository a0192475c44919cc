// The report of a sweep: builds its sections from the values in the page.

// Few combinations have the colours of runs; many are coloured from the best to the worst.
function colors(count) {
  return [...Array(count).keys()].map((row) => (count <= 6 ? `var(--run${row})`
    : `color-mix(in oklch, var(--run0), var(--run1) ${Math.round((100 * row) / (count - 1))}%)`));
}

// A table that a click on a heading sorts; a second click reverses it. Rows without a value are last.
// rows: { cells: [node or text, ...], keys: [number, text or null, ...], attributes }. The first `names` columns name a row.
function sortable(label, head, rows, names) {
  const state = { column: -1, up: true };
  const kind = (column) => (column < names ? "name" : "number");
  const body = element("tbody", {});
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  const draw = () => {
    const order = state.column < 0 ? rows : [...rows].sort(({ keys: { [state.column]: a } }, { keys: { [state.column]: b } }) => (
      (a === null) - (b === null) || (a === null ? 0 : compare(a, b) * (state.up ? 1 : -1))));
    body.replaceChildren(...order.map((row) => row.node));
    headings.forEach((each, column) => each.setAttribute("aria-sort", column !== state.column ? "none" : state.up ? "ascending" : "descending"));
  };
  for (const row of rows) {
    row.node = element("tr", row.attributes, row.cells.map((cell, column) => element("td", { class: kind(column) }, cell)));
  }
  const headings = head.map((text, column) => element("th", { class: kind(column), "aria-sort": "none" },
    element("button", { type: "button", class: "sort", onclick: () => {
      Object.assign(state, { column, up: state.column === column ? !state.up : true });
      draw();
    } }, data(text))));
  draw();
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    element("table", {}, element("thead", {}, element("tr", {}, headings)), body));
}

// Emphasises the combination that is pointed at, or else the one that was clicked, everywhere in the page.
function emphasis() {
  const state = { only: null, pinned: null, buttons: [] };
  const apply = (row) => {
    state.only = row;
    for (const each of document.querySelectorAll(".chart [data-run]")) each.classList.toggle("faded", row !== null && each.dataset.run !== String(row));
  };
  const listen = (row) => ({ onpointerenter: () => apply(row), onpointerleave: () => apply(state.pinned), onfocusin: () => apply(row), onfocusout: () => apply(state.pinned) });
  const toggle = (row) => {
    state.pinned = state.pinned === row ? null : row;
    state.buttons.forEach((button, number) => button.setAttribute("aria-pressed", number === state.pinned));
    apply(row);
  };
  return { state, listen, toggle };
}

function legend(sweep, shades, { state, listen, toggle }, dashes) {
  state.buttons = sweep.rows.map((row, number) => element("button", { type: "button", "aria-pressed": false, onclick: () => toggle(number) }, data(row.label)));
  return element("ul", { class: `key${sweep.rows.length > 6 ? " long" : ""}` },
    sweep.rows.map((row, number) => element("li", { css: { "--run": shades[number] }, ...listen(number) }, state.buttons[number])),
    dashes ? element("li", { class: "dev" }, "dev (dashed)") : null);
}

function resultTable(sweep, shades, { listen }) {
  const rows = sweep.rows.map((row, number) => ({
    keys: row.keys, attributes: { class: row.best ? "best" : null, ...listen(number) },
    cells: row.cells.map((cell, column) => (column ? cell
      : [element("span", { class: "swatch", css: { "--run": shades[number] } }), data(cell)])),
  }));
  return [sortable("result", sweep.head, rows, sweep.settings.length), ...sweep.remarks.map(note)];
}

function sweepCurves(sweep, shades, focus) {
  const panels = new Map();
  for (const { row, panel, dev, points } of sweep.curves) {
    if (!panels.has(panel)) panels.set(panel, []);
    const dashed = dev && sweep.curves.some((other) => other.panel === panel && !other.dev);
    panels.get(panel).push({ label: `${sweep.rows[row].label}${dashed ? " (dev)" : ""}`, run: row, dev: dashed, points, color: shades[row] });
  }
  if (!panels.size) return [note("no learning curves: nothing has been logged yet")];
  const names = [...panels.keys()].sort((a, b) => b.includes("loss") - a.includes("loss"));
  const dashes = [...panels.values()].flat().some((line) => line.dev);
  return [legend(sweep, shades, focus, dashes), element("div", { class: "charts" }, names.map((name) => chart(name, panels.get(name), true, focus.state))),
    note("lines are means over seeds, bands reach from the lowest to the highest; point at a combination to emphasise it, click to keep it")];
}

function settingCharts(sweep, shades) {
  const scored = sweep.members.filter((member) => member.score !== null);
  if (!scored.length) return [note("no run has been evaluated yet")];
  if (!sweep.settings.length) return [note("only the seed differs")];
  const points = (column) => scored.map((member) => ({ place: member.places[column], score: member.score, row: member.row,
    color: shades[member.row], label: member.name, href: member.href }));
  return [element("div", { class: "charts few" }, sweep.settings.map((setting, column) => scatter(setting, points(column), sweep.metric))),
    note(`each point is a run, the line is their mean; ${sweep.higher ? "higher" : "lower"} is better`)];
}

function memberTable(sweep, shades) {
  const rows = sweep.members.map((member) => ({
    keys: [member.name, member.status, member.step, ...member.keys], attributes: {},
    cells: [[element("span", { class: "swatch", css: { "--run": shades[member.row] } }),
      member.href ? element("a", { href: member.href }, data(member.name)) : data(member.name)], member.status,
    member.step === null ? "–" : short(member.step), ...member.scores],
  }));
  return sortable("runs", ["run", "status", "step", ...sweep.metrics], rows, 2);
}

function showSweep() {
  const sweep = values();
  const [shades, focus] = [colors(sweep.rows.length), emphasis()];
  const sections = [
    section("result", "Result", resultTable(sweep, shades, focus)),
    section("curves", "Learning curves", sweepCurves(sweep, shades, focus)),
    section("settings", "Score against each setting", settingCharts(sweep, shades)),
    section("runs", "Runs", memberTable(sweep, shades)),
  ];
  const links = sections.map((each) => element("a", { href: `#${each.id}` }, each.firstChild.textContent));
  document.getElementById("page").append(
    element("header", {}, element("h1", {}, "s2sjax sweep ", data(sweep.name)),
      element("p", {}, `${short(sweep.members.length)} runs in `, element("code", {}, data(sweep.folder))), element("nav", { "aria-label": "sections" }, links)),
    ...sections, element("footer", {}, `s2sjax ${sweep.version}, ${sweep.date.replace("T", " ").slice(0, 16)} UTC`));
}

showSweep();
