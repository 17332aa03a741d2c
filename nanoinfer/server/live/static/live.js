"use strict";
// The feed, and the position in it: the newest frame, or one some time ago. Everything that is drawn goes through `draw`.

const SPAN = 300; // frames that the timeline shows
const MOST_LANES = 24;
const Mine = new Map(); // the engine's numbers of the requests that this page has sent → the texts of their tokens, {prompt, written}, or null
const Live = {
  trace: null, // all that the feed has told of this recording, as in a file
  replay: null,
  page: null,
  isLive: true,
  position: 0, // of the frame that is shown
  end: 0, // of the timeline; it stays while the page is not live
  scheduled: false,
  samples: [], // [time, output tokens] of the last second
};

// --- what is shown -----------------------------------------------------------------------------------------------------

/** Draw soon: at most once for each picture of the screen, however much comes. */
function drawSoon() {
  if (Live.scheduled || Live.page === null) return;
  Live.scheduled = true;
  requestAnimationFrame(() => {
    Live.scheduled = false;
    draw();
  });
}

function draw() {
  const { replay, page } = Live;
  if (Live.isLive) [Live.position, Live.end] = [replay.last, replay.frames.length];
  const from = Math.max(Math.min(Live.end - SPAN, Live.position), 0);
  const length = Math.max(Math.min(SPAN, Live.end - from), 50); // at the beginning, frames are not wider than this
  Live.samples = Live.samples.filter(([at]) => at > performance.now() - 1000);
  page.draw(Live.position, { "tokens/s": [Live.samples.reduce((sum, [, tokens]) => sum + tokens, 0), ""] });
  page.drawTimeline(from, length, MOST_LANES);
  page.moveCursor(Live.position - from, length);
  const where = `${Live.isLive ? "" : "paused at "}step ${replay.frames[Live.position].step}`;
  $("#where").textContent = where;
  const slider = $("#slider");
  [slider.min, slider.max] = [from, from + length - 1];
  slider.value = Live.position;
  slider.setAttribute("aria-valuetext", where);
  $("#back").disabled = Live.position === 0;
  $("#forward").disabled = Live.position === replay.last;
  $("#live").setAttribute("aria-pressed", String(Live.isLive));
}

/** Show what was at a position, and stay there while the engine goes on. */
function show(position) {
  if (Live.replay === null) return;
  Live.isLive = false;
  Live.position = Math.min(Math.max(position, 0), Live.replay.last);
  Live.end = Math.max(Live.end, Live.position + 1);
  drawSoon();
}

function goLive() {
  Live.isLive = true;
  drawSoon();
}

