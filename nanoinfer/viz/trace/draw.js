// Draws one frame of a trace: numbers, batch, requests and timeline; draw_pools.js adds slots, rows and tree. The player and the
// server's live page both draw with it. Every method takes the state (state.js) and fills one part of the page.

const MOST_ROWS = 16; // of the batch and of the rows
const MOST_CARDS = 12;
const HEAD = 100; // tokens of a longer text that a card shows: the first ones, and the last ones
const TAIL = 500;

class Page {
  constructor(trace, replay) {
    Object.assign(this, { trace, replay, engine: trace.engine, state: null, pointed: null });
    this.grid = { cells: [], group: 0 };
    // What the looks of a request's text mean: those of the tiers behind that of the tree.
    for (const one of document.querySelectorAll("#texts-title .from")) one.remove();
    for (const tier of (this.engine.tiers ?? []).toReversed()) {
      $("#texts-title .cached").after(el("span", { class: "from" }, " · ", el("span", { class: `cached from-${tier}`, text: `from ${TIERS[tier]}` })));
    }
  }

  /** Draw the state after frame `number`. `more`: further counters, name → [value, class of its swatch or ""]. */
  draw(number, more = {}) {
    const state = this.replay.goTo(number);
    this.state = state;
    this.layOutSlots();
    this.drawCounters(state, number, more);
    this.drawBatch(state, number);
    this.drawSlots(state);
    this.drawTree(state);
    this.drawRows(state);
    this.drawCards(state);
    if (this.pointed?.isConnected) this.point(this.pointed);
  }

  tokenText(req, position) {
    const token = req.tokens[position];
    return this.trace.pieces[req.index]?.[position] ?? this.textOf(token);
  }

  textOf(token) {
    return this.trace.texts[token] ?? ` ${token}`;
  }

  /** The coloured name of a request; pointing at it shows what it holds. */
  chip(req, extra = "") {
    const chip = el("button", { type: "button", class: "chip", "data-request": req.index });
    chip.append(el("i", { class: `swatch ${req.look}` }), req.name + extra);
    return chip;
  }

  // --- what happened ---

  drawCounters(state, number, more) {
    const held = state.running.reduce((sum, req) => sum + req.slots.length, 0);
    const admitted = [...state.requests.values()].filter((req) => req.found || req.status !== "waiting");
    const sum = (name) => admitted.reduce((sum, req) => sum + req[name], 0);
    const tokens = state.batch.reduce((sum, entry) => sum + entry.end - entry.start, 0);
    const values = {
      step: [`${this.replay.frames[number].step} of ${this.replay.frames[this.replay.last].step}`, ""],
      ...more,
      "tokens in the pass": [tokens, ""],
      "free slots": [state.free, "o-free"],
      "in the tree (locked)": [`${state.treeSize()} (${state.treeSize(true)})`, "o-tree"],
      "slots of requests": [held, ""],
      running: [state.running.length, ""],
      waiting: [state.waiting.length, ""],
      "prompt tokens found": [`${sum("cached")} of ${sum("promptLen")}`, ""],
    };
    if (this.engine.drafter.length || sum("drafted")) values["drafts accepted"] = [`${sum("accepted")} of ${sum("drafted")}`, ""];
    for (const tier of this.engine.tiers ?? []) {
      const came = [...state.requests.values()].reduce((sum, req) => sum + origins(req)[tier], 0);
      values[`from ${TIERS[tier]}`] = [came.toLocaleString("en"), `o-${tier}`];
    }
    const entries = Object.entries(values).map(([name, [value, look]]) =>
      el("div", {}, el("dt", {}, look ? el("i", { class: `swatch ${look}` }) : null, name), el("dd", { text: value })),
    );
    fill($("#counters"), ...entries);
  }

  drawBatch(state, number) {
    const { mode } = this.replay.frames[number];
    const sum = (of) => state.batch.reduce((sum, entry) => sum + of(entry), 0);
    const drafts = mode === "VERIFY" ? `, ${sum((entry) => entry.accepted)} of ${plural(sum((entry) => entry.drafts.length), "draft")} accepted` : "";
    const size = `${mode}: B = ${state.batch.length}, T = ${sum((entry) => entry.end - entry.start)}${drafts}`;
    $("#batch h2 small").textContent = mode === null || !state.batch.length ? "No pass" : size;
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
    const rest = left > 0 ? `… and ${left} more` : rows.length ? null : "Nothing is computed.";
    if (rest !== null) rows.push(el("tr", { "data-key": "rest" }, el("td", { colspan: 5, class: "none", text: rest })));
    fill($("#batch tbody"), ...rows);
  }

