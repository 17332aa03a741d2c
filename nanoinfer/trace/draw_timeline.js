// The timeline: one lane per request shows what it did in each frame, above them a lane for the passes. More methods of Drawings.

Object.assign(Drawings.prototype, {
  /** A lane with a name; `runs`: what was done when, [{phase, from, to}]. `place(from, to)`: where that is, as CSS. */
  lane(req, runs, place) {
    const name = el("span", { "data-request": req.index }, el("i", { class: `swatch ${req.look}` }), req.name);
    return el("div", { class: "lane" }, name, el("div", { class: "track" }, ...this.marks(runs, place)));
  },

  passLane(runs, place) {
    return el("div", { class: "lane pass" }, el("span", { text: "pass" }), el("div", { class: "track" }, ...this.marks(runs, place)));
  },

  marks(runs, place) {
    return runs.map(({ phase, from, to }) => el("i", { class: `p-${phase}`, style: place(from, to) }));
  },

  /** What the colours of `runs` mean. */
  timelineLegend(runs) {
    const key = ["waiting", "extend", "decode", "verify", "idle", "retracted", "paused", "failed"].filter((phase) => runs.some((run) => run.phase === phase));
    const words = { idle: "running, not in this pass" };
    fill($("#timeline .legend"), ...key.map((phase) => el("span", { class: "entry" }, el("i", { class: `swatch p-${phase}` }), words[phase] ?? phase)));
  },

  /** Show frame `number` of `length` as the current one. */
  moveCursor(number, length) {
    $("#timeline .cursor").style.left = `${(100 * (number + 0.5)) / length}%`;
    $("#slider").style.setProperty("--played", `${(100 * number) / Math.max(length - 1, 1)}%`);
  },

  /** Scroll to where most of `lanes` are visible. Stay if no other place would show more. */
  followPass(lanes) {
    const box = $("#timeline .lanes");
    const room = box.scrollHeight - box.clientHeight;
    if (room <= 0) return;
    const head = $("#timeline .top").offsetHeight; // stays in view, above the lanes
    const seen = (at) => lanes.filter((lane) => lane.offsetTop >= at + head && lane.offsetTop + lane.offsetHeight <= at + box.clientHeight).length;
    const places = lanes.map((lane) => Math.min(lane.offsetTop - head, room));
    box.scrollTop = places.reduce((best, place) => (seen(place) > seen(best) ? place : best), box.scrollTop);
  },
});

/** A function that places frames `from`..`to` on a track of `length` frames that begins with frame `first`. */
function placeOn(first, length) {
  return (from, to) => `left:${(100 * (from - first)) / length}%;width:${(100 * (to - from)) / length}%`;
}
