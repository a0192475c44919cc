// Attention: shows the weights of the word under the pointer or with the focus. Arrow keys move the focus.
// view: { source, target, layers, heads, weights }, weights [layers, heads, target, source] as bytes in base64; the
// sides have names, and the layers numbers, because those without attention have no weights.

const MOST_CELLS = 6000;

// The weights [target][source] of a layer and a head, from 0 to 1. "mean" averages over all layers or heads.
function weightsOf(view, layer, head) {
  const bytes = Uint8Array.from(atob(view.weights), (letter) => letter.charCodeAt(0));
  const [T, S] = [view.target.length, view.source.length];
  const places = (choice, count) => (choice === "mean" ? [...Array(count).keys()] : [Number(choice)]);
  const maps = places(layer, view.layers).flatMap((l) => places(head, view.heads).map((h) => (l * view.heads + h) * T * S));
  const cell = (t, s) => maps.reduce((sum, start) => sum + bytes[start + t * S + s], 0) / maps.length / 255;
  return view.target.map((_, t) => view.source.map((_, s) => cell(t, s)));
}

function percent(weight) {
  return `${Math.round(100 * weight)}%`;
}

const ATTENTION_OF = {
  cross: "of the output to the source", encoder: "of the encoder to itself", decoder: "of the decoder to itself" };

// Several attentions of one sentence, by name: a menu chooses.
function attentionViews(views) {
  const kinds = Object.keys(views);
  const place = element("div", {});
  const show = (kind) => place.replaceChildren(attentionView(views[kind]));
  show(kinds[0]);
  const menu = select("attention", kinds.map((kind) => [kind, ATTENTION_OF[kind]]), show);
  return [kinds.length > 1 ? element("p", { class: "controls" }, menu) : null, place];
}

function attentionView(view) {
  let chosen = { layer: "mean", head: "mean" };
  const body = element("div", {});
  const status = element("p", { class: "readout", "aria-live": "polite" });
  const draw = () => {
    const weights = weightsOf(view, chosen.layer, chosen.head);
    status.textContent = "point at a word to see its weights";
    body.replaceChildren(...wordRows(view, weights, status).lines, status, heatMap(view, weights, status));
  };
  const numbers = [...Array(view.heads).keys()].map((head) => head + 1);
  const menus = [["layer", view.numbers], ["head", numbers]].filter(([, all]) => all.length > 1).map(([name, all]) =>
    select(name, [["mean", "mean of all"], ...all.map((number, n) => [n, number])],
      (value) => { chosen = { ...chosen, [name]: value }; draw(); }));
  draw();
  return element("div", { class: "attention" }, menus.length ? element("p", { class: "controls" }, menus) : null, body);
}

// The words of both sides; ask(side, place) shows the weights of one of them.
function wordRows(view, weights, status) {
  const rows = { source: [], target: [] };
  const ask = (side, place) => {
    const other = side === "target" ? "source" : "target";
    const of = (at) => (side === "target" ? weights[place][at] : weights[at][place]);
    rows[side].forEach((word, at) => { paint(word, 0); word.classList.toggle("asked", at === place); });
    rows[other].forEach((word, at) => { word.classList.remove("asked"); paint(word, of(at)); });
    const best = rows[other].map((_, at) => at).sort((a, b) => of(b) - of(a)).slice(0, 3);
    status.replaceChildren(`${view.sides[side === "target" ? 1 : 0]} `, data(view[side][place], { class: "piece" }),
      side === "target" ? " attends to " : " is attended to by ",
      ...best.flatMap((at, n) => [n ? ", " : "", data(view[other][at], { class: "piece" }), ` ${percent(of(at))}`]));
  };
  const line = (side, title) => {
    rows[side] = view[side].map((piece, place) => element("button", {
      type: "button", class: "word", onpointerenter: () => ask(side, place), onfocus: () => ask(side, place),
    }, data(piece), element("small", {}, "\u00a0")));
    const words = element("div", { class: "words", role: "group", "aria-label": `${title}: arrow keys move` }, rows[side]);
    arrowKeys(words, rows[side], alongLine(rows[side].length));
    return element("div", {}, element("h4", {}, title), words);
  };
  const [seen, sees] = view.sides;
  const same = seen === sees;
  return { lines: [line("source", same ? `${seen}, attended to` : seen), line("target", same ? `${sees}, attending` : sees)], rows, ask };
}

function paint(word, weight) {
  word.style.setProperty("--weight", weight.toFixed(3));
  word.classList.toggle("strong", weight > 0.7);
  word.lastChild.textContent = weight >= 0.005 ? percent(weight) : "\u00a0";
}

function heatMap(view, weights, status) {
  const [T, S] = [view.target.length, view.source.length];
  if (T * S > MOST_CELLS) return note("the map is not drawn: the sentence is too long");
  const size = 18;
  const longest = (pieces) => Math.min(14, Math.max(...pieces.map((piece) => [...piece].length)));
  const cut = (piece) => ([...piece].length > 14 ? `${[...piece].slice(0, 13).join("")}…` : piece);
  const [left, top] = [12 + 8 * longest(view.target), 12 + 8 * longest(view.source)];
  const cells = weights.map((row, t) => drawn("g", { class: "row" },
    row.map((weight, s) => weight < 0.004 ? null : drawn("rect", {
      class: "cell", x: left + s * size, y: top + t * size, width: size - 1, height: size - 1, "fill-opacity": weight.toFixed(3) })),
    drawn("text", { class: "tick", x: left - 6, y: top + t * size + 13, "text-anchor": "end" }, cut(view.target[t]))));
  const names = view.source.map((piece, s) => drawn("text", {
    class: "tick", transform: [...piece].length > 2 ? `translate(${left + s * size + 13} ${top - 6}) rotate(-90)`
      : `translate(${left + s * size + size / 2} ${top - 6})`, "text-anchor": [...piece].length > 2 ? "start" : "middle" }, cut(piece)));
  const [width, height] = [left + S * size + 4, top + T * size + 4];
  const picture = drawn("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `attention map: ${view.sides[0]} along the top, ${view.sides[1]} down the side`,
    onpointermove: (event) => {
      const box = picture.getBoundingClientRect();
      const s = Math.floor((event.clientX - box.left - left) / size);
      const t = Math.floor((event.clientY - box.top - top) / size);
      if (s < 0 || t < 0 || s >= S || t >= T) return;
      status.replaceChildren(`${view.sides[1]} `, data(view.target[t], { class: "piece" }), " attends to ",
        data(view.source[s], { class: "piece" }), ` ${percent(weights[t][s])}`);
    },
  }, drawn("rect", { class: "ground", x: left, y: top, width: S * size - 1, height: T * size - 1 }), cells, names);
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "attention map" }, picture);
}
