// Draws one frame of a trace, and goes from frame to frame. Every method of Page takes the state (player_state.js) and fills one
// part of the page (player.html): what happened, the batch and the texts, with draw_basics.js; draw_pools.js draws slots, rows and tree.

class Page extends Drawings {
  constructor(trace, said, replay) {
    super(trace.engine);
    Object.assign(this, { trace, said, replay });
  }

  tokenText(req, position) {
    const token = req.tokens[position];
    return this.trace.pieces[req.index]?.[position] ?? this.trace.texts[token] ?? ` ${token}`;
  }

  textOf(tokens) {
    return tokens.map((token) => this.trace.texts[token] ?? ` ${token}`).join("");
  }

  aboutToken(node, at) {
    return `K/V of “${visible(this.trace.texts[node.key[at]] ?? `${node.key[at]}`)}”, `;
  }

  aboutPosition(req, at) {
    return `K/V of “${visible(this.tokenText(req, at))}”, position ${at}`;
  }

  nodeText(node) {
    return this.textOf(node.key);
  }

  nodeLabel(node) {
    return node.extraKey == null ? null : `extra_key=${node.extraKey}`;
  }

  /** What was evicted, or why the tree is empty. */
  treeNote(state) {
    const gone = state.fresh.removed.map((node) => `“${shortened(visible(this.nodeText(node)), 24, 10)}” (${plural(node.length, "token")})`);
    const disabled = this.engine.disable_radix_cache ? "The radix cache is switched off." : "";
    return gone.length ? `Evicted now: ${gone.slice(0, 3).join(", ")}${gone.length > 3 ? ` and ${gone.length - 3} more` : ""}.` : disabled;
  }

  get mapHeight() {
    return matchMedia("(max-height: 640px)").matches ? 110 : 180;
  }

  slotNote(state) {
    const never = state.size - this.replay.usedSlots;
    return never > 0 ? `This run never uses the other ${plural(never, "slot")}.` : "";
  }

  /** How many cells the map of slots has, each of `group` slots: without slots that are never used. */
  cellsToDraw() {
    const used = this.replay.usedSlots;
    const group = Math.ceil(used / MOST_CELLS) || 1;
    return { count: Math.ceil(used / group), group };
  }

  /** The owner of each of these cells: of its slots, the most frequent one. */
  cellOwners(state) {
    const owners = state.owners();
    const { cells, group } = this.grid;
    if (group === 1) return owners;
    return cells.map((_, i) => dominant(Array.from({ length: group }, (_, k) => owners[i * group + k] ?? "free")));
  }

  draw(state, number) {
    this.state = state;
    this.drawSentence(number);
    this.drawCounters(state, number);
    this.drawBatch(state, number);
    this.drawSlots(state);
    this.drawTree(state);
    this.drawRows(state);
    this.drawTexts(state);
    this.moveCursor(number, this.replay.frames.length);
    this.followPass(this.lanesToFollow());
  }

  /** The lanes of the requests in the pass (without a pass: those running, or the last to arrive). */
  lanesToFollow() {
    const { batch, running, requests } = this.state;
    const inPass = batch.length ? batch.map((entry) => entry.req) : running.length ? running : [...requests.values()].slice(-1);
    return inPass.length ? inPass.map((req) => this.laneOf[req.index]) : this.laneOf.slice(0, 1);
  }

  // --- what happened ---

  drawSentence(number) {
    const { before, head, clauses, error } = this.said[number];
    const parts = [];
    if (before.length) parts.push(el("span", { class: "before", text: `${before.join("; ")}. ` }));
    const mode = this.replay.frames[number].mode;
    parts.push(el("b", { class: mode ? `mode p-${mode.toLowerCase()}` : "mode", text: head }), " ");
    parts.push(`${clauses.join("; ")}.`);
    if (error) parts.push(el("strong", { class: "error", text: ` The step raised ${error}.` }));
    $("#sentence").replaceChildren(...parts);
  }

