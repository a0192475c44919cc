// The table of the edit distance. view: { reference, hypothesis, equal, substitution, edits }, edits: m, s, i or d for each
// column of the alignment; equal[i][j]: whether the symbols are equal.
function distanceFilm(view) {
  const { reference, hypothesis } = view;
  const [I, J] = [reference.length, hypothesis.length];
  const costs = [...Array(I + 1).keys()].map((i) => [...Array(J + 1).keys()].map((j) => (i && j ? 0 : i + j)));
  const options = (i, j) => [
    [costs[i - 1][j], 1, "delete", i - 1, j], [costs[i][j - 1], 1, "insert", i, j - 1],
    [costs[i - 1][j - 1], view.equal[i - 1][j - 1] ? 0 : view.substitution, view.equal[i - 1][j - 1] ? "match" : "substitute", i - 1, j - 1]];
  for (let i = 1; i <= I; i += 1) for (let j = 1; j <= J; j += 1) costs[i][j] = Math.min(...options(i, j).map(([cost, more]) => cost + more));

  // The path from the end to the beginning: the cell of each edit, and its symbols.
  const path = [];
  let [i, j] = [I, J];
  for (const edit of [...view.edits].reverse()) {
    path.push({ i, j, edit, left: edit === "i" ? "*" : reference[i - 1], right: edit === "d" ? "*" : hypothesis[j - 1] });
    if (edit !== "i") i -= 1;
    if (edit !== "d") j -= 1;
  }
  path.push({ i: 0, j: 0 });

  const cells = costs.map((row) => row.map(() => element("td", {})));
  const names = (symbol) => element("th", {}, data(symbol));
  const grid = element("div", { class: "grid scroll", tabindex: 0, role: "region", "aria-label": "table: reference down, hypothesis across" },
    element("table", {}, element("thead", {}, element("tr", {}, element("th", {}), element("th", {}), hypothesis.map(names))),
      element("tbody", {}, cells.map((row, at) => element("tr", {}, at ? names(reference[at - 1]) : element("th", {}), row)))));
  const edits = element("div", { class: "edits" });
  const marks = { m: "=", s: "s", i: "i", d: "d" };

  const show = (frame) => {
    const filled = Math.min(frame, I * J);
    const traced = path.slice(0, Math.max(0, frame - I * J));
    const [here, there] = filled ? [Math.floor((filled - 1) / J) + 1, (filled - 1) % J + 1] : [0, 0];
    const filling = filled && !traced.length;
    cells.forEach((row, a) => row.forEach((cell, b) => {
      cell.textContent = !a || !b || (a - 1) * J + b <= filled ? costs[a][b] : "";
      const from = filling && a <= here && b <= there && a >= here - 1 && b >= there - 1;
      cell.setAttribute("class", traced.some((each) => each.i === a && each.j === b) ? "path" : from ? (a === here && b === there ? "here" : "from") : "");
    }));
    edits.replaceChildren(...traced.filter((each) => each.edit).reverse().map((each) => element("span", { class: each.edit === "m" ? null : "edit" },
      data(each.left), element("b", {}, marks[each.edit]), data(each.right))));
    if (filling) {
      const text = options(here, there).map(([cost, more, name]) => `${cost} + ${more} (${name})`).join(", ");
      return `min(${text}) = ${costs[here][there]}`;
    }
    if (frame === I * J + path.length) return `edit distance ${costs[I][J]}`;
    return traced.length ? "the cheapest path, from the end" : "first row: only insertions; first column: only deletions";
  };
  return film(1 + I * J + path.length, show, element("p", { class: "readout" }, "reference down the side, hypothesis along the top"), grid, edits).box;
}
