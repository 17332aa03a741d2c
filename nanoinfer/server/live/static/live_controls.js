"use strict";
// The feed, and the position in it: live, or some time ago. Everything that is drawn goes through `show`.

const history_ = new History(); // `history` is the browser's own
const Live = {
  drawings: null, // from the first keyframe on
  about: null,
  fields: null, // the newest state
  number: null, // of its frame
  isLive: true,
  position: 0, // of the frame that is shown
  windowEnd: 0, // of the timeline while it is not live
  scheduled: false,
  reading: null, // ends the connection
  rests: false, // it has no feed, because it is out of view and another tab of this browser is not
  isLost: false, // from a loss of the connection to the next frame
};

// --- what is shown -----------------------------------------------------------------------------------------------------

/** Draw soon: at most once for each picture of the screen, however many frames come. */
function drawSoon() {
  if (Live.scheduled || Live.drawings === null) return;
  Live.scheduled = true;
  requestAnimationFrame(() => {
    Live.scheduled = false;
    draw();
  });
}

function draw() {
  if (history_.frames.length === 0) return;
  if (Live.isLive) {
    Live.position = history_.end - 1;
    Live.windowEnd = history_.end;
  }
  Live.position = Math.max(Live.position, history_.first); // older ones are forgotten
  const wanted = Number($("#span").value);
  const from = Math.max(Math.min(Live.windowEnd - wanted, Live.position), history_.first);
  const span = Math.max(Math.min(wanted, Live.windowEnd - from), 50); // at the beginning, frames are not wider than this
  Live.drawings.draw(Live.position, from, span);
  const { at } = history_.frame(Live.position);
  const seconds = (Date.now() - at) / 1000;
  const clock = new Date(at).toLocaleTimeString("en-GB");
  const where = Live.isLive ? clock : `${clock}, ${seconds < 100 ? seconds.toFixed(1) : Math.round(seconds)} s ago`;
  $("#where").textContent = where;
  const slider = $("#slider");
  [slider.min, slider.max] = [from, from + span - 1];
  slider.value = Live.position;
  slider.setAttribute("aria-valuetext", where);
  $("#back").disabled = Live.position === history_.first;
  $("#forward").disabled = Live.position === history_.end - 1;
  $("#live").setAttribute("aria-pressed", String(Live.isLive));
  const newer = history_.end - Live.windowEnd;
  $("#newer").textContent = !Live.isLive && newer ? `${plural(newer, "newer frame")}` : "";
}

