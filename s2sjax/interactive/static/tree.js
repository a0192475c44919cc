// A beam search as a tree. Arrow keys move between nodes: left to the parent, right to the best continuation.
// view: { nodes }, a node [parent, piece, log-probability, row, marks, rank]: see search_figures.py.

const FINISHED = 1, KEPT = 2, BEST = 4;

const MANY = 60;

function treeNodes(view) {
  const every = view.nodes.map(([parent, piece, logProb, row, marks, rank], number) =>
    ({ number, parent, piece, logProb, row, marks, rank, step: 0 }));
  for (const node of every) if (node.parent >= 0) node.step = every[node.parent].step + 1;
  return every;
}

function treeView(view) {
  const every = treeNodes(view);
  const place = element("div", {});
  const draw = (pruned) => {
    const { picture, status } = treePicture(every.filter((node) => pruned || node.marks & (KEPT | FINISHED)));
    place.replaceChildren(element("div", { class: "scroll" }, picture), status);
  };
  const few = every.length <= MANY || !every.some((node) => node.marks & KEPT);
  const all = element("input", { type: "checkbox", checked: few, onchange: () => draw(all.checked) });
  draw(few);
  return element("div", { class: "tree" }, element("p", { class: "controls" }, element("label", {}, all, " show pruned branches")), place);
}

// Assigns rows to the shown nodes: leaves from top to bottom, parents at the middle of their children.
function arranged(shown) {
  const nodes = new Map(shown.map((node) => [node.number, { ...node, children: [] }]));
  for (const node of nodes.values()) if (nodes.has(node.parent)) nodes.get(node.parent).children.push(node);
  const leaves = [...nodes.values()].filter((node) => !node.children.length).sort((a, b) => a.row - b.row);
  leaves.forEach((node, row) => { node.row = row; });
  const middle = (rows) => (Math.min(...rows) + Math.max(...rows)) / 2;
  for (const node of [...nodes.values()].reverse()) if (node.children.length) node.row = middle(node.children.map((child) => child.row));
  return [nodes, middle([...nodes.values()].filter((node) => node.parent < 0).map((node) => node.row))];
}

function treePicture(shown) {
  const [nodes, root] = arranged(shown);
  const list = [...nodes.values()];
  const begins = columns(list);
  const y = (row) => 26 * (row + 1);
  const [width, height] = [begins[begins.length - 1] + 46, y(1 + Math.max(...list.map((node) => node.row)))];
  const status = element("p", { class: "readout", "aria-live": "polite" }, "blue: the best output; grey: pruned; a dot: finished, with its rank");
  const groups = list.map((node) => branch(node, nodes, begins, y, root, status));
  const picture = drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "search tree: arrow keys move" },
    drawn("text", { class: "piece", x: 4, y: y(root) + 4 }, "<sos>"), groups);
  arrowKeys(picture, groups, (place, key) => {
    const node = list[place];
    const column = list.filter((each) => each.step === node.step).sort((a, b) => a.row - b.row);
    const best = node.children.slice().sort((a, b) => b.logProb - a.logProb)[0];
    const next = { ArrowLeft: nodes.get(node.parent), ArrowRight: best,
      ArrowUp: column[column.indexOf(node) - 1], ArrowDown: column[column.indexOf(node) + 1] }[key];
    return next && list.indexOf(next);
  });
  return { picture, status, list, groups, begins };
}

// The x coordinate at which the branches of each step begin, with room for the longest piece of the step.
function columns(nodes) {
  const begins = [52];
  for (let step = 0; step <= Math.max(...nodes.map((node) => node.step)); step += 1) {
    const here = nodes.filter((node) => node.step === step).map((node) => [...node.piece].length);
    begins.push(begins[step] + 70 + 8 * Math.max(...here));
  }
  return begins;
}

function kindOf(node) {
  return node.marks & BEST ? "best" : node.marks & KEPT ? "kept" : "pruned";
}

function branch(node, nodes, begins, y, root, status) {
  const [begin, end, row] = [begins[node.step], begins[node.step + 1], y(node.row)];
  const from = y(node.parent < 0 ? root : nodes.get(node.parent).row);
  const kind = kindOf(node);
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
    node.rank ? drawn("text", { class: "piece rank", x: end + 8, y: row + 4 }, `#${node.rank}`) : null);
}

function prefix(node, nodes) {
  const pieces = [];
  for (let at = node; at; at = nodes.get(at.parent)) pieces.unshift(at.piece);
  return pieces.join(" ");
}
