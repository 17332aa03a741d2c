// Draws one frame. Every method takes the state (player_state.js) and fills one part of the page (player.html). This file draws
// what happened, the batch and the texts; player_pools.js draws slots, rows and tree.
// Text from a trace is only ever set as text, never as HTML.

const $ = (selector) => document.querySelector(selector);
const MOST_ROWS = 16; // of the batch and of the rows
const MOST_CARDS = 12;

/** An element with attributes (`text` sets its text) and children. */
function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else if (value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
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

class Page {
  constructor(trace, said, replay) {
    Object.assign(this, { trace, said, replay });
    this.grid = { cells: [], columns: 0, shown: 0 };
    this.looks = trace.requests.map((request) => `o-r${(request.request_id + 3 * request.completion) % 8}`);
  }

  tokenText(req, position) {
    const token = req.tokens[position];
    return this.trace.pieces[req.index]?.[position] ?? this.trace.texts[token] ?? ` ${token}`;
  }

  textOf(tokens) {
    return tokens.map((token) => this.trace.texts[token] ?? ` ${token}`).join("");
  }

  /** The coloured name of a request; pointing at it shows what it holds. */
  chip(req, extra = "") {
    const chip = el("button", { type: "button", class: "chip", "data-request": req.index });
    chip.append(el("i", { class: `swatch ${this.looks[req.index]}` }), req.name + extra);
    return chip;
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
    this.moveCursor(number);
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
    $("#counters").replaceChildren(
      ...Object.entries(values).map(([name, [value, look]]) =>
        el("div", {}, el("dt", {}, look ? el("i", { class: `swatch ${look}` }) : null, name), el("dd", { text: value })),
      ),
    );
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
    $("#batch tbody").replaceChildren(...rows);
  }

  /** The drafts of a request in a VERIFY, one by one: those that became its tokens, and those that did not. */
  draftTexts({ drafts, accepted, tokens }) {
    const known = tokens.length > 0; // else the step has failed
    const looks = drafts.map((_, i) => (!known ? "draft" : i < accepted ? "draft accepted" : "draft rejected"));
    const titles = { draft: "draft", "draft accepted": "accepted draft", "draft rejected": "rejected draft" };
    return drafts.map((token, i) => el("span", { class: looks[i], title: titles[looks[i]], text: visible(this.trace.texts[token] ?? ` ${token}`) }));
  }

  // --- texts ---

  drawTexts(state) {
    const all = [...state.requests.values()];
    const live = all.filter((req) => req.status !== "ended" || state.ended.includes(req));
    const ended = all.filter((req) => !live.includes(req)).reverse();
    const shown = [...live, ...ended].slice(0, MOST_CARDS);
    const cards = shown.map((req) => this.card(req, state));
    if (all.length > shown.length) cards.push(el("p", { class: "none", text: `… and ${all.length - shown.length} more requests` }));
    if (!all.length) cards.push(el("p", { class: "none", text: "No request has arrived yet." }));
    $("#texts .cards").replaceChildren(...cards);
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
    const fresh = state.ended.includes(req) ? " just-ended" : "";
    return el("article", { class: `card ${req.status}${fresh}`, "data-request": req.index }, el("h3", {}, this.chip(req), el("small", { text: numbers })), text);
  }

  /** The look of a token in a request's text: found in the tree, computed before, computed now, not computed yet, written, new. */
  lookOfToken(req, position, entry) {
    if (entry && position >= entry.first && position < entry.first + entry.tokens.length) return "new";
    if (position >= req.promptLen) return "written-text";
    if (req.status === "waiting" || req.status === "retracted" || req.status === "paused") return "pending";
    if (entry && req.status !== "ended" && position >= entry.start && position < entry.end) return "now";
    if (req.status !== "ended" && position >= req.kvLen) return "pending";
    return position < req.found ? "cached" : "prompt";
  }
}
