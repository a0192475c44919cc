// A beam search as a tree. The arrow keys move from node to node: left to the parent, right to the best continuation.
// view: { root, nodes }, a node [parent, piece, log-probability, row, marks, rank]: see views.py.

const FINISHED = 1, KEPT = 2, BEST = 4;

function treeView(view) {
  const nodes = view.nodes.map(([parent, piece, logProb, row, marks, rank], number) =>
    ({ number, parent, piece, logProb, row, marks, rank, children: [], step: 0 }));
  for (const node of nodes) {
    if (node.parent < 0) continue;
    node.step = nodes[node.parent].step + 1;
    nodes[node.parent].children.push(node.number);
  }
  const begins = columns(nodes);
  const height = 26 * (2 + Math.max(...nodes.map((node) => node.row)));
  const y = (row) => 26 * (row + 1);
  const status = element("p", { class: "readout", "aria-live": "polite" }, "blue: the best output; grey: pruned; a dot: finished, with its rank");
  const groups = nodes.map((node) => branch(node, nodes, begins, y, view.root, status));
  const width = begins[begins.length - 1] + 46;
  const picture = drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "search tree: arrow keys move" },
    drawn("text", { class: "piece", x: 4, y: y(view.root) + 4 }, "<sos>"), groups);
  arrowKeys(picture, groups, (place, key) => {
    const node = nodes[place];
    const column = nodes.filter((each) => each.step === node.step).sort((a, b) => a.row - b.row);
    const beside = (by) => (column[column.indexOf(node) + by] || {}).number;
    return { ArrowLeft: node.parent, ArrowUp: beside(-1), ArrowDown: beside(1),
      ArrowRight: node.children.slice().sort((a, b) => nodes[b].logProb - nodes[a].logProb)[0] }[key];
  });
  return element("div", { class: "tree" }, element("div", { class: "scroll" }, picture), status);
}

// Where the branches of each step begin: room for the longest piece of the step.
function columns(nodes) {
  const begins = [52];
  for (let step = 0; step <= Math.max(...nodes.map((node) => node.step)); step += 1) {
    const here = nodes.filter((node) => node.step === step).map((node) => [...node.piece].length);
    begins.push(begins[step] + 70 + 8 * Math.max(...here));
  }
  return begins;
}

function branch(node, nodes, begins, y, root, status) {
  const [begin, end, row] = [begins[node.step], begins[node.step + 1], y(node.row)];
  const from = y(node.parent < 0 ? root : nodes[node.parent].row);
  const kind = node.marks & BEST ? "best" : node.marks & KEPT ? "kept" : "pruned";
  const words = [kind === "best" ? "on the path of the best output" : kind === "kept" ? "leads to a finished output" : "pruned"];
  if (node.marks & FINISHED) words.push(node.rank ? `finished, rank ${node.rank}` : "finished");
  const tell = () => status.replaceChildren(data(prefix(node, nodes), { class: "piece" }), `: log-probability ${node.logProb.toFixed(2)}, ${words.join(", ")}`);
  return drawn("g", { class: `branch ${kind}`, role: "img", "aria-label": `${node.piece}, ${node.logProb.toFixed(2)}, ${words.join(", ")}`,
    onfocus: tell, onpointerenter: tell },
    drawn("path", { d: `M${begin} ${from} L${begin + 14} ${row} H${end}` }),
    drawn("rect", { class: "target", x: begin + 14, y: row - 19, width: end - begin - 14, height: 22 }),
    drawn("text", { class: "piece", x: begin + 18, y: row - 5 }, node.piece),
    drawn("text", { class: "tick", x: end - 6, y: row - 5, "text-anchor": "end" }, node.logProb.toFixed(2)),
    node.marks & FINISHED ? drawn("circle", { cx: end, cy: row, r: 4 }) : null,
    node.rank ? drawn("text", { class: "piece", x: end + 8, y: row + 4 }, `#${node.rank}`) : null);
}

function prefix(node, nodes) {
  const pieces = [];
  for (let at = node; at; at = nodes[at.parent]) pieces.unshift(at.piece);
  return pieces.join(" ");
}
