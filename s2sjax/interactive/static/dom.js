// Builds elements from plain values. Text is added only as text nodes, so markup in data is never interpreted.

function element(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function drawn(name, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

// Keys: on... is a listener, css an object of style properties. Values: true is an empty attribute, false or null none.
function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "css") for (const [property, to] of Object.entries(value)) node.style.setProperty(property, to);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined).map(
    (child) => (child instanceof Node ? child : String(child))));
  return node;
}

// Text from data, with its own writing direction.
function data(text, attributes) {
  return element("bdi", attributes, text);
}

function section(id, title, ...children) {
  return element("section", { id, "aria-labelledby": `${id}-title` }, element("h2", { id: `${id}-title` }, title), ...children);
}

function note(text) {
  return element("p", { class: "note" }, text);
}

// A table that scrolls if it is wide, also with the keyboard.
function table(label, head, rows) {
  const cells = (name, row) => row.map((cell) => (cell instanceof Node && cell.matches("td, th") ? cell : element(name, {}, cell)));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    element("table", {},
      element("thead", {}, element("tr", {}, cells("th", head))),
      element("tbody", {}, rows.map((row) => (row instanceof Node ? row : element("tr", {}, cells("td", row)))))));
}

function select(label, options, onchange) {
  const menu = element("select", { onchange: () => onchange(menu.value) },
    options.map(([value, text]) => element("option", { value }, text)));
  return element("label", {}, `${label} `, menu);
}

// Makes a row of items one tab stop, in which arrow keys move the focus. step(index, key) -> the next index.
function arrowKeys(container, items, step) {
  items.forEach((item, place) => item.setAttribute("tabindex", place ? -1 : 0));
  container.addEventListener("keydown", (event) => {
    const next = step(items.indexOf(event.target.closest("[tabindex]")), event.key);
    if (next === undefined || !items[next]) return;
    event.preventDefault();
    items.forEach((item) => item.setAttribute("tabindex", -1));
    items[next].setAttribute("tabindex", 0);
    items[next].focus();
  });
}

function alongLine(count) {
  return (place, key) => ({ ArrowLeft: place - 1, ArrowRight: place + 1, ArrowUp: place - 1, ArrowDown: place + 1,
    Home: 0, End: count - 1 })[key];
}

function short(number) {
  if (number === null || number === undefined) return "–";
  return Number.isInteger(number) ? number.toLocaleString("en") : Number(number.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 });
}

function values() {
  return JSON.parse(document.getElementById("values").textContent);
}