  /** The drafts of a request in a VERIFY, one by one: those that became its tokens, and those that did not. */
  draftTexts({ drafts, accepted, tokens }) {
    const looks = drafts.map((_, i) => (!tokens.length ? "" : i < accepted ? "accepted" : "rejected")); // without tokens, the step has failed
    return drafts.map((token, i) => el("span", { class: `draft ${looks[i]}`, title: `${looks[i]} draft`, text: visible(this.textOf(token)) }));
  }

  // --- requests: those that are not over, then those that ended last ---

  drawCards(state) {
    const all = [...state.requests.values()];
    const live = all.filter((req) => req.status !== "ended" || state.ended.includes(req));
    const ended = all.filter((req) => !live.includes(req)).reverse();
    const cards = [...live, ...ended].slice(0, MOST_CARDS).map((req) => this.card(req, state));
    const left = all.length - cards.length;
    const rest = left ? `… and ${left} more requests` : all.length ? null : "No request has arrived yet.";
    if (rest !== null) cards.push(el("p", { class: "none", text: rest }));
    fill($("#texts .cards"), ...cards);
    for (const text of document.querySelectorAll("#texts .text")) text.scrollTop = text.scrollHeight;
  }

  card(req, state) {
    const entry = state.batch.find((one) => one.req === req);
    const text = el("p", { class: "text" });
    const leftOut = Math.max(req.tokens.length - HEAD - TAIL, 0);
    for (let i = 0; i < req.tokens.length; ) {
      if (leftOut && i === HEAD) {
        text.append(el("span", { class: "prompt", text: ` … ${plural(leftOut, "token")} … ` }));
        i += leftOut;
      }
      const look = this.lookOfToken(req, i, entry);
      const end = leftOut && i < HEAD ? HEAD : req.tokens.length;
      let part = "";
      for (; i < end && this.lookOfToken(req, i, entry) === look; i++) part += this.tokenText(req, i);
      text.append(el(look === "new" ? "mark" : "span", { class: look, text: part }));
    }
    const came = tierWords(origins(req), "from");
    const found = came ? `found, of those ${came}` : "found in the tree";
    const drafts = req.drafted ? ` · ${req.accepted} of ${plural(req.drafted, "draft")} accepted` : "";
    const status = req.status === "ended" ? `ended: ${req.reason}` : req.status;
    const numbers =
      `${status} · ${plural(req.promptLen, "prompt token")}, ${req.cached} ${found} · ` +
      `${req.tokens.length - req.promptLen} of ${req.request.max_new_tokens} new${drafts}`;
    const looks = `card ${req.status}${state.ended.includes(req) ? " just-ended" : ""}`;
    return el("article", { class: looks, "data-request": req.index }, el("h3", {}, this.chip(req), el("small", { text: numbers })), text);
  }

  /** The look of a token in a request's text: found in the tree, computed before, computed now, not computed yet, written, new. */
  lookOfToken(req, position, entry) {
    if (entry && position >= entry.first && position < entry.first + entry.tokens.length) return "new";
    if (position >= req.promptLen) return "written-text";
    if (req.status === "waiting" || req.status === "retracted" || req.status === "paused") return "pending";
    if (entry && req.status !== "ended" && position >= entry.start && position < entry.end) return "now";
    if (req.status !== "ended" && position >= req.kvLen) return "pending";
    const tier = Object.keys(TIERS).find((name) => position >= req.fetched[name]?.[0] && position < req.fetched[name][1]);
    return position >= req.found ? "prompt" : tier ? `cached from-${tier}` : "cached";
  }

  // --- the timeline: a lane per request shows what it did in each frame, above them a lane for the passes ---

  /** Draw `length` frames from `first` on; of the requests in them, the `most` that arrived last. */
  drawTimeline(first, length, most = Infinity) {
    const cut = (runs) =>
      runs.filter(({ from, to }) => to >= first && from < first + length).map((run) => ({ ...run, from: Math.max(run.from, first), to: Math.min(run.to, first + length) }));
    const all = [...this.replay.lanes].map(([index, runs]) => [this.replay.newest.requests.get(index), cut(runs)]).filter(([, runs]) => runs.length);
    const shown = all.slice(-most);
    this.lanes = new Map();
    const lanes = shown.map(([req, runs]) => {
      const name = el("span", { "data-request": req.index }, el("i", { class: `swatch ${req.look}` }), req.name);
      return this.lane(name, runs, first, length, req.index);
    });
    const left = all.length - shown.length;
    if (left) lanes.unshift(el("p", { class: "none", "data-key": "left", text: `… ${plural(left, "earlier request")}` }));
    fill($("#passes"), this.lane(el("span", { text: "pass" }), cut(this.replay.passes), first, length, "pass"));
    fill($("#lanes"), ...lanes);
    const present = new Set([...shown.flatMap(([, runs]) => runs), ...this.replay.passes].map(({ phase }) => phase));
    const phases = ["waiting", "extend", "decode", "verify", "idle", "retracted", "paused", "failed"].filter((phase) => present.has(phase));
    const words = { idle: "running, not in this pass" };
    fill($("#timeline .legend"), ...phases.map((phase) => el("span", { class: "entry" }, el("i", { class: `swatch p-${phase}` }), words[phase] ?? phase)));
    $("#timeline").style.setProperty("--frames", length); // the slider's length follows from it (drawings.css)
  }

