// Draws a figure into every element of this name that has none yet: an output may be shown twice.
function mount(name, style, draw) {
  for (const host of document.querySelectorAll(`[data-s2sjax="${name}"]`)) {
    if (host.shadowRoot) continue;
    const figure = element("div", { class: "figure" }, draw(host));
    host.attachShadow({ mode: "open" }).append(element("style", {}, style), figure);
    followTheme(host, figure);
  }
}

// Dark colours where the text of the page is light: the page may have another theme than the system.
function followTheme(host, figure) {
  const update = () => {
    const [red, green, blue] = (getComputedStyle(host).color.match(/[\d.]+/g) || [0, 0, 0]).map(Number);
    figure.style.setProperty("color-scheme", 0.3 * red + 0.59 * green + 0.11 * blue > 128 ? "dark" : "light");
  };
  const changes = new MutationObserver(() => { update(); setTimeout(update, 500); });  // after a transition
  for (const node of [document.documentElement, document.body]) changes.observe(node, { attributes: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
  update();
}
