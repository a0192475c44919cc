// Live input: updates the output, the n-best list, the attention and the search tree as the user types.

function showLive() {
  const about = values();
  let waiting = null;
  let typed;
  const status = element("p", { class: "readout", "aria-live": "polite" });
  const found = element("div", {});
  const input = about.files ? element("input", { id: "source", type: "file", onchange: ask })
    : element("textarea", { id: "source", rows: 2, autofocus: true, spellcheck: "false", dir: "auto", oninput: () => {
      clearTimeout(typed);
      typed = setTimeout(ask, 250);
    } });

  async function request() {
    if (about.files) return input.files.length ? { files: [await base64(input.files[0], about.most_bytes)] } : null;
    const line = input.value.replace(/[\r\n]+/g, " ");
    return line.trim() ? (about.explains ? { line } : { lines: [line] }) : null;
  }

  async function ask() {
    if (waiting) waiting.abort();
    const mine = new AbortController();
    waiting = mine;
    try {
      const asked = await request();
      status.textContent = asked ? "working …" : "";
      if (!asked) return found.replaceChildren();
      const answer = await post(about.explains ? "/explain" : "/decode", asked, mine.signal, (reason) => { status.textContent = reason; });
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
    element("div", { class: "live" }, element("label", { for: "source" }, about.files ? `source: a file, ${about.files}` : "source"), input), status, found,
    ...about.why.map(note), element("footer", {}, `s2sjax ${about.version}`));
}

async function post(path, request, signal, wait) {
  for (;;) {
    let answer, response;
    try {
      response = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request), signal });
      answer = await response.json();
    } catch (error) {
      throw error.name === "AbortError" ? error : new Error("the server does not answer: is it still running?");
    }
    if (response.ok) return answer;
    const later = Number(response.headers.get("Retry-After"));
    if (!later) throw new Error(answer.error);
    wait(answer.error);
    await new Promise((resolve) => setTimeout(resolve, 1000 * later));
  }
}

function base64(file, most) {
  if (file.size > most) throw new Error(`the file has ${file.size} bytes: choose one of at most ${most} bytes`);
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Error("the file cannot be read"));
    reader.readAsDataURL(file);
  });
}

function answerViews(answer) {
  const outputs = answer.outputs;
  const place = element("div", {});
  const buttons = outputs.map((output, rank) => element("button", { type: "button", "aria-pressed": "false", onclick: () => choose(rank) },
    data(output.text || "(empty)"), output.score === undefined ? null : element("span", { class: "score" }, ` score ${short(output.score)}, log-probability ${short(output.log_prob)}`)));
  const choose = (rank) => {
    buttons.forEach((button, each) => button.setAttribute("aria-pressed", each === rank ? "true" : "false"));
    const views = answer.attention ? { ...(answer.attention[rank] && { cross: answer.attention[rank] }), ...answer.self_attention[rank] } : {};
    place.replaceChildren(...(Object.keys(views).length ? [element("h2", {}, "Attention"), ...attentionViews(views).filter(Boolean)] : []));
  };
  choose(0);
  return [element("h2", {}, "Output"), element("p", { id: "output" }, data(outputs[0].text || "(empty)", { class: "output" })),
    outputs.length > 1 ? [element("h2", {}, "N-best"), element("ol", { class: "nbest" }, buttons.map((button) => element("li", {}, button)))] : [],
    place, answer.tree ? [element("h2", {}, "Search tree"), treeView(answer.tree)] : []].flat();
}

showLive();
