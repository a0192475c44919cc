// Receptive fields, hop by hop. view: { length, networks: [{ name, layers, reads }] },
// reads[layer][position]: the nodes [layers down, position] that this one is computed from.

function hopsFrom(network, output) {
  const hops = new Map([[`${network.reads.length} ${output}`, 0]]);
  for (const [name, hop] of hops) {  // a Map also yields what is added on the way
    const [layer, t] = name.split(" ").map(Number);
    for (const [down, s] of layer ? network.reads[layer - 1][t] : []) {
      if (!hops.has(`${layer - down} ${s}`)) hops.set(`${layer - down} ${s}`, hop + 1);
    }
  }
  return hops;
}

function fieldsFilm(view) {
  const N = view.length;
  const [wide, high] = [26, 44];
  let [output, frame] = [N - 1, 0];
  const drawings = view.networks.map((network) => {
    const top = network.reads.length;
    const x = (t) => wide * (t + 0.5);
    const y = (layer) => high * (top - layer) + 12;
    const edges = drawn("g", {});
    const nodes = [...Array(top + 1).keys()].map((layer) => [...Array(N).keys()].map((t) => drawn("circle", {
      cx: x(t), cy: y(layer), r: 8, ...(layer === top ? { role: "button", "aria-label": `output ${t + 1}`, onclick: () => choose(t) } : {}) })));
    const count = element("p", { class: "readout" });
    const draw = () => {
      const hops = hopsFrom(network, output);
      const hop = (layer, t) => hops.get(`${layer} ${t}`);
      nodes.forEach((row, layer) => row.forEach((node, t) => {
        const found = hop(layer, t);
        const kind = found === 0 ? "chosen" : found === frame ? "fresh" : found < frame ? "seen" : "";
        node.setAttribute("class", `node ${kind}${layer === top ? " top" : ""}`);
      }));
      edges.replaceChildren(...nodes.flatMap((row, layer) => row.flatMap((_, t) => (layer && hop(layer, t) < frame
        ? network.reads[layer - 1][t].map(([down, s]) => drawn("line", { class: "edge seen", x1: x(t), y1: y(layer), x2: x(s), y2: y(layer - down) })) : []))));
      const inputs = [...Array(N).keys()].map((t) => hop(0, t)).filter((found) => found !== undefined);
      const seen = inputs.filter((found) => found <= frame).length;
      const most = Math.max(...inputs);
      count.textContent = `sees ${seen} of ${N} inputs${frame < most ? "" : `: all that it can, after ${most} ${most > 1 ? "hops" : "hop"}`}`;
    };
    const group = drawn("g", { class: "nodes" }, nodes);
    arrowKeys(group, nodes[top], alongLine(N));
    group.addEventListener("keydown", (event) => { if (event.key === "Enter") event.target.dispatchEvent(new Event("click")); });
    const picture = drawn("svg", { viewBox: `0 0 ${wide * N} ${high * top + 24}`, width: wide * N, role: "group",
      "aria-label": "outputs above, inputs below: click an output, or choose one by arrow keys and Enter" }, edges, group);
    const layers = network.layers.map((layer, n) => `${n + 1}: ${layer}`).join("; ");
    return { draw, box: element("div", { class: "network" }, network.name ? element("h4", {}, network.name) : null,
      element("p", { class: "readout" }, network.layers.length > 1 ? `layers from the bottom: ${layers}` : network.layers[0]), picture, count) };
  });
  const show = (at) => {
    frame = at;
    drawings.forEach((drawing) => drawing.draw());
    return `${at} ${at === 1 ? "hop" : "hops"} from output ${output + 1}; click another output to choose it`;
  };
  const choose = (t) => { output = t; go(frame); };
  const longest = view.networks.flatMap((network) => [...Array(N).keys()].flatMap((t) => [...hopsFrom(network, t).values()]));
  const { box, go } = film(Math.max(...longest) + 1, show, drawings.map((drawing) => drawing.box));
  return box;
}
