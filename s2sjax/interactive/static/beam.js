// A beam search frame by frame: in each step continuations appear, then some are pruned. The last frame shows the best output.
function beamFilm(view) {
  const every = treeNodes(view);
  const { picture, status, list, groups, begins } = treePicture(every);
  const steps = begins.length - 1;
  const continued = new Set(every.map((node) => node.parent));
  const survives = (node) => continued.has(node.number) || node.marks & FINISHED;
  const scroll = element("div", { class: "scroll" }, picture);
  const tree = element("div", { class: "tree" }, scroll);

  // The nodes on the way to a prefix that is live after this step, or to a finished output.
  const alive = (step, pruned) => {
    const found = new Set();
    for (const node of every) {
      if (node.step > step || (node.step < step && !(node.marks & FINISHED)) || (node.step === step && pruned && !survives(node))) continue;
      for (let at = node; at && !found.has(at.number); at = every[at.parent]) found.add(at.number);
    }
    return found;
  };
  const show = (frame) => {
    const last = frame === 2 * steps;
    const [step, pruned] = last ? [steps - 1, true] : [frame >> 1, frame % 2 === 1];
    const live = alive(step, pruned);
    list.forEach((node, place) => {
      const kind = last ? kindOf(node) : live.has(node.number) ? "kept" : "pruned";
      groups[place].setAttribute("class", `branch ${kind}${node.step > step ? " later" : ""}`);
    });
    tree.classList.toggle("final", last);
    scroll.scrollLeft = last ? 0 : Math.max(0, begins[step + 1] + 46 - scroll.clientWidth);
    const here = every.filter((node) => node.step === step);
    if (!last && !pruned) return `step ${step + 1}: ${here.length} continuations, each with its log-probability so far`;
    const ended = here.filter((node) => node.marks & FINISHED).length;
    const stay = here.filter((node) => continued.has(node.number)).length;
    if (!last) return `step ${step + 1}: ${stay} stay in the beam, ${ended} finished, ${here.length - stay - ended} pruned`;
    const best = every.find((node) => node.rank === 1);
    return best ? ["best output: ", data(prefix(best, new Map(every.map((node) => [node.number, node]))))] : "no output is finished";
  };
  return film(2 * steps + 1, show, tree, status).box;
}