  drawCounters(state, number) {
    const frame = this.replay.frames[number];
    const held = state.running.reduce((sum, req) => sum + req.slots.length, 0);
    const admitted = [...state.requests.values()].filter((req) => req.found || req.status !== "waiting");
    const prompts = admitted.reduce((sum, req) => sum + req.promptLen, 0);
    const cached = admitted.reduce((sum, req) => sum + req.cached, 0);
    const tokens = state.batch.reduce((sum, entry) => sum + entry.end - entry.start, 0);
    const drafted = admitted.reduce((sum, req) => sum + req.drafted, 0);
    const accepted = admitted.reduce((sum, req) => sum + req.accepted, 0);
    const values = {
      step: [`${frame.step} of ${this.trace.steps}`, ""],
      "tokens in the pass": [tokens, ""],
      "free slots": [state.free, "o-free"],
      "in the tree (locked)": [`${state.treeSize()} (${state.treeSize(true)})`, "o-tree"],
      "slots of requests": [held, ""],
      running: [state.running.length, ""],
      waiting: [state.waiting.length, ""],
      "prompt tokens found": [`${cached} of ${prompts}`, ""],
    };
    if (this.trace.engine.drafter.length || drafted) values["drafts accepted"] = [`${accepted} of ${drafted}`, ""];
    for (const storey of this.engine.storeys ?? []) {
      const came = [...state.requests.values()].reduce((sum, req) => sum + (req.came?.[storey] ?? 0), 0);
      values[`from ${STOREYS[storey]}`] = [came.toLocaleString("en"), `o-${storey}`];
    }
    this.fillCounters(values);
  }

  drawBatch(state, number) {
    const mode = this.replay.frames[number].mode;
    const tokens = state.batch.reduce((sum, entry) => sum + entry.end - entry.start, 0);
    const drafted = state.batch.reduce((sum, entry) => sum + entry.drafts.length, 0);
    const accepted = state.batch.reduce((sum, entry) => sum + entry.accepted, 0);
    const drafts = mode === "VERIFY" ? `, ${accepted} of ${plural(drafted, "draft")} accepted` : "";
    const title = mode === null || !state.batch.length ? "No pass" : `${mode}: B = ${state.batch.length}, T = ${tokens}${drafts}`;
    $("#batch h2").replaceChildren("Batch of this step ", el("small", { text: title }));
    const rows = state.batch.slice(0, MOST_ROWS).map((entry) => {
      const { req, start, end, slots, tokens, inputs, first } = entry;
      const texts = inputs.map((_, i) => this.tokenText(req, start + i)).join("");
      const sampled = tokens.length ? visible(tokens.map((_, i) => this.tokenText(req, first + i)).join("")) : "—";
      return el(
        "tr",
        { "data-request": req.index },
        el("td", {}, this.chip(req)),
        el("td", {}, el("q", { text: shortened(visible(texts), 11, 7) }), ...this.draftTexts(entry), el("small", { text: ` ${end - start}` })),
        el("td", { text: end - start === 1 ? `${start}` : `${start}–${end - 1}` }),
        el("td", { text: runsText(slots, runsOf(slots).length > 2 ? 1 : 2), title: runsText(slots, 99) }),
        el("td", {}, el(tokens.length ? "mark" : "span", { text: sampled, title: tokens.length > 1 ? plural(tokens.length, "token") : null })),
      );
    });
    const left = state.batch.length - rows.length;
    if (left > 0) rows.push(el("tr", {}, el("td", { colspan: 5, text: `… and ${left} more` })));
    if (!rows.length) rows.push(el("tr", {}, el("td", { colspan: 5, class: "none", text: "Nothing is computed." })));
    fill($("#batch tbody"), ...rows);
  }

  /** The drafts of a request in a VERIFY, one by one: those that became its tokens, and those that did not. */
  draftTexts({ drafts, accepted, tokens }) {
    const known = tokens.length > 0; // else the step has failed
    const looks = drafts.map((_, i) => (!known ? "draft" : i < accepted ? "draft accepted" : "draft rejected"));
    const titles = { draft: "draft", "draft accepted": "accepted draft", "draft rejected": "rejected draft" };
    return drafts.map((token, i) => el("span", { class: looks[i], title: titles[looks[i]], text: visible(this.trace.texts[token] ?? ` ${token}`) }));
  }

  // --- timeline ---

