// The trace player: slider, buttons, keys, playback, and pointing at things. Everything goes through `show(number)`.

const data = JSON.parse($("#data").textContent);
const trace = data.trace;
const replay = new Replay(trace);
for (const event of trace.events) replay.add(event);
const page = new Page(trace, replay);
const steps = replay.frames[replay.last].step;
let current = 0;
let timer = null;

/** Draw frame `number` (0: the beginning of the trace). */
function show(number) {
  current = Math.min(Math.max(number, 0), replay.last);
  page.point(document.body); // nothing
  page.draw(current);
  page.moveCursor(current, replay.frames.length);
  page.followPass();
  const frame = replay.frames[current];
  say(frame.mode, data.said[current]);
  $("#slider").value = current;
  const where = frame.mode ? `step ${frame.step} of ${steps}` : current ? `after step ${frame.step}` : "before the first step";
  $("#where").textContent = where;
  $("#slider").setAttribute("aria-valuetext", frame.mode ? `${where}, ${frame.mode}` : where);
  $("#first").disabled = $("#back").disabled = current === 0;
  $("#last").disabled = $("#forward").disabled = current === replay.last;
  $("#extend").disabled = nextExtend(1) === null;
}

/** What happened in a frame, in words. */
function say(mode, { before, head, clauses, error }) {
  const parts = [];
  if (before.length) parts.push(el("span", { class: "before", text: `${before.join("; ")}. ` }));
  parts.push(el("b", { class: mode ? `mode p-${mode.toLowerCase()}` : "mode", text: head }), ` ${clauses.join("; ")}.`);
  if (error) parts.push(el("strong", { class: "error", text: ` The step raised ${error}.` }));
  $("#sentence").replaceChildren(...parts);
}

/** The next frame (direction 1) or the one before (-1) that is an EXTEND pass; null where there is none. */
function nextExtend(direction) {
  for (let i = current + direction; i >= 0 && i <= replay.last; i += direction) if (replay.frames[i].mode === "EXTEND") return i;
  return null;
}

// --- playing ---

function play() {
  if (current === replay.last) show(0);
  const tick = () => {
    show(current + 1);
    if (current === replay.last) pause();
    else timer = setTimeout(tick, 1000 / Number($("#speed").value));
  };
  timer = setTimeout(tick, 1000 / Number($("#speed").value));
  $("#play").setAttribute("aria-pressed", "true");
  $("#play").setAttribute("aria-label", "Pause");
  $("#sentence").setAttribute("aria-live", "off"); // a screen reader could not keep up
}

function pause() {
  clearTimeout(timer);
  timer = null;
  $("#play").setAttribute("aria-pressed", "false");
  $("#play").setAttribute("aria-label", "Play");
  $("#sentence").setAttribute("aria-live", "polite");
}

function go(number) {
  pause();
  if (number !== null) show(number);
}

$("#slider").max = replay.last;
$("#slider").addEventListener("input", () => go(Number($("#slider").value)));
$("#first").addEventListener("click", () => go(0));
$("#back").addEventListener("click", () => go(current - 1));
$("#forward").addEventListener("click", () => go(current + 1));
$("#last").addEventListener("click", () => go(replay.last));
$("#extend").addEventListener("click", () => go(nextExtend(1)));
$("#play").addEventListener("click", () => (timer === null ? play() : pause()));

const KEYS = {
  ArrowLeft: () => go(current - 1),
  ArrowRight: () => go(current + 1),
  ArrowUp: () => go(nextExtend(-1)),
  ArrowDown: () => go(nextExtend(1)),
  Home: () => go(0),
  End: () => go(replay.last),
  " ": () => (timer === null ? play() : pause()),
};

// A control that the keyboard has reached keeps its keys: space presses a button, and arrows choose the speed. One that a pointer
// has used gives up the focus, so that space plays the run again.
$("#controls").addEventListener("click", (event) => event.detail && event.target.closest("button")?.blur());
$("#speed").addEventListener("change", (event) => event.target.matches(":focus-visible") || event.target.blur());
document.addEventListener("keydown", (event) => {
  const isForControl = event.target.closest(event.key === " " ? "#controls button, select" : "select");
  if (!KEYS[event.key] || isForControl || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  if (event.key !== " " || !event.repeat) KEYS[event.key]();
});

followPointer(() => page, go);
$("#run").textContent =
  `${plural(trace.requests.length, "request")}, ${plural(steps, "step")} · ${plural(trace.engine.max_total_tokens, "slot")}` +
  ` · ${plural(trace.engine.max_running_requests, "row")} · page_size ${trace.engine.page_size} · ${trace.engine.schedule_policy}` +
  (trace.engine.chunked_prefill_size ? ` · chunked_prefill_size ${trace.engine.chunked_prefill_size}` : "") +
  (trace.engine.drafter.length ? ` · drafter ${trace.engine.drafter.join(", ")} (up to ${plural(trace.engine.num_draft_tokens, "draft")})` : "");
page.drawTimeline(0, replay.frames.length);
show(Math.floor(Number(location.hash.slice(1))) || data.start); // #12: opens at step 12
window.player = { show, play, pause, replay, page, get current() { return current; } };