/** Show what was at a position, and stay there while the engine goes on. */
function show(position) {
  Live.isLive = false;
  Live.position = Math.min(Math.max(position, history_.first), history_.end - 1);
  Live.windowEnd = Math.max(Live.windowEnd, Live.position + 1);
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
$("#span").addEventListener("change", drawSoon);
$("#timeline").addEventListener("click", (event) => {
  const track = event.target.closest("#timeline .lanes") && $("#timeline .track").getBoundingClientRect();
  if (!track || event.clientX < track.left || event.target.closest("input, button")) return;
  const { min, max } = $("#slider");
  show(Number(min) + Math.floor(((event.clientX - track.left) / track.width) * (max - min + 1)));
});
$("#save").addEventListener("click", async () => {
  const saved = $("#saved");
  try {
    saved.textContent = "collecting …";
    const response = await Session.fetch("live/trace");
    const url = URL.createObjectURL(await response.blob());
    el("a", { href: url, download: "nanoinfer-trace.json" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    saved.textContent = "nanoinfer-trace.json: for ui.perfetto.dev, or python -m nanoinfer trace --load";
  } catch (error) {
    saved.textContent = `not saved: ${error.message}`;
  }
});
new ResizeObserver(drawSoon).observe($("#engine"));

// --- the feed ----------------------------------------------------------------------------------------------------------

function take(frame) {
  const isOther = frame.key && frame.about.feed !== Live.about?.feed; // a server that has been started anew
  if (Live.isLost) {
    const missed = plural(Math.max(frame.number - Live.number - 1, 0), "frame");
    tellState(isOther ? "connected again: the server has started anew" : `connected again; missed: ${missed}`, "works");
    Live.isLost = false;
  }
  if (frame.key) {
    if (JSON.stringify(frame.about) !== JSON.stringify(Live.about)) {
      Live.about = frame.about;
      history_.clear();
      Mine.clear(); // another server counts its requests anew
      Live.drawings = new LiveDrawings(frame.about, history_);
      document.dispatchEvent(new CustomEvent("about", { detail: frame.about }));
    }
    Live.fields = frame.state;
  } else if (frame.number === Live.number + 1) {
    Live.fields = merged(Live.fields, frame.state);
  } else {
    throw new Error(`frame ${frame.number} cannot follow frame ${Live.number}`);
  }
  Live.number = frame.number;
  history_.add(Live.fields);
  drawSoon();
}

function tellState(text, kind) {
  const state = $("#connection");
  if (state.textContent !== text) state.textContent = text;
  state.className = kind;
}

/** Read frames for as long as the page is open; after a loss, wait a little longer each time. */
async function follow() {
  let wait = 500;
  for (;;) {
    try {
      tellState("connecting …", "waits");
      Live.reading = new AbortController();
      const response = await Session.fetch("live/events", { headers: { Accept: "text/event-stream" }, signal: Live.reading.signal });
      if (!Live.isLost) tellState("connected", "works");
      for await (const { event, data } of eventsOf(response)) {
        if (event === "frame") take(JSON.parse(data));
        wait = 500;
      }
      tellState("The server has ended the feed. Trying again …", "failed");
    } catch (error) {
      if (Live.rests) {
        tellState("resting: another tab of this browser watches", "waits");
        await inView();
        Live.rests = false;
        Live.isLost = Live.number !== null;
        continue;
      }
      if (error.status === 401) {
        tellState("The server wants an API key.", "failed");
        askForKey();
        await keyGiven();
        continue;
      }
      tellState(`${error instanceof RefusedError ? error.message : "No connection to the server"}. Trying again …`, "failed");
    }
    Live.isLost = Live.number !== null;
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(2 * wait, 10_000);
  }
}

// A browser has six connections per server, and each tab's feed keeps one. So tabs that are out of view give way to those in view.
const tabs = new BroadcastChannel("nanoinfer");
tabs.addEventListener("message", () => {
  if (!document.hidden || Live.rests) return;
  Live.rests = true;
  Live.reading?.abort();
});
const claim = () => document.hidden || tabs.postMessage("in view");
const inView = () => new Promise((resolve) => document.addEventListener("visibilitychange", () => document.hidden || resolve()));
document.addEventListener("visibilitychange", claim);
claim();

// A browser may keep a page that was left, and its connections, of which it has few per server. The loop goes on when it is back.
window.addEventListener("pagehide", () => Live.reading?.abort());

// --- the key -----------------------------------------------------------------------------------------------------------

function askForKey() {
  $("#key").open = true;
}

const keyGiven = () => new Promise((resolve) => document.addEventListener("key", resolve, { once: true }));

$("#key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  Session.key = $("#key-field").value.trim();
  $("#key").open = false;
  document.dispatchEvent(new CustomEvent("key"));
});
$("#key-field").value = Session.key;

// --- a node's text -----------------------------------------------------------------------------------------------------

async function openNode(number) {
  const node = Live.drawings.state.nodes.get(number);
  if (node === undefined) return;
  const facts = [plural(node.length, "token"), `slots ${runsText(node.value, 3)}`, `lock_ref ${node.lock}`, plural(node.hits, "hit"), ...(node.label ? [node.label] : [])];
  const kept = storeyWords(node.kept, "in");
  if (kept) facts.push(`also kept: ${kept}`);
  $("#node-facts").textContent = facts.join(" · ");
  $("#node-words").replaceChildren();
  $("#node").showModal();
  if (!Live.about.show_prompts) {
    $("#node-words").textContent = "What others have written is shown only by a server that was started with --show-prompts.";
    return;
  }
  try {
    const { before, text, left_out } = await Session.json(`live/node/${number}`);
    $("#node-words").append(el("span", { class: "prompt", text: before }), el("span", { text }), left_out ? ` … ${plural(left_out, "more token")}` : "");
  } catch (error) {
    $("#node-words").textContent = error.message;
  }
}

const nodeAt = (event) => event.target.closest?.("#tree [data-node]");
document.addEventListener("click", (event) => nodeAt(event) && openNode(Number(nodeAt(event).dataset.node)));
document.addEventListener("keydown", (event) => {
  if (!nodeAt(event) || (event.key !== "Enter" && event.key !== " ")) return;
  event.preventDefault();
  openNode(Number(nodeAt(event).dataset.node));
});
$("#node-close").addEventListener("click", () => $("#node").close());

document.addEventListener("pointerover", (event) => Live.drawings?.point(event.target));
document.addEventListener("focusin", (event) => event.target.matches("[data-node], .chip") && Live.drawings?.point(event.target));
follow();
window.live = { Live, history: history_, show, goLive }; // for those who look at the page with a console