  /** Draw the timeline of the whole run. From now on only its cursor moves, and the lanes scroll to those of the pass. */
  drawTimeline(lanes) {
    const { frames } = this.replay;
    const place = placeOn(0, frames.length);
    const passes = frames.flatMap((frame, i) => (frame.mode ? [{ phase: frame.mode.toLowerCase(), from: i, to: i + 1 }] : []));
    this.laneOf = this.trace.requests.map((request, index) => this.lane({ index, name: request.name, look: lookOf(request) }, lanes.get(index) ?? [], place));
    this.timelineLegend([...lanes.values()].flat());
    $("#timeline .top").append(this.passLane(passes, place));
    $("#timeline .course").append(...this.laneOf, el("div", { class: "over" }, el("div", { class: "cursor" })));
    $("#timeline").style.setProperty("--frames", frames.length); // the slider's length follows from it (drawings.css)
  }

  // --- texts ---

  drawTexts(state) {
    const all = [...state.requests.values()];
    const live = all.filter((req) => req.status !== "ended" || state.ended.includes(req));
    const ended = all.filter((req) => !live.includes(req)).reverse();
    this.fillCards(live, ended, (req) => this.card(req, state));
    for (const text of document.querySelectorAll("#texts .text")) text.scrollTop = text.scrollHeight;
  }

  card(req, state) {
    const entry = state.batch.find((one) => one.req === req);
    const text = el("p", { class: "text" });
    let last = null;
    for (let i = 0; i < req.tokens.length; i++) {
      const look = this.lookOfToken(req, i, entry);
      if (last === null || last.className !== look) text.append((last = el(look === "new" ? "mark" : "span", { class: look })));
      last.append(this.tokenText(req, i));
    }
    const output = req.tokens.length - req.promptLen;
    const status = req.status === "ended" ? `ended: ${req.reason}` : req.status;
    const drafts = req.drafted ? ` · ${req.accepted} of ${plural(req.drafted, "draft")} accepted` : "";
    const numbers = `${status} · ${req.promptLen} prompt tokens, ${req.cached} found in the tree · ${output} of ${this.trace.requests[req.index].max_new_tokens} new${drafts}`;
    return this.frameCard(req, numbers, text, state.ended.includes(req));
  }

  /** The look of a token in a request's text: found in the tree, computed before, computed now, not computed yet, written, new. */
  lookOfToken(req, position, entry) {
    if (entry && position >= entry.first && position < entry.first + entry.tokens.length) return "new";
    if (position >= req.promptLen) return "written-text";
    if (req.status === "waiting" || req.status === "retracted" || req.status === "paused") return "pending";
    if (entry && req.status !== "ended" && position >= entry.start && position < entry.end) return "now";
    if (req.status !== "ended" && position >= req.kvLen) return "pending";
    const storey = Object.keys(STOREYS).find((name) => position >= req.fetched[name]?.[0] && position < req.fetched[name][1]);
    return position >= req.found ? "prompt" : storey ? `cached from-${storey}` : "cached";
  }
}

/** The most frequent owner. */
function dominant(owners) {
  const counts = new Map();
  for (const owner of owners) counts.set(owner, (counts.get(owner) ?? 0) + 1);
  return [...counts].reduce((best, entry) => (entry[1] > best[1] ? entry : best))[0];
}

// --- slider, buttons, keys, playback, and pointing at things: everything goes through `show(number)` ---

const data = JSON.parse($("#data").textContent);
const trace = data.trace;
const replay = new Replay(trace);
trace.steps = replay.frames.at(-1).step;
const lanes = survey(replay);
const page = new Page(trace, data.said, replay);
const lastFrame = replay.frames.length - 1;
let current = 0;
let timer = null;

/** Draw frame `number` (0: the beginning of the trace). */
function show(number) {
  current = Math.min(Math.max(number, 0), lastFrame);
  page.draw(replay.goTo(current), current);
  const frame = replay.frames[current];
  $("#slider").value = current;
  const where = frame.mode ? `step ${frame.step} of ${trace.steps}` : current ? `after step ${frame.step}` : "before the first step";
  $("#where").textContent = where;
  $("#slider").setAttribute("aria-valuetext", frame.mode ? `${where}, ${frame.mode}` : where);
  $("#first").disabled = $("#back").disabled = current === 0;
  $("#last").disabled = $("#forward").disabled = current === lastFrame;
  $("#extend").disabled = nextExtend(1) === null;
  page.light(null);
}