  lane(name, runs, first, length, key) {
    const place = ({ from, to }) => `left:${(100 * (from - first)) / length}%;width:${(100 * (to - from)) / length}%`;
    const marks = runs.map((run) => el("i", { class: `p-${run.phase}`, style: place(run) }));
    return el("div", { class: "lane", "data-key": key }, name, el("div", { class: "track" }, ...marks));
  }

  /** Show frame `number` of a timeline of `length` as the current one. */
  moveCursor(number, length) {
    $("#timeline .cursor").style.left = `${(100 * (number + 0.5)) / length}%`;
  }

  /** Scroll until the lanes of the requests in the pass are visible (without a pass: of those running, or of the last to
   *  arrive), or the first of them where there is no room for all. */
  followPass() {
    const { batch, running, requests } = this.state;
    const inPass = batch.length ? batch.map((entry) => entry.req) : running.length ? running : [...requests.values()].slice(-1);
    const box = $("#timeline .lanes");
    const head = $("#timeline .top").offsetHeight; // stays in view, above the lanes
    if (!inPass.length) box.scrollTop = 0;
    for (const { index } of inPass.toSorted((a, b) => b.index - a.index)) {
      const { offsetTop, offsetHeight } = $(`#lanes [data-key="${index}"]`);
      box.scrollTop = Math.min(Math.max(box.scrollTop, offsetTop + offsetHeight - box.clientHeight), offsetTop - head);
    }
  }

  // --- pointing at a request, a node or a slot: what belongs together lights up, and a sentence says what it is ---

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
    this.pointed = target.closest?.("[data-slot], [data-node], [data-request]") ?? null;
    const { slot, node: number, request } = this.pointed?.dataset ?? {};
    const [node, req] = [state?.nodes.get(Number(number)), state?.requests.get(Number(request))];
    if (slot && state) {
      this.light(null);
      this.tell(this.aboutSlot(state, Number(slot)));
    } else if (node) {
      this.light({ slots: node.value, nodes: [node.number] });
      this.tell(`${plural(node.key.length, "token")} in slots ${runsText(node.value, 8)}; hits ${node.hits}`);
    } else if (req) {
      this.light({ slots: state.rowSlots(req), nodes: state.path(req).map((node) => node.number), request: req.index });
      const held = req.row === null ? `${req.status}, holds no slots` : `reads ${req.treeLen} locked slots of the tree and owns ${plural(req.slots.length, "slot")}`;
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
      const token = visible(this.textOf(node.key[at]));
      return `slot ${slot}: K/V of “${token}”, owned by the tree${readers.length ? `, read by ${readers.join(", ")}` : ", evictable"}`;
    }
    for (const req of state.running) {
      const at = state.rowSlots(req).indexOf(slot);
      if (at < 0) continue;
      const what = at < req.kvLen ? `K/V of “${visible(this.tokenText(req, at))}”, position ${at}` : "not filled yet";
      return `slot ${slot}: ${what}, owned by ${req.name}`;
    }
    return `slot ${slot}: free`;
  }
}

/** Mark what belongs to what the pointer or the keyboard has reached, and `show` the frame at which the timeline is clicked. `pageOf`
 *  says what is drawn now. */
function followPointer(pageOf, show) {
  document.addEventListener("pointerover", (event) => pageOf()?.point(event.target));
  document.addEventListener("focusin", (event) => event.target.matches("[data-node], .chip") && pageOf()?.point(event.target));
  $("#timeline").addEventListener("click", (event) => {
    const track = event.target.closest("#timeline .lanes") && $("#timeline .track")?.getBoundingClientRect();
    if (!track || event.clientX < track.left || event.target.closest("input")) return;
    const { min, max } = $("#slider");
    show(Number(min) + Math.floor(((event.clientX - track.left) / track.width) * (max - min + 1)));
  });
}
