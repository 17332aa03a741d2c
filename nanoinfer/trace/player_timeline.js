// The timeline of a trace, which is drawn once, with draw_timeline.js.

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

/** Draw the timeline of the whole run. From now on only its cursor moves, and the lanes scroll to those of the pass. */
function drawTimeline(page, lanes) {
  const frames = page.replay.frames;
  const place = placeOn(0, frames.length);
  const passes = frames.flatMap((frame, i) => (frame.mode ? [{ phase: frame.mode.toLowerCase(), from: i, to: i + 1 }] : []));
  page.laneOf = page.trace.requests.map((request, index) => page.lane({ index, name: request.name, look: lookOf(request) }, lanes.get(index) ?? [], place));
  page.timelineLegend([...lanes.values()].flat());
  $("#timeline .top").append(page.passLane(passes, place));
  $("#timeline .course").append(...page.laneOf, el("div", { class: "over" }, el("div", { class: "cursor" })));
  $("#timeline").style.setProperty("--frames", frames.length); // the slider's length follows from it (drawings.css)
}
