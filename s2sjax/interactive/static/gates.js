// Gates over time. view: { tokens, gates: [{ name, units, signed, means, values }] }, values [units, tokens] as bytes in base64.

function gatesFilm(view) {
  const T = view.tokens.length;
  const status = element("p", { class: "readout" }, "point at a map to see the value of a unit");
  const words = view.tokens.map((token, t) => element("button", { type: "button", class: "word", onclick: () => go(t) }, data(token)));
  const line = element("div", { class: "words", role: "group", "aria-label": "tokens" }, words);
  arrowKeys(line, words, alongLine(T));
  const strips = view.gates.map((gate) => {
    const bytes = bytesOf(gate.values);
    const value = (place) => (gate.signed ? 2 * bytes[place] / 255 - 1 : bytes[place] / 255);
    const [mean, shade, cursor] = [element("b", {}), element("i", {}), element("u", { css: { width: `${100 / T}%` } })];
    const at = (event) => {
      const box = strip.getBoundingClientRect();
      const within = (place, count) => Math.min(count - 1, Math.max(0, Math.floor(place * count)));
      return [within((event.clientX - box.left) / box.width, T), within((event.clientY - box.top) / box.height, gate.units)];
    };
    const strip = element("div", { class: "strip", css: { height: `${Math.min(160, Math.max(40, 4 * gate.units))}px` },
      onclick: (event) => go(at(event)[0]),
      onpointermove: (event) => {
        const [t, unit] = at(event);
        status.replaceChildren(`${gate.name}, unit ${unit + 1} after `, data(view.tokens[t], { class: "piece" }), `: ${value(unit * T + t).toFixed(2)}`);
      } }, pixels(T, gate.units, value), shade, cursor);
    const step = (t) => {
      mean.textContent = `mean ${gate.means[t].toFixed(2)}`;
      shade.style.left = `${100 * (t + 1) / T}%`;
      cursor.style.left = `${100 * t / T}%`;
    };
    return { step, box: element("div", { class: "gate" }, element("h4", {}, gate.name, mean), strip) };
  });
  const show = (t) => {
    words.forEach((word, place) => word.classList.toggle("asked", place === t));
    strips.forEach((strip) => strip.step(t));
    return ["after ", data(view.tokens[t])];
  };
  const { box, go } = film(T, show, line, strips.map((strip) => strip.box), status);
  return box;
}
