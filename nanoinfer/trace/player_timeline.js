// The timeline under the slider: one lane per request shows what it did in each frame. It is drawn once. Then only the cursor
// moves, and if the lanes don't all fit, they scroll to those of the pass.

/** What every request does in every frame, as runs {phase, from, to}. Also sets how many slots are worth drawing. */
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
      if (last && last.phase === phase && last.to === number && phase !== "extend" && phase !== "verify") last.to = number + 1;
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
  const pass = el("div", { class: "lane pass" }, el("span", { text: "pass" }), el("div", { class: "track" }, ...passes));
  page.laneOf = page.trace.requests.map((request, index) => {
    const parts = (lanes.get(index) ?? []).map(({ phase, from, to }) => el("i", { class: `p-${phase}`, style: place(from, to) }));
    const name = el("span", { "data-request": index }, el("i", { class: `swatch ${page.looks[index]}` }), request.name);
    return el("div", { class: "lane" }, name, el("div", { class: "track" }, ...parts));
  });
  const key = ["waiting", "extend", "decode", "verify", "idle", "retracted", "paused", "failed"].filter((phase) => [...lanes.values()].flat().some((run) => run.phase === phase));
  const words = { idle: "running, not in this pass" };
  $("#timeline .legend").append(...key.map((phase) => el("span", { class: "entry" }, el("i", { class: `swatch p-${phase}` }), words[phase] ?? phase)));
  $("#timeline .top").append(pass);
  $("#timeline .course").append(...page.laneOf, el("div", { class: "over" }, el("div", { class: "cursor" })));
  $("#timeline").style.setProperty("--frames", frames.length); // the slider's length follows from it (player.css)
}

Object.assign(Page.prototype, {
  moveCursor(number) {
    const { length } = this.replay.frames;
    $("#timeline .cursor").style.left = `${(100 * (number + 0.5)) / length}%`;
    $("#slider").style.setProperty("--played", `${(100 * number) / Math.max(length - 1, 1)}%`);
    this.followPass();
  },

  /** Scroll to where most lanes of the requests in the pass are visible (without a pass: those running, or the last to arrive).
   *  Stay if no other place would show more. */
  followPass() {
    const box = $("#timeline .lanes");
    const room = box.scrollHeight - box.clientHeight;
    if (room <= 0) return;
    const head = $("#timeline .top").offsetHeight; // stays in view, above the lanes
    const { batch, running, requests } = this.state;
    const inPass = batch.length ? batch.map((entry) => entry.req) : running.length ? running : [...requests.values()].slice(-1);
    const lanes = inPass.length ? inPass.map((req) => this.laneOf[req.index]) : this.laneOf.slice(0, 1);
    const seen = (at) => lanes.filter((lane) => lane.offsetTop >= at + head && lane.offsetTop + lane.offsetHeight <= at + box.clientHeight).length;
    const places = lanes.map((lane) => Math.min(lane.offsetTop - head, room));
    box.scrollTop = places.reduce((best, place) => (seen(place) > seen(best) ? place : best), box.scrollTop);
  },
});
