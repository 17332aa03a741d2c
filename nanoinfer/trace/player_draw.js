// Draws one frame: every function takes the state (player_state.js) and fills one part of the page (player.html).
// Text from a trace is only ever set as text, never as HTML.

const $ = (selector) => document.querySelector(selector);
const MOST_CELLS = 4096; // of the slot map; beyond, a cell stands for several slots
const MOST_NODES = 80;
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
    this.looks = trace.requests.map((request) => `o-r${request.request_id % 8}`);
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
    parts.push(el("b", { class: mode ? `mode ${mode.toLowerCase()}` : "mode", text: head }), " ");
    parts.push(`${clauses.join("; ")}.`);
    if (error) parts.push(el("strong", { class: "error", text: ` It raised ${error}.` }));
    $("#sentence").replaceChildren(...parts);
  }

  drawCounters(state, number) {
    const frame = this.replay.frames[number];
    const own = state.running.reduce((sum, req) => sum + req.own.length, 0);
    const admitted = [...state.requests.values()].filter((req) => req.found || req.status !== "waiting");
    const prompts = admitted.reduce((sum, req) => sum + req.promptLen, 0);
    const cached = admitted.reduce((sum, req) => sum + req.cached, 0);
    const tokens = state.batch.reduce((sum, entry) => sum + entry.end - entry.start, 0);
    const values = {
      step: [`${frame.step} of ${this.trace.steps}`, ""],
      "tokens in the pass": [tokens, ""],
      "free slots": [state.free, "o-free"],
      "in the tree (locked)": [`${state.treeSize()} (${state.treeSize(true)})`, "o-tree"],
      "requests’ own": [own, ""],
      running: [state.running.length, ""],
      waiting: [state.waiting.length, ""],
      "prompt tokens found": [`${cached} of ${prompts}`, ""],
    };
    $("#counters").replaceChildren(
      ...Object.entries(values).map(([name, [value, look]]) =>
        el("div", {}, el("dt", {}, look ? el("i", { class: `swatch ${look}` }) : null, name), el("dd", { text: value })),
      ),
    );
  }

  drawBatch(state, number) {
    const mode = this.replay.frames[number].mode;
    const tokens = state.batch.reduce((sum, entry) => sum + entry.end - entry.start, 0);
    const title = mode === null || !state.batch.length ? "No pass" : `${mode}: B = ${state.batch.length}, T = ${tokens}`;
    $("#batch h2").replaceChildren("Batch of this step ", el("small", { text: title }));
    const rows = state.batch.slice(0, MOST_ROWS).map(({ req, start, end, slots, token, inputs }) => {
      const texts = inputs.map((_, i) => this.tokenText(req, start + i)).join("");
      const sampled = token === null ? "—" : visible(this.tokenText(req, end));
      return el(
        "tr",
        { "data-request": req.index },
        el("td", {}, this.chip(req)),
        el("td", {}, el("q", { text: shortened(visible(texts), 11, 7) }), el("small", { text: ` ${end - start}` })),
        el("td", { text: end - start === 1 ? `${start}` : `${start}–${end - 1}` }),
        el("td", { text: runsText(slots, 2), title: runsText(slots, 99) }),
        el("td", {}, el(token === null ? "span" : "mark", { text: sampled })),
      );
    });
    const left = state.batch.length - rows.length;
    if (left > 0) rows.push(el("tr", {}, el("td", { colspan: 5, text: `… and ${left} more` })));
    if (!rows.length) rows.push(el("tr", {}, el("td", { colspan: 5, class: "none", text: "nothing is computed" })));
    $("#batch tbody").replaceChildren(...rows);
  }

  // --- slots ---

  /** Lay out the cells for the width there is. Slots that are never used are left out. */
  layOutSlots() {
    const { page_size: page } = this.trace.engine;
    const used = this.replay.usedSlots;
    const group = Math.ceil(used / MOST_CELLS) || 1;
    const count = Math.ceil(used / group);
    const cell = count <= 400 ? 17 : count <= 1200 ? 12 : count <= 2400 ? 9 : 6;
    const unit = page > 1 && page <= 32 && group === 1 ? Math.max(8, page) : 8;
    const room = $("#slots .grid").clientWidth - 40;
    const columns = Math.max(unit, Math.floor(room / cell / unit) * unit);
    if (columns === this.grid.columns) return;
    const cells = [];
    const lines = [];
    for (let start = 0; start < count; start += columns) {
      const line = el("div", { class: "line" }, el("span", { text: start * group }));
      for (let i = start; i < Math.min(start + columns, count); i++) {
        cells.push(el("i", { "data-slot": i * group, class: "slot" }));
        if (page > 1 && group === 1 && i % page === page - 1) cells.at(-1).dataset.pageEnd = "";
      }
      line.append(...cells.slice(start));
      lines.push(line);
    }
    $("#slots .grid").style.setProperty("--cell", `${cell}px`);
    $("#slots .grid").replaceChildren(...lines);
    this.grid = { cells, columns, group };
  }

  lookOf(owner) {
    return typeof owner === "number" ? this.looks[owner] : `o-${owner}`;
  }

  drawSlots(state) {
    const owners = state.owners();
    const { cells, group } = this.grid;
    cells.forEach((cell, i) => {
      const slots = Array.from({ length: group }, (_, k) => i * group + k);
      let look = this.lookOf(group === 1 ? owners[i] : dominant(slots.map((slot) => owners[slot] ?? "free")));
      if (slots.some((slot) => state.fresh.written.has(slot))) look += " written";
      else if (slots.some((slot) => state.fresh.evicted.has(slot))) look += " evicted";
      const wanted = `slot ${look}`;
      if (cell.className !== wanted) cell.className = wanted;
    });
    const counts = new Map();
    for (const owner of owners) counts.set(owner, (counts.get(owner) ?? 0) + 1);
    const order = ["locked", "tree", ...state.running.map((req) => req.index), "free"];
    const names = { locked: "tree, locked", tree: "tree", free: "free" };
    const shown = order.filter((owner) => counts.get(owner));
    $("#slots .bar").replaceChildren(
      ...shown.map((owner) => {
        const part = el("i", { class: this.lookOf(owner) });
        part.style.flexGrow = counts.get(owner);
        return part;
      }),
    );
    const entries = shown.map((owner) =>
      typeof owner === "number"
        ? this.chip(state.requests.get(owner), ` ${counts.get(owner)}`)
        : el("span", { class: "entry" }, el("i", { class: `swatch ${this.lookOf(owner)}` }), `${names[owner]} ${counts.get(owner)}`),
    );
    if (state.fresh.written.size) entries.push(el("span", { class: "entry" }, el("i", { class: "swatch written" }), `written now ${state.fresh.written.size}`));
    if (state.fresh.evicted.size) entries.push(el("span", { class: "entry" }, el("i", { class: "swatch evicted" }), `evicted now ${state.fresh.evicted.size}`));
    $("#slots .legend").replaceChildren(...entries);
    const told = shown.map((owner) => `${typeof owner === "number" ? this.trace.requests[owner].name : names[owner]} ${counts.get(owner)}`);
    $("#slots .grid").setAttribute("aria-label", `${state.size} slots: ${told.join(", ")}`);
    const never = state.size - this.replay.usedSlots;
    this.tell(never > 0 ? `${plural(never, "slot")} more, never used in this run.` : "");
  }

  tell(text) {
    $("#slots .detail").textContent = text || "\u00a0";
  }

  // --- tree ---

  drawTree(state) {
    const users = new Map(); // node → running requests whose prefix passes through
    for (const req of state.running) for (const node of state.path(req)) users.set(node, [...(users.get(node) ?? []), req]);
    let left = MOST_NODES;
    const room = ($("#tree .scroll").clientWidth - 50) / Math.max(depth(state.nodes.get(0)), 2) - 25;
    const width = document.body.clientWidth > 620 ? Math.min(Math.max(room, 136), 250) : 250;
    this.nodeChars = Math.floor((width - 18) / 7.3);
    $("#tree .branches").style.setProperty("--node", `${width}px`);
    const branch = (node) => {
      const children = [];
      let hidden = 0;
      for (const child of node.children) {
        if (left-- > 0) children.push(branch(child));
        else hidden += 1;
      }
      if (hidden) children.push(el("div", { class: "branch" }, el("div", { class: "node more", text: `… ${hidden} more` })));
      const box = node.number ? this.nodeBox(node, state, users.get(node) ?? []) : el("div", { class: "node root", text: "root" });
      return el("div", { class: "branch" }, box, children.length ? el("div", { class: "children" }, ...children) : null);
    };
    $("#tree .branches").replaceChildren(branch(state.nodes.get(0)));
    const gone = state.fresh.removed.map((node) => `“${shortened(visible(this.textOf(node.key)), 24, 10)}” (${plural(node.key.length, "token")})`);
    const disabled = this.trace.engine.disable_radix_cache ? "The radix cache is switched off." : "";
    const note = gone.length ? `Evicted now: ${gone.slice(0, 3).join(", ")}${gone.length > 3 ? ` and ${gone.length - 3} more` : ""}.` : disabled;
    $("#tree .note").textContent = note || (state.nodes.size === 1 ? "The tree is empty." : "\u00a0");
  }

  nodeBox(node, state, users) {
    const classes = ["node", node.lock ? "o-locked" : "o-tree"];
    if (state.fresh.nodes.has(node.number)) classes.push("fresh");
    if (state.fresh.splits.has(node.number)) classes.push("split");
    const box = el("div", { class: classes.join(" "), "data-node": node.number, tabindex: 0 });
    if (node.extraKey != null) box.append(el("small", { class: "key", text: `extra_key=${node.extraKey}` }));
    const tail = Math.floor(this.nodeChars / 3);
    box.append(el("b", { text: shortened(visible(this.textOf(node.key)), this.nodeChars - tail - 1, tail) }));
    box.append(el("span", { text: `${plural(node.key.length, "token")} · slots ${runsText(node.value, 2)}` }));
    const uses = el("span", { class: "uses", text: `lock_ref ${node.lock} · last use ${node.used}` });
    for (const req of users) uses.append(el("i", { class: `swatch ${this.looks[req.index]}`, title: req.name }));
    box.append(uses);
    return box;
  }

  // --- rows ---

  drawRows(state) {
    const rows = state.running.sort((a, b) => a.row - b.row);
    const fresh = state.fresh.written;
    const lines = rows.slice(0, MOST_ROWS).map((req) => {
      const slots = state.rowSlots(req);
      const kinds = slots.map((slot, i) => (i >= req.kvLen ? "empty" : i < req.treeLen ? "o-locked" : this.looks[req.index]));
      const runs = [];
      slots.forEach((slot, i) => {
        const look = kinds[i] + (fresh.has(slot) ? " written" : "");
        const last = runs.at(-1);
        if (last && last.look === look && slot === last.start + last.length) last.length += 1;
        else runs.push({ start: slot, length: 1, look });
      });
      const most = 36;
      const shown = runs.length > most ? [...runs.slice(0, most / 2), null, ...runs.slice(-most / 2)] : runs;
      const parts = shown.map((run) => {
        if (run === null) return el("span", { class: "run more", text: `… ${plural(runs.length - most, "run")} …` });
        const text = run.length === 1 ? `${run.start}` : `${run.start}–${run.start + run.length - 1}`;
        const part = el("span", { class: `run ${run.look}`, "data-slots": `${run.start} ${run.length}` }, el("em", { text }));
        part.style.flexGrow = run.length;
        return part;
      });
      return el(
        "div",
        { class: "row", "data-request": req.index },
        el("div", { class: "head" }, el("b", { text: `row ${req.row}` }), this.chip(req), el("small", { text: `seq_len ${req.kvLen}` })),
        el("div", { class: "runs" }, ...parts),
      );
    });
    if (rows.length > MOST_ROWS) lines.push(el("p", { text: `… and ${rows.length - MOST_ROWS} more rows` }));
    if (!rows.length) lines.push(el("p", { class: "none", text: `All ${this.trace.engine.max_running_requests} rows are free.` }));
    $("#rows .list").replaceChildren(...lines);
  }

  // --- texts ---

  drawTexts(state) {
    const all = [...state.requests.values()];
    const live = all.filter((req) => req.status !== "ended" || state.ended.includes(req));
    const ended = all.filter((req) => !live.includes(req)).reverse();
    const shown = [...live, ...ended].slice(0, MOST_CARDS);
    const cards = shown.map((req) => this.card(req, state));
    if (all.length > shown.length) cards.push(el("p", { class: "none", text: `… and ${all.length - shown.length} more requests` }));
    if (!all.length) cards.push(el("p", { class: "none", text: "Nobody has asked anything yet." }));
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
    const numbers = `${status} · ${req.promptLen} prompt tokens, ${req.cached} found in the tree · ${output} of ${this.trace.requests[req.index].max_new_tokens} new`;
    const fresh = state.ended.includes(req) ? " just-ended" : "";
    return el("article", { class: `card ${req.status}${fresh}`, "data-request": req.index }, el("h3", {}, this.chip(req), el("small", { text: numbers })), text);
  }

  /** How a token of a request's text looks: found in the tree, computed before, computed now, to be computed, written, new. */
  lookOfToken(req, position, entry) {
    if (entry && entry.token !== null && position === entry.end) return "new";
    if (position >= req.promptLen) return "written-text";
    if (req.status === "waiting" || req.status === "retracted") return "pending";
    if (entry && req.status !== "ended" && position >= entry.start && position < entry.end) return "now";
    if (req.status !== "ended" && position >= req.kvLen) return "pending";
    return position < req.found ? "cached" : "prompt";
  }
}

/** How many nodes lie below one another. */
function depth(node) {
  return node.children.reduce((most, child) => Math.max(most, 1 + depth(child)), 0);
}

/** What most of the owners are. */
function dominant(owners) {
  const counts = new Map();
  for (const owner of owners) counts.set(owner, (counts.get(owner) ?? 0) + 1);
  return [...counts].reduce((best, entry) => (entry[1] > best[1] ? entry : best))[0];
}