$("#slider").addEventListener("input", () => show(Number($("#slider").value)));
$("#back").addEventListener("click", () => show(Live.position - 1));
$("#forward").addEventListener("click", () => show(Live.position + 1));
$("#live").addEventListener("click", () => (Live.isLive ? show(Live.position) : goLive()));
$("#save").addEventListener("click", () => {
  if (Live.trace === null) return;
  const { about, requests, ...rest } = Live.trace;
  const trace = { ...rest, requests: requests.map(({ mine, ...request }) => request) };
  const url = URL.createObjectURL(new Blob([JSON.stringify(trace)], { type: "application/json" }));
  el("a", { href: url, download: "nanoinfer-trace.json" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
  $("#saved").textContent = "nanoinfer-trace.json: open it with python -m nanoinfer trace --load";
});
followPointer(() => Live.page, show);
new ResizeObserver(drawSoon).observe($("#engine"));
setInterval(drawSoon, 1000); // tokens per second fall while nothing happens

// --- the feed ----------------------------------------------------------------------------------------------------------

/** Take a message. One with an `engine` begins a new recording, and the page forgets the one before. */
function take({ requests, events, texts, pieces, ...head }) {
  if (head.engine) {
    if (head.about.server !== Live.trace?.about.server) Mine.clear(); // another server counts its requests anew
    Live.trace = { ...head, texts: {}, pieces: {}, requests: [], events: [] };
    Live.replay = new Replay(Live.trace);
    Live.page = new LivePage(Live.trace, Live.replay);
    Live.isLive = true;
    document.dispatchEvent(new CustomEvent("about", { detail: head.about }));
  }
  Object.assign(Live.trace.texts, texts);
  Object.assign(Live.trace.pieces, pieces);
  Live.trace.requests.push(...requests);
  Live.trace.events.push(...events);
  for (const event of events) Live.replay.add(event);
  const tokens = events.flatMap((event) => event.batch ?? []).reduce((sum, entry) => sum + entry[4].length, 0);
  if (!head.engine) Live.samples.push([performance.now(), tokens]);
  for (const request of requests) request.mine = Mine.has(request.request_id);
  drawSoon();
}

function tellState(text, kind) {
  const state = $("#connection");
  if (state.textContent !== text) state.textContent = text;
  state.className = kind;
}

/** Read the feed for as long as the page is open; after a loss, wait a little longer each time. */
async function follow() {
  for (let wait = 500; ; wait = Math.min(2 * wait, 4000)) {
    try {
      const response = await Session.fetch("live/events", { headers: { Accept: "text/event-stream" } });
      tellState("connected", "works");
      for await (const { event, data } of eventsOf(response)) {
        if (event === "news") take(JSON.parse(data));
        wait = 500;
      }
      tellState("The server has ended the feed. Trying again …", "failed");
    } catch (error) {
      if (error.status === 401) {
        tellState("The server wants an API key.", "failed");
        askForKey();
        await new Promise((resolve) => document.addEventListener("key", resolve, { once: true }));
        continue;
      }
      tellState(`${error.message.replace(/\.$/, "")}. Trying again …`, "failed");
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

// --- what is one's own -------------------------------------------------------------------------------------------------
//
// A server hides all tokens from all who watch (recording.py). This page knows its own requests' texts, because it has sent them and
// got the answers, and puts them where these requests' tokens are. Nobody else learns anything, and of others' texts the page knows
// nothing: in a node of the tree it shows a text only while it knows from its own requests what each slot holds.

/** This page has sent the request with this number. `own` gets what the promise `texts` brings. */
async function markMine(number, own, texts) {
  Mine.set(number, own);
  if (Mine.size > 100) Mine.delete(Mine.keys().next().value);
  for (const request of Live.trace?.requests ?? []) request.mine = Mine.has(request.request_id); // it may be drawn already, as another's
  drawSoon();
  if (own === null) return;
  own.prompt = await texts;
  if (!own.prompt.length || Live.replay === null) return;
  Live.replay = Live.page.replay = new Replay(Live.trace); // all states are made again
  for (const event of Live.trace.events) Live.replay.add(event);
  drawSoon();
}

class LivePage extends Page {
  tokenText(req, position) {
    return ownText(Mine.get(req.request.request_id), position) ?? super.tokenText(req, position);
  }

  textOf(token) {
    return Array.isArray(token) ? (ownText(...token) ?? super.textOf(0)) : super.textOf(token);
  }
}

/** The text of a token of one's own; undefined as long as it is not known. */
function ownText(own, position) {
  const length = own?.prompt.length;
  return length ? (own.prompt[position] ?? own.written[position - length]) : undefined;
}

// In the tree, a token of one's own is [own, position].
const { apply } = State.prototype;
State.prototype.apply = function (event) {
  const ownOf = (index) => Mine.get(this.trace.requests[index].request_id);
  const held = new Map(); // slot → the token of one's own in it, of requests that have it until this event
  for (const req of this.running) if (ownOf(req.index)) req.slots.forEach((slot, i) => held.set(slot, [ownOf(req.index), req.treeLen + i]));
  for (const [index, start, , runs] of event.batch ?? []) {
    fromRuns(runs).forEach((slot, i) => (ownOf(index) ? held.set(slot, [ownOf(index), start + i]) : held.delete(slot)));
  }
  const named = (tokens, runs) => fromRuns(runs).map((slot, i) => held.get(slot) ?? tokens[i]);
  const tree = (event.tree ?? []).map(([what, number, ...rest]) => {
    if (what === "add") rest[1] = named(rest[1], rest[2]);
    if (what === "grow") rest[0] = named(rest[0], rest[1]);
    return [what, number, ...rest];
  });
  apply.call(this, { ...event, tree });
  for (const [index] of [...(event.admitted ?? []), ...(event.paths ?? [])]) {
    let position = 0; // what it has found in the tree is its own text, too
    if (ownOf(index)) for (const { key } of this.path(this.requests.get(index))) key.forEach((_, i) => (key[i] = [ownOf(index), position++]));
  }
};

// --- the key -----------------------------------------------------------------------------------------------------------

function askForKey() {
  $("#key").hidden = false;
  $("#key").open = true;
}

$("#key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  Session.use($("#key-field").value.trim());
  $("#key").open = false;
  document.dispatchEvent(new CustomEvent("key"));
});
$("#key-field").value = Session.key;

document.addEventListener("DOMContentLoaded", follow); // when chat.js has run, too
window.live = { Live, show, goLive }; // for those who look at the page with a console