/** The next frame (direction 1) or the one before (-1) that is an EXTEND pass; null where there is none. */
function nextExtend(direction) {
  for (let i = current + direction; i >= 0 && i <= lastFrame; i += direction) if (replay.frames[i].mode === "EXTEND") return i;
  return null;
}

// --- playing ---

function play() {
  if (current === lastFrame) show(0);
  const tick = () => {
    show(current + 1);
    if (current === lastFrame) pause();
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

$("#slider").max = lastFrame;
$("#slider").addEventListener("input", () => go(Number($("#slider").value)));
$("#first").addEventListener("click", () => go(0));
$("#back").addEventListener("click", () => go(current - 1));
$("#forward").addEventListener("click", () => go(current + 1));
$("#last").addEventListener("click", () => go(lastFrame));
$("#extend").addEventListener("click", () => go(nextExtend(1)));
$("#play").addEventListener("click", () => (timer === null ? play() : pause()));
$("#timeline").addEventListener("click", (event) => {
  const track = event.target.closest("#timeline .lanes") && $("#timeline .track").getBoundingClientRect();
  if (!track || event.clientX < track.left || event.target.closest("input")) return;
  go(Math.floor(((event.clientX - track.left) / track.width) * replay.frames.length));
});

const KEYS = {
  ArrowLeft: () => go(current - 1),
  ArrowRight: () => go(current + 1),
  ArrowUp: () => go(nextExtend(-1)),
  ArrowDown: () => go(nextExtend(1)),
  Home: () => go(0),
  End: () => go(lastFrame),
  " ": () => (timer === null ? play() : pause()),
};

// A control that got the focus from the keyboard keeps its keys: space presses a button, and arrows choose the speed. After a
// click the focus stays on the clicked control, but space plays the run again.
let clicked = null;
document.addEventListener("pointerdown", (event) => (clicked = event.target.closest("button, select")));
document.addEventListener("focusin", (event) => event.target !== clicked && (clicked = null));
$("#speed").addEventListener("change", (event) => event.target === clicked && event.target.blur());

const forControl = (event) => {
  const control = event.target.closest(event.key === " " ? "#controls button, select" : "select");
  return control !== null && (control !== clicked || event.key !== " ");
};
document.addEventListener("keydown", (event) => {
  if (!KEYS[event.key] || forControl(event) || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  if (event.key !== " " || !event.repeat) KEYS[event.key]();
});
// Firefox presses a button when the space key comes up again.
document.addEventListener("keyup", (event) => event.key === " " && !forControl(event) && event.preventDefault());

// What the looks of a request's text mean: those of the storeys behind that of the tree.
for (const storey of (trace.engine.storeys ?? []).toReversed()) {
  $("#texts-title .cached").after(" · ", el("span", { class: `cached from-${storey}`, text: `from ${STOREYS[storey]}` }));
}

page.followPointer();
$("#run").textContent =
  `${plural(trace.requests.length, "request")}, ${plural(trace.steps, "step")} · ${plural(trace.engine.max_total_tokens, "slot")}` +
  ` · ${plural(trace.engine.max_running_requests, "row")} · page_size ${trace.engine.page_size} · ${trace.engine.schedule_policy}` +
  (trace.engine.chunked_prefill_size ? ` · chunked_prefill_size ${trace.engine.chunked_prefill_size}` : "") +
  (trace.engine.drafter.length ? ` · drafter ${trace.engine.drafter.join(", ")} (up to ${plural(trace.engine.num_draft_tokens, "draft")})` : "");
page.drawTimeline(lanes);
page.layOutSlots();
new ResizeObserver(() => {
  const before = page.grid;
  page.layOutSlots();
  if (page.grid !== before && page.state) page.drawSlots(page.state);
  if (page.state) page.followPass(page.lanesToFollow());
}).observe($("#slots .grid"));
show(Math.floor(Number(location.hash.slice(1))) || data.start); // #12: opens at step 12
window.player = { show, play, pause, replay, page, get current() { return current; } };
