// The outputs, in pages that can be sorted and searched; each with its edits, attention and search tree.

const PAGE = 25;
// The separators of Python's str.split.
const BLANKS = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/;

function tokens(text, byWords) {
  return byWords ? text.split(BLANKS).filter((word) => word) : [...text];
}

// The output with its edits: deletions are struck out, insertions underlined.
function edited(reference, output, marks, byWords) {
  const [left, right] = [tokens(reference, byWords), tokens(output, byWords)];
  const gap = byWords ? " " : "";
  let [i, j] = [0, 0];
  return [...marks].flatMap((mark) => {
    const old = mark === "i" ? null : left[i++];
    const now = mark === "d" ? null : right[j++];
    if (mark === "m") return [now, gap];
    return [old === null ? null : element("del", {}, old), now === null ? null : element("ins", {}, now), gap];
  });
}

function outputsView(examples) {
  const count = examples.sources.length;
  const state = { sort: examples.metric ? "worst" : "corpus", show: "all", text: "", page: 0 };
  const worth = (run, row) => (examples.scores[run][row] === null ? -Infinity : examples.scores[run][row] * (examples.higher ? 1 : -1));
  const several = examples.labels.length > 1;
  const gain = (row) => worth(1, row) - worth(0, row);
  const lengths = examples.sources.map((source) => source.length);
  const orders = {
    worst: (a, b) => worth(0, a) - worth(0, b), best: (a, b) => worth(0, b) - worth(0, a), corpus: (a, b) => a - b,
    long: (a, b) => lengths[b] - lengths[a], short: (a, b) => lengths[a] - lengths[b],
    gain: (a, b) => gain(b) - gain(a), loss: (a, b) => gain(a) - gain(b),
  };
  const has = { all: () => true };
  for (const name of ["attention", "trees"]) has[name] = (row) => examples.views.some((views) => views[name][row]);
  has.wrong = (row) => examples.references[row].length && !examples.references[row].includes(examples.outputs[0][row]);
  const shows = [["all", "all"], ["wrong", "only wrong outputs"], ["attention", "with attention"], ["trees", "with a search tree"]]
    .filter(([name]) => name === "all" || examples.sources.some((_, row) => has[name](row)));
  const matches = (row, wanted) => [examples.sources[row], ...examples.references[row], ...examples.outputs.map((each) => each[row])]
    .some((text) => text.toLowerCase().includes(wanted));

  const list = element("ol", { class: "examples" });
  const where = element("span", { "aria-live": "polite" });
  let rows = [];
  const search = () => {
    const wanted = state.text.toLowerCase();
    rows = [...Array(count).keys()].filter((row) => has[state.show](row) && (!wanted || matches(row, wanted)));
    rows.sort((a, b) => orders[state.sort](a, b) || a - b);
    state.page = 0;
    draw();
  };
  const draw = () => {
    const pages = Math.max(1, Math.ceil(rows.length / PAGE));
    state.page = Math.min(Math.max(state.page, 0), pages - 1);
    const shown = rows.slice(state.page * PAGE, (state.page + 1) * PAGE);
    list.replaceChildren(...shown.map((row) => exampleItem(examples, row)));
    where.textContent = `page ${state.page + 1} of ${pages.toLocaleString("en")}, ${rows.length.toLocaleString("en")} of ${count.toLocaleString("en")} examples`;
    back.disabled = state.page === 0;
    next.disabled = state.page === pages - 1;
  };
  const turn = (by) => () => { state.page += by; draw(); };
  const back = element("button", { type: "button", onclick: turn(-1) }, "◀ previous");
  const next = element("button", { type: "button", onclick: turn(1) }, "next ▶");
  const by = examples.metric ? [["worst", `worst ${examples.metric} first`], ["best", `best ${examples.metric} first`]] : [];
  if (several && examples.metric) by.push(["gain", `most improved by ${examples.labels[1]}`], ["loss", `most worsened by ${examples.labels[1]}`]);
  let typed;
  const menus = element("div", { class: "controls" },
    select("order", [...by, ["corpus", "corpus order"], ["long", "longest source first"], ["short", "shortest source first"]],
      (value) => { state.sort = value; search(); }),
    select("show", shows, (value) => { state.show = value; search(); }),
    element("label", {}, "find ", element("input", { type: "search", oninput: (event) => {
      clearTimeout(typed);
      state.text = event.target.value;
      typed = setTimeout(search, 150);
    } })));
  search();
  return [menus, element("p", { class: "controls" }, back, next, where), list];
}

function exampleItem(examples, row) {
  const references = examples.references[row];
  const lines = [["source", data(examples.sources[row])], ...references.map((text, n) => [n ? "or" : "reference", data(text)])];
  examples.outputs.forEach((outputs, run) => {
    const [edits, score] = [examples.edits[run] && examples.edits[run][row], examples.scores[run][row]];
    const text = edits ? edited(references[edits[0]], outputs[row], edits[1], examples.words) : [outputs[row]];
    const name = examples.labels.length > 1 ? data(examples.labels[run], { class: `run${examples.shown[run] % 6} label` }) : "output";
    const right = references.includes(outputs[row]) ? element("span", { class: "right", title: "equals a reference" }, " ✓") : null;
    const value = examples.metric && score !== null ? element("span", { class: "score" }, ` ${examples.metric} ${short(score)}`) : null;
    lines.push([name, [element("bdi", { class: "output" }, text), right, value]]);
  });
  return element("li", { value: row + 1 },
    element("dl", {}, lines.map(([name, content]) => [element("dt", {}, name), element("dd", {}, content)])),
    examples.views.map((views, run) => exampleViews(examples, views, run, row)));
}

// Drawn only when opened, to keep pages fast.
function exampleViews(examples, views, run, row) {
  const of = () => (examples.labels.length > 1 ? [" of ", data(examples.labels[run])] : []);
  const kinds = [["attention", "attention", attentionView], ["trees", "search tree", treeView]];
  return kinds.filter(([name]) => views[name][row]).map(([name, title, view]) => {
    const box = element("details", { ontoggle: () => {
      if (box.open && box.children.length === 1) box.append(view(views[name][row]));
    } }, element("summary", {}, title, of()));
    return box;
  });
}
