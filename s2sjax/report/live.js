// Live input: the output, the n-best list, the attention and the search tree follow what is typed.

function showLive() {
  const about = values();
  let waiting = null;
  let typed;
  const status = element("p", { class: "readout", "aria-live": "polite" });
  const found = element("div", {});
  const input = element("textarea", { id: "source", rows: 2, autofocus: true, spellcheck: "false", dir: "auto", oninput: () => {
    clearTimeout(typed);
    typed = setTimeout(ask, 250);
  } });

  async function ask() {
    if (waiting) waiting.abort();
    const line = input.value.replace(/[\r\n]+/g, " ");
    if (!line.trim()) {
      found.replaceChildren();
      status.textContent = "";
      return;
    }
    const mine = new AbortController();
    waiting = mine;
    status.textContent = "working …";
    try {
      const answer = await post(about.explains ? "/explain" : "/decode", about.explains ? { line } : { lines: [line] }, mine.signal);
      status.textContent = "";
      found.replaceChildren(...answerViews(answer));
    } catch (error) {
      if (error.name === "AbortError") return;
      found.replaceChildren();
      status.replaceChildren(element("span", { class: "error" }, error.message));
    }
  }

  document.getElementById("page").append(
    element("header", {}, element("h1", {}, "s2sjax, live"), element("p", {}, data(about.run, { class: "label run0" }),
      `: ${about.model}, ${about.task}, checkpoint of step ${about.step}${about.settings ? `, ${about.settings}` : ""}`)),
    element("div", { class: "live" }, element("label", { for: "source" }, "source"), input), status, found,
    ...about.why.map(note), element("footer", {}, `s2sjax ${about.version}`));
}

async function post(path, request, signal) {
  let answer;
  try {
    const response = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request), signal });
    answer = await response.json();
    if (response.ok) return answer;
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error("the server does not answer: is it still running?");
  }
  throw new Error(answer.error);
}

function answerViews(answer) {
  const outputs = answer.outputs;
  const place = element("div", {});
  const buttons = outputs.map((output, rank) => element("button", { type: "button", "aria-pressed": "false", onclick: () => choose(rank) },
    data(output.text || "(empty)"), output.score === undefined ? null : element("span", { class: "score" }, ` score ${short(output.score)}, log-probability ${short(output.log_prob)}`)));
  const choose = (rank) => {
    buttons.forEach((button, each) => button.setAttribute("aria-pressed", each === rank ? "true" : "false"));
    place.replaceChildren(...(answer.attention && answer.attention[rank] ? [element("h2", {}, "Attention"), attentionView(answer.attention[rank])] : []));
  };
  choose(0);
  return [element("h2", {}, "Output"), element("p", { id: "output" }, data(outputs[0].text || "(empty)", { class: "output" })),
    outputs.length > 1 ? [element("h2", {}, "N-best"), element("ol", { class: "nbest" }, buttons.map((button) => element("li", {}, button)))] : [],
    place, answer.tree ? [element("h2", {}, "Search tree"), treeView(answer.tree)] : []].flat();
}

showLive();
