"use strict";
// Draws a state of the running engine, with the drawings of the trace player.

const PHASES = { idle: "not in this pass" };

const bytesText = (bytes) => (bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toLocaleString("en", { maximumFractionDigits: 1 })} MB`);

class LiveDrawings extends Drawings {
  constructor(about, history) {
    super(about.engine);
    Object.assign(this, { about, history, state: null, pointed: null });
  }

  /** Draw the frame at `position`, in the part of the timeline that begins at `from` and is `span` frames long. */
  draw(position, from, span) {
    const { fields } = this.history.frame(position);
    const before = this.history.frame(position - 1)?.fields ?? null;
    this.state = new LiveState(fields, before, this.engine);
    this.drawNumbers(fields);
    this.layOutSlots();
    this.drawSlots(this.state);
    this.drawStoreys(fields.storeys);
    this.drawTree(this.state);
    this.drawRows(this.state);
    this.drawBatch(this.state);
    this.drawCards(this.state);
    this.drawWindow(from, span);
    this.moveCursor(position - from, span);
    if (this.pointed?.isConnected) super.point(this.pointed);
  }

  point(target) {
    this.pointed = target.closest?.("[data-slot], [data-node], [data-request]") ?? null;
    super.point(target);
  }

  drawNumbers({ counts, speed }) {
    const values = {
      "tokens/s": [speed.toLocaleString("en"), ""],
      running: [counts.running, ""],
      waiting: [counts.waiting, ""],
      "free slots": [counts.free_slots.toLocaleString("en"), "o-free"],
      "tree (locked)": [`${(counts.evictable_slots + counts.protected_slots).toLocaleString("en")} (${counts.protected_slots.toLocaleString("en")})`, "o-tree"],
      "held by requests": [counts.request_slots.toLocaleString("en"), ""],
      "prompt tokens found": [`${counts.cached_tokens.toLocaleString("en")} of ${counts.prompt_tokens.toLocaleString("en")}`, ""],
      answered: [counts.finished.toLocaleString("en"), ""],
      "ended early": [(counts.aborted + counts.timed_out + counts.failed).toLocaleString("en"), ""],
    };
    if (counts.paused) values.paused = [counts.paused, ""];
    if (counts.drafted_tokens) values["drafts accepted"] = [`${counts.accepted_tokens} of ${counts.drafted_tokens}`, ""];
    this.fillCounters(values);
  }

  /** How full the storeys below the pool are; nothing without any. */
  drawStoreys(storeys) {
    const line = $("#storeys");
    line.hidden = storeys === undefined;
    if (storeys === undefined) return;
    const number = (name) => storeys[name].toLocaleString("en");
    const host = `host memory: ${number("host_held_tokens")} of ${plural(storeys.host_slots, "token")} (so far ${number("host_stored_tokens")} stored, ${number("host_fetched_tokens")} fetched)`;
    const entry = (look, text) => el("span", { class: "entry" }, el("i", { class: `swatch ${look}` }), text);
    const entries = ["Below the pool:", entry("o-host", host)];
    if (storeys.disk_bytes !== undefined) {
      entries.push(entry("o-disk", `files: ${plural(storeys.disk_held_tokens, "token")} in ${bytesText(storeys.disk_bytes)} (so far ${number("disk_fetched_tokens")} read)`));
    }
    fill(line, ...entries);
  }

  // --- what the drawings of slots and tree ask for ---

  get mapHeight() {
    return matchMedia("(max-width: 620px)").matches ? 330 : 230;
  }

  cellsToDraw() {
    const { shown, group } = this.state?.fields.map ?? { shown: 0, group: 1 };
    return { count: Math.ceil(shown / group), group };
  }

  cellOwners(state) {
    return state.cellOwners();
  }

  slotNote({ fields, size }) {
    const { shown, group } = fields.map;
    const never = size > shown ? `The other ${plural(size - shown, "slot")} have not been in use.` : "";
    return group > 1 ? `A cell is ${group} slots. ${never}` : never;
  }

  aboutToken() {
    return "";
  }

  aboutPosition(req, at) {
    return `K/V of position ${at}`;
  }

  aboutRest(state, slot) {
    const { group } = state.fields.map;
    const owner = state.cellOwners()[Math.floor(slot / group)];
    const where = group > 1 ? `slots ${slot}–${slot + group - 1}: most are ` : `slot ${slot}: `;
    if (typeof owner === "number") return `${where}owned by ${state.requests.get(owner).name}`;
    return where + { free: "free", tree: "owned by the tree, evictable", locked: "owned by the tree, locked", other: "owned by a request" }[owner];
  }

  nodeText(node) {
    return node.text;
  }

  nodeLabel(node) {
    return node.label;
  }

  nodeAttributes() {
    return { tabindex: 0, role: "button", "aria-haspopup": "dialog" };
  }

  treeNote({ fields, nodes }) {
    const drawn = [...nodes.values()].reduce((sum, node) => sum + node.length, 0);
    const all = fields.counts.evictable_slots + fields.counts.protected_slots;
    const disabled = this.engine.disable_radix_cache ? "The radix cache is switched off. " : "";
    const cut = drawn < all ? `${plural(nodes.size - 1, "node")} with ${drawn.toLocaleString("en")} of ${plural(all, "token")} are drawn: those in use, then those used last. ` : "";
    const evicted = fields.counts.evicted_tokens ? `${plural(fields.counts.evicted_tokens, "token")} have been evicted so far.` : "";
    return disabled + cut + evicted;
  }

  // --- the running batch ---

  drawBatch(state) {
    const running = state.running.sort((a, b) => a.row - b.row);
    const lines = running.slice(0, MOST_ROWS).map((req) => {
      const numbers = [req.promptLen, req.cached, req.numTokens - req.promptLen].map((number) => el("td", { class: "number", text: number.toLocaleString("en") }));
      const phase = el("td", {}, el("i", { class: `swatch p-${req.phase}` }), PHASES[req.phase] ?? req.phase);
      return el("tr", { "data-request": req.index, class: req.isMine ? "mine" : null }, el("th", { scope: "row" }, this.chip(req)), phase, ...numbers);
    });
    const more = state.numRunning - lines.length;
    const rest = more > 0 ? `… and ${plural(more, "more request")}` : lines.length ? null : "No request is running.";
    if (rest !== null) lines.push(el("tr", { "data-key": "rest" }, el("td", { colspan: 5, class: "none", text: rest })));
    fill($("#batch tbody"), ...lines);
  }

  // --- requests ---

  drawCards(state) {
    const all = [...state.requests.values()];
    const live = all.filter((req) => req.status !== "ended");
    const ended = all.filter((req) => req.status === "ended").sort((a, b) => b.index - a.index);
    this.fillCards(live, ended, (req) => this.card(req, state));
    const { running, waiting, paused } = state.fields.counts;
    const left = running + waiting + paused - live.length;
    $("#texts .note").textContent = left > 0 ? `${plural(left, "more request")} are running or waiting.` : "";
  }

  card(req, state) {
    const status = req.status === "ended" ? `ended: ${req.reason}` : req.status;
    const drafts = req.drafted ? ` · ${req.accepted} of ${plural(req.drafted, "draft")} accepted` : "";
    const adapter = req.adapter === null ? "" : `adapter ${req.adapter} · `;
    const numbers = `${adapter}${status} · ${plural(req.promptLen, "prompt token")}, ${req.cached} found in the tree · ${req.numTokens - req.promptLen} of ${req.limit} new${drafts}`;
    const text = el("p", { class: "text" });
    if (req.promptText === null) text.append(this.progress(req));
    else text.append(el("span", { class: "prompt", text: req.promptText }), el("span", { text: req.outputText }));
    return this.frameCard(req, numbers, text, state.ended.includes(req));
  }

  /** In place of a text: how much of the prompt was found, how much is computed, and how much has been written. */
  progress(req) {
    const done = req.status === "ended" ? req.numTokens : Math.max(req.kvLen, req.cached);
    const { device, host, disk } = origins({ ...req, found: Math.min(req.cached, req.promptLen) });
    const parts = [
      ["o-locked", device],
      ["o-host", host],
      ["o-disk", disk],
      ["p-decode", Math.max(Math.min(done, req.promptLen) - req.cached, 0)],
      ["o-free", Math.max(req.promptLen - Math.max(done, req.cached), 0)],
      [req.look, req.numTokens - req.promptLen],
    ];
    const shown = parts.filter(([, tokens]) => tokens > 0);
    return el("span", { class: "bar", "aria-hidden": "true" }, ...shown.map(([look, tokens]) => el("i", { class: look, style: `flex-grow: ${tokens}` })));
  }

  // --- timeline ---

  drawWindow(from, span) {
    const { passes, lanes, left } = this.history.window(from, from + span);
    const place = placeOn(from, span);
    const drawn = lanes.reverse().map((lane) => {
      const element = this.lane({ ...lane, ...marked(lane) }, lane.runs, place);
      element.dataset.key = lane.index;
      return element;
    });
    if (left) drawn.push(el("p", { class: "none", "data-key": "left", text: `… ${plural(left, "earlier request")}` }));
    fill($("#lanes"), this.passLane(passes, place), ...drawn);
    this.drawSpeeds(from, span);
    this.timelineLegend(lanes.flatMap((lane) => lane.runs));
    $("#timeline").style.setProperty("--frames", span);
  }

  /** Tokens per second over the window, as an area. */
  drawSpeeds(from, span) {
    const speeds = [];
    for (let position = from; position < Math.min(from + span, this.history.end); position++) speeds.push(this.history.frame(position)?.fields.speed ?? 0);
    const most = Math.max(...speeds, 1);
    const points = speeds.map((speed, i) => `L${i} ${(20 * (1 - speed / most)).toFixed(2)}L${i + 1} ${(20 * (1 - speed / most)).toFixed(2)}`);
    const svg = $("#speeds svg");
    svg.setAttribute("viewBox", `0 0 ${span} 20`);
    svg.firstElementChild.setAttribute("d", `M0 20${points.join("")}L${speeds.length} 20Z`);
    $("#speeds small").textContent = `≤ ${most.toLocaleString("en", { maximumFractionDigits: 0 })}`;
  }
}
