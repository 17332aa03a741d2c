// The timeline under the slider: a lane a request, what it did in each frame. Drawn once; then only the cursor moves.

/** What every request does in every frame, as runs {phase, from, to}; and how many slots are worth drawing. */
function survey(replay) {
  const lanes = new Map();
  let used = 0;
  replay.frames.forEach((frame, number) => {
    const state = replay.goTo(number);
    const inPass = new Set(state.batch.map((entry) => entry.req));
    for (const node of state.fresh.nodes) for (const slot of state.nodes.get(node)?.value ?? []) used = Math.max(used, slot + 1);
    for (const req of state.running) for (const slot of req.slots) used = Math.max(used, slot + 1);
    for (const slot of state.fresh.written) used = Math.max(used, slot + 1);
    for (const req of state.requests.values()) {
      if (req.status === "ended" && !state.ended.includes(req)) continue;
      if (frame.mode === null) continue;
      if (req.status === "ended" && !inPass.has(req)) continue; // it ended before this step
      const waits = req.status === "retracted" || req.status === "paused" ? req.status : "waiting";
      const phase = inPass.has(req) ? frame.mode.toLowerCase() : req.row === null ? waits : "idle";
      const runs = lanes.get(req.index) ?? lanes.set(req.index, []).get(req.index);
      const last = runs.at(-1);
      if (last && last.phase === phase && last.to === number && phase !== "extend") last.to = number + 1;
      else runs.push({ phase, from: number, to: number + 1 });
    }
    for (const req of state.ended) {
      const runs = lanes.get(req.index) ?? lanes.set(req.index, []).get(req.index);
      const at = number + (inPass.has(req) ? 1 : 0);
      runs.push({ phase: req.reason === "stop" || req.reason === "length" ? "end" : "cut", from: at, to: at });
    }
  });
  const { max_total_tokens: size } = replay.trace.engine;
  replay.usedSlots = size <= 512 || used > size / 2 ? size : Math.max(used, 1);
  return lanes;
}

function drawTimeline(page, lanes) {
  const frames = page.replay.frames;
  const place = (from, to) => `left:${(100 * from) / frames.length}%;width:${(100 * (to - from)) / frames.length}%`;
  const passes = frames.flatMap((frame, i) => (frame.mode ? [el("i", { class: `p-${frame.mode.toLowerCase()}`, style: place(i, i + 1) })] : []));
  const lines = [el("div", { class: "lane pass" }, el("span", { text: "pass" }), el("div", { class: "track" }, ...passes))];
  page.trace.requests.forEach((request, index) => {
    const parts = (lanes.get(index) ?? []).map(({ phase, from, to }) => el("i", { class: `p-${phase}`, style: place(from, to) }));
    const name = el("button", { type: "button", class: "chip", "data-request": index }, el("i", { class: `swatch ${page.looks[index]}` }), request.name);
    lines.push(el("div", { class: "lane" }, name, el("div", { class: "track" }, ...parts)));
  });
  const key = ["waiting", "extend", "decode", "idle", "retracted", "paused", "failed"].filter((phase) => [...lanes.values()].flat().some((run) => run.phase === phase));
  const words = { idle: "running, not in this pass" };
  const legend = el("p", { class: "legend" }, ...key.map((phase) => el("span", { class: "entry" }, el("i", { class: `swatch p-${phase}` }), words[phase] ?? phase)));
  const cursor = el("div", { class: "cursor" });
  cursor.style.width = `${100 / frames.length}%`;
  $("#timeline").replaceChildren(el("div", { class: "lanes" }, ...lines, el("div", { class: "over" }, cursor)), legend);
}

Page.prototype.moveCursor = function (number) {
  $("#timeline .cursor").style.left = `${(100 * number) / this.replay.frames.length}%`;
};
