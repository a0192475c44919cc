// All heads side by side; the chosen one enlarged below. view: that of attention.js.
function headsFigure(view) {
  const [T, S, L, N] = [view.target.length, view.source.length, view.layers, view.heads];
  const place = element("div", {});
  const maps = [...Array(L * N).keys()].map((number) => {
    const weights = weightsOf(view, Math.floor(number / N), number % N);
    const label = `${L > 1 ? `layer ${view.numbers[Math.floor(number / N)]}, ` : ""}head ${number % N + 1}`;
    const enlarge = () => {
      maps.forEach((map) => map.setAttribute("aria-pressed", map === button));
      const status = element("p", { class: "readout", "aria-live": "polite" }, "point at a word to see its weights");
      place.replaceChildren(element("p", { class: "caption" }, label), element("div", { class: "beside" },
        element("div", {}, wordRows(view, weights, status).lines, status), heatMap(view, weights, status)));
    };
    const button = element("button", { type: "button", "aria-label": label, title: label, onclick: enlarge },
      pixels(S, T, (cell) => weights[Math.floor(cell / S)][cell % S]));
    return button;
  });
  const names = (text) => element("small", {}, text);
  const rows = [...Array(L).keys()].flatMap((layer) => [names(L > 1 ? `layer ${view.numbers[layer]}` : ""), ...maps.slice(layer * N, (layer + 1) * N)]);
  const grid = element("div", { class: "heads", role: "group", "aria-label": "heads: arrow keys move, Enter enlarges",
    css: { "grid-template-columns": `max-content repeat(${N}, minmax(24px, 120px))`, "--ratio": `${S} / ${T}` } },
    names(""), [...Array(N).keys()].map((head) => names(N > 8 ? head + 1 : `head ${head + 1}`)), rows);
  arrowKeys(grid, maps, (at, key) => ({ ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - N, ArrowDown: at + N, Home: 0, End: L * N - 1 })[key]);
  maps[0].click();
  return element("div", {}, grid, place);
}
