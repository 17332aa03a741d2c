// What all drawings of an engine are made with: the trace player's (player.js) and the server's live page's. They draw states that
// answer the same questions (player_state.js says which). draw_pools.js adds more methods to the class Drawings.
// Text from a trace or a model is only ever set as text, never as HTML.

const $ = (selector) => document.querySelector(selector);
const MOST_ROWS = 16; // of the batch and of the rows
const MOST_CARDS = 12;

/** An element with attributes (`text` sets its text) and children. */
function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else if (name === "style") element.style.cssText = value; // a page's policy may forbid it as an attribute
    else if (value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Make `children` (elements or texts) the content of `parent`. Elements that were there before stay, if one of the same kind and
 *  with the same `data-` attributes comes in their order: so they keep the focus, and a pointer stays on them. */
function fill(parent, ...children) {
  let at = parent.firstChild;
  for (const child of children) {
    const kept = keptFor(child, at);
    if (kept === null) {
      parent.insertBefore(typeof child === "string" ? document.createTextNode(child) : child, at);
      continue;
    }
    while (at !== kept) at = removed(at);
    at = at.nextSibling;
    if (kept.nodeType === Node.TEXT_NODE) {
      const text = typeof child === "string" ? child : child.data;
      if (kept.data !== text) kept.data = text;
      continue;
    }
    for (const name of kept.getAttributeNames()) if (!child.hasAttribute(name) && name !== "style") kept.removeAttribute(name);
    for (const name of child.getAttributeNames()) {
      if (name !== "style" && kept.getAttribute(name) !== child.getAttribute(name)) kept.setAttribute(name, child.getAttribute(name));
    }
    if (kept.style.cssText !== child.style.cssText) kept.style.cssText = child.style.cssText;
    fill(kept, ...child.childNodes);
  }
  while (at !== null) at = removed(at);
}

/** The first of `at` and the nodes after it that `child` may change; null if there is none. */
function keptFor(child, at) {
  const isText = typeof child === "string" || child.nodeType === Node.TEXT_NODE;
  for (let node = at; node !== null; node = node.nextSibling) {
    if (isText) return node.nodeType === Node.TEXT_NODE ? node : null;
    if (node.nodeType === Node.ELEMENT_NODE && node.tagName === child.tagName && keyOf(node) === keyOf(child)) return node;
    if (keyOf(child) === "" && node.nodeType === Node.ELEMENT_NODE && keyOf(node) !== "") return null;
  }
  return null;
}

const keyOf = (element) => ["node", "request", "key"].map((name) => element.dataset?.[name] ?? "").join(" ").trim();

function removed(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

const plural = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const visible = (text) => text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
const shortened = (text, head, tail) => (text.length > head + tail + 1 ? `${text.slice(0, head)}…${text.slice(-tail)}` : text);

/** Slots as runs of neighbours: "0–6, 16–20". */
function runsText(slots, limit = 4) {
  const runs = runsOf(slots).map(([start, length]) => (length === 1 ? `${start}` : `${start}–${start + length - 1}`));
  return runs.length > limit ? `${runs.slice(0, limit).join(", ")}, …` : runs.join(", ");
}

function runsOf(slots) {
  const runs = [];
  for (const slot of slots) {
    const last = runs.at(-1);
    if (last && slot === last[0] + last[1]) last[1] += 1;
    else runs.push([slot, 1]);
  }
  return runs;
}

/** Runs [start, length, start, length, ...] as slots, in order. */
function fromRuns(runs) {
  const slots = [];
  for (let i = 0; i < runs.length; i += 2) {
    for (let slot = runs[i]; slot < runs[i] + runs[i + 1]; slot++) slots.push(slot);
  }
  return slots;
}

const STOREYS = { host: "host memory", disk: "files" };


/** How many of a request's first `found` tokens came from where: {device, host, disk}. */
function origins({ found, fetched }) {
  const counts = { device: found, host: 0, disk: 0 };
  for (const [storey, [start, end]] of Object.entries(fetched ?? {})) {
    counts[storey] = Math.min(end, found) - Math.min(start, found);
    counts.device -= counts[storey];
  }
  return counts;
}

/** {host: 32, disk: 16} as "32 from host memory, 16 from files". */
function storeyWords(counts, between) {
  const present = Object.keys(STOREYS).filter((storey) => counts?.[storey]);
  return present.map((storey) => `${counts[storey].toLocaleString("en")} ${between} ${STOREYS[storey]}`).join(", ");
}

/** Draws states of an engine. `engine`: its settings, as in a trace. */
class Drawings {
  constructor(engine) {
    this.engine = engine;
    this.grid = { cells: [], columns: 0, shown: 0 };
  }

  /** The coloured name of a request; pointing at it shows what it holds. */
  chip(req, extra = "") {
    const chip = el("button", { type: "button", class: "chip", "data-request": req.index });
    chip.append(el("i", { class: `swatch ${req.look}` }), req.name + extra);
    return chip;
  }

  /** Numbers with names: name → [value, class of its swatch or ""]. */
  fillCounters(values) {
    const entries = Object.entries(values).map(([name, [value, look]]) =>
      el("div", {}, el("dt", {}, look ? el("i", { class: `swatch ${look}` }) : null, name), el("dd", { text: value })),
    );
    fill($("#counters"), ...entries);
  }

  /** The cards of those requests that matter most: `live` ones, then those that ended last. */
  fillCards(live, ended, cardOf) {
    const shown = [...live, ...ended].slice(0, MOST_CARDS);
    const cards = shown.map(cardOf);
    const left = live.length + ended.length - shown.length;
    if (left) cards.push(el("p", { class: "none", text: `… and ${left} more requests` }));
    if (!shown.length) cards.push(el("p", { class: "none", text: "No request has arrived yet." }));
    fill($("#texts .cards"), ...cards);
  }

  /** A card that says what a request does; `text`: the element with its text. */
  frameCard(req, numbers, text, justEnded) {
    const looks = `card ${req.status}${justEnded ? " just-ended" : ""}`;
    const came = storeyWords(req.came ?? origins(req), "from");
    const where = came ? numbers.replace("found in the tree", `found, of those ${came}`) : numbers;
    const coming = req.fetching ? ` · waits for ${plural(req.fetching, "token")} on their way from files` : "";
    return el("article", { class: looks, "data-request": req.index }, el("h3", {}, this.chip(req), el("small", { text: where + coming })), text);
  }

  // --- the timeline: a lane per request shows what it did in each frame, above them a lane for the passes ---

  /** A lane with a name; `runs`: what was done when, [{phase, from, to}]. `place(from, to)`: where that is, as CSS. */
  lane(req, runs, place) {
    const name = el("span", { "data-request": req.index }, el("i", { class: `swatch ${req.look}` }), req.name);
    return el("div", { class: "lane" }, name, el("div", { class: "track" }, ...this.marks(runs, place)));
  }

  passLane(runs, place) {
    return el("div", { class: "lane pass" }, el("span", { text: "pass" }), el("div", { class: "track" }, ...this.marks(runs, place)));
  }

  marks(runs, place) {
    return runs.map(({ phase, from, to }) => el("i", { class: `p-${phase}`, style: place(from, to) }));
  }

  /** What the colours of `runs` mean. */
  timelineLegend(runs) {
    const key = ["waiting", "extend", "decode", "verify", "idle", "retracted", "paused", "failed"].filter((phase) => runs.some((run) => run.phase === phase));
    const words = { idle: "running, not in this pass" };
    fill($("#timeline .legend"), ...key.map((phase) => el("span", { class: "entry" }, el("i", { class: `swatch p-${phase}` }), words[phase] ?? phase)));
  }

  /** Show frame `number` of `length` as the current one. */
  moveCursor(number, length) {
    $("#timeline .cursor").style.left = `${(100 * (number + 0.5)) / length}%`;
    $("#slider").style.setProperty("--played", `${(100 * number) / Math.max(length - 1, 1)}%`);
  }

  /** Scroll to where most of `lanes` are visible. Stay if no other place would show more. */
  followPass(lanes) {
    const box = $("#timeline .lanes");
    const room = box.scrollHeight - box.clientHeight;
    if (room <= 0) return;
    const head = $("#timeline .top").offsetHeight; // stays in view, above the lanes
    const seen = (at) => lanes.filter((lane) => lane.offsetTop >= at + head && lane.offsetTop + lane.offsetHeight <= at + box.clientHeight).length;
    const places = lanes.map((lane) => Math.min(lane.offsetTop - head, room));
    box.scrollTop = places.reduce((best, place) => (seen(place) > seen(best) ? place : best), box.scrollTop);
  }

  // --- pointing at a request, a node or a slot: what belongs together lights up, and a sentence says what it is ---

  /** Look where the pointer and the focus are, from now on. */
  followPointer() {
    document.addEventListener("pointerover", (event) => this.point(event.target));
    document.addEventListener("focusin", (event) => event.target.matches("[data-node], .chip") && this.point(event.target));
  }

  /** Light up slots and nodes, or nothing (null). */
  light(what) {
    document.body.classList.toggle("lighting", what !== null);
    for (const lit of document.querySelectorAll(".lit")) lit.classList.remove("lit");
    if (what === null) return;
    const { group, cells } = this.grid;
    for (const slot of what.slots) cells[Math.floor(slot / group)]?.classList.add("lit");
    for (const number of what.nodes ?? []) $(`[data-node="${number}"]`)?.classList.add("lit");
    if (what.request != null) for (const one of document.querySelectorAll(`[data-request="${what.request}"]`)) one.classList.add("lit");
  }

  point(target) {
    const { state } = this;
    const slotCell = target.closest?.("[data-slot]");
    const nodeBox = target.closest?.("[data-node]");
    const requestPart = target.closest?.("[data-request]");
    const node = nodeBox && state?.nodes.get(Number(nodeBox.dataset.node));
    const req = requestPart && state?.requests.get(Number(requestPart.dataset.request));
    if (slotCell && state) {
      this.light(null);
      this.tell(this.aboutSlot(state, Number(slotCell.dataset.slot)));
    } else if (node) {
      this.light({ slots: node.value, nodes: [node.number] });
      this.tell(`${plural(node.length, "token")} in slots ${runsText(node.value, 8)}; hits ${node.hits}`);
    } else if (req) {
      this.light({ slots: state.rowSlots(req), nodes: state.path(req).map((node) => node.number), request: req.index });
      const held = req.row === null ? `${req.status}, holds no slots` : `reads ${req.treeLen} locked slots of the tree and owns ${plural(req.held ?? req.slots.length, "slot")}`;
      this.tell(`${req.name}: ${held}`);
    } else {
      this.light(null);
    }
  }

  /** A slot in words: its owner, and where its place is. */
  aboutSlot(state, slot) {
    for (const node of state.nodes.values()) {
      const at = node.value.indexOf(slot);
      if (at < 0) continue;
      const readers = state.running.filter((req) => state.path(req).includes(node)).map((req) => req.name);
      return `slot ${slot}: ${this.aboutToken(node, at)}owned by the tree${readers.length ? `, read by ${readers.join(", ")}` : ", evictable"}`;
    }
    for (const req of state.running) {
      const at = state.rowSlots(req).indexOf(slot);
      if (at >= 0) return `slot ${slot}: ${at < req.kvLen ? this.aboutPosition(req, at) : "not filled yet"}, owned by ${req.name}`;
    }
    return this.aboutRest(state, slot);
  }

  aboutRest(state, slot) {
    return `slot ${slot}: free`;
  }
}


/** A function that places frames `from`..`to` on a track of `length` frames that begins with frame `first`. */
function placeOn(first, length) {
  return (from, to) => `left:${(100 * (from - first)) / length}%;width:${(100 * (to - from)) / length}%`;
}
