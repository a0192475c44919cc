// A film: buttons, a slider and arrow keys step through its frames. show(frame) draws one, and returns its caption.

const ICONS = {
  first: "M2 2h2v12H2zM14 2v12L5 8z", back: "M10.5 2l-6 6 6 6L12 12.5 7.5 8 12 3.5z", play: "M4 2v12l10-6z", pause: "M3 2h4v12H3zM9 2h4v12H9z",
  next: "M5.5 2L4 3.5 8.5 8 4 12.5 5.5 14l6-6z",
};

function icon(name) {
  return drawn("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, drawn("path", { d: ICONS[name] }));
}

// Returns the element of the film, and go(frame).
function film(count, show, ...content) {
  let [at, timer] = [0, 0];
  const pace = Math.min(1000, Math.max(50, 20000 / count));
  const caption = element("p", { class: "caption" });
  const go = (frame) => {
    at = Math.min(count - 1, Math.max(0, frame));
    const told = [show(at)].flat();
    caption.replaceChildren(...told);
    slider.value = at;
    slider.setAttribute("aria-valuetext", caption.textContent);
    number.textContent = `${at + 1} / ${count}`;
    buttons.first.disabled = buttons.back.disabled = at === 0;
    buttons.next.disabled = at === count - 1;
  };
  const stop = () => {
    clearTimeout(timer);
    timer = 0;
    buttons.play.replaceChildren(icon("play"));
    buttons.play.setAttribute("aria-label", "play");
    caption.setAttribute("aria-live", "polite");
  };
  const tick = () => {
    if (at === count - 1 || !box.isConnected) return stop();
    go(at + 1);
    timer = setTimeout(tick, pace);
  };
  const play = () => {
    if (timer) return stop();
    if (at === count - 1) go(0);
    buttons.play.replaceChildren(icon("pause"));
    buttons.play.setAttribute("aria-label", "pause");
    caption.setAttribute("aria-live", "off");
    timer = setTimeout(tick, pace);
  };
  const to = (frame) => { stop(); go(frame); };
  const button = (name, title, onclick) => element("button", { type: "button", "aria-label": name, title, onclick }, icon(name));
  const buttons = {
    first: button("first", "first frame", () => to(0)), back: button("back", "back (left arrow)", () => to(at - 1)),
    play: button("play", "play or pause", play), next: button("next", "next (right arrow)", () => to(at + 1)),
  };
  const slider = element("input", { type: "range", min: 0, max: count - 1, value: 0, "aria-label": "frame", oninput: () => to(Number(slider.value)) });
  const number = element("output", {});
  const box = element("div", { class: "film", role: "group", "aria-label": "film: arrow keys step", onkeydown: (event) => {
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: count - 1 }[event.key];
    // The slider, words and nodes have arrow keys of their own.
    if (next === undefined || event.target.closest("input, .words, [role=group] svg, .nodes")) return;
    event.preventDefault();
    to(next);
  } }, count > 1 ? element("div", { class: "controls" }, Object.values(buttons), slider, number) : null, caption, content);
  go(0);
  stop();
  return { box, go: to };
}
