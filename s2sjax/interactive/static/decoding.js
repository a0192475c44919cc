// The decoder step by step. view: that of attention.js, and candidates: [[piece, probability], ...] of each step or null.
function decodingFilm(view) {
  const weights = weightsOf(view, 0, 0);
  const status = element("p", { class: "readout" });
  const { lines, rows, ask } = wordRows(view, weights, status);
  const map = heatMap(view, weights, status);
  const bars = element("div", { class: "bars" });
  const show = (step) => {
    rows.target.forEach((word, t) => word.classList.toggle("later", t > step));
    map.querySelectorAll(".row").forEach((row, t) => {
      row.classList.toggle("later", t > step);
      row.classList.toggle("now", t === step);
    });
    ask("target", step);
    if (view.candidates) bars.replaceChildren(...view.candidates[step].flatMap(([piece, p]) => [
      data(piece, { class: piece === view.target[step] ? "chosen" : null }), element("i", { css: { "--share": p } }), element("b", {}, percent(p))]));
    return `step ${step + 1} of ${view.target.length}`;
  };
  const chosen = view.candidates ? [element("h4", {}, "candidates for this piece"), bars] : [];
  return film(view.target.length, show, element("div", { class: "beside" }, element("div", {}, lines, status, chosen), map)).box;
}
