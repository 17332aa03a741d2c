// Draws slots, rows and tree, with more methods of the Page in player_draw.js.

const MOST_CELLS = 4096; // of the slot map; if there are more slots, a cell stands for several
const MOST_NODES = 80;

Object.assign(Page.prototype, {
  // --- slots ---

  /** Lay out the cells for the available width, without slots that are never used. */
  layOutSlots() {
    const { page_size: page } = this.trace.engine;
    const used = this.replay.usedSlots;
    const group = Math.ceil(used / MOST_CELLS) || 1;
    const count = Math.ceil(used / group);
    const room = $("#slots .grid").clientWidth - 40;
    const unit = page > 1 && page <= 32 && group === 1 ? Math.max(8, page) : 8;
    const height = matchMedia("(max-height: 640px)").matches ? 110 : 180; // of the map, about, in pixels
    let cell = 18; // made smaller until the map fits
    let columns;
    do {
      cell -= 1;
      columns = Math.max(unit, Math.floor(Math.min(room / cell, 64) / unit) * unit);
    } while (cell > 5 && Math.ceil(count / columns) * cell > height);
    if (columns === this.grid.columns && cell === this.grid.cell) return;
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
    this.grid = { cells, columns, cell, group };
  },

  lookOf(owner) {
    return typeof owner === "number" ? this.looks[owner] : `o-${owner}`;
  },

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
    const counted = shown.map((owner) => `${typeof owner === "number" ? this.trace.requests[owner].name : names[owner]} ${counts.get(owner)}`);
    $("#slots .grid").setAttribute("aria-label", `${state.size} slots: ${counted.join(", ")}`);
    const never = state.size - this.replay.usedSlots;
    this.tell(never > 0 ? `This run never uses the other ${plural(never, "slot")}.` : "");
  },

  tell(text) {
    $("#slots .detail").textContent = text || "\u00a0";
  },

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
  },

  nodeBox(node, state, users) {
    const classes = ["node", node.lock ? "o-locked" : "o-tree"];
    if (state.fresh.nodes.has(node.number)) classes.push("fresh");
    if (state.fresh.splits.has(node.number)) classes.push("split");
    const box = el("div", { class: classes.join(" "), "data-node": node.number, tabindex: 0 });
    if (node.extraKey != null) box.append(el("small", { class: "key", text: `extra_key=${node.extraKey}` }));
    const tail = Math.floor(this.nodeChars / 3);
    box.append(el("b", { text: shortened(visible(this.textOf(node.key)), this.nodeChars - tail - 1, tail) }));
    const parts = (...texts) => el("span", { class: "parts" }, ...texts.map((text) => el("span", { text })));
    box.append(parts(plural(node.key.length, "token"), `slots ${runsText(node.value, 1)}`));
    const uses = parts(`lock_ref ${node.lock}`, `last use ${node.used}`);
    for (const req of users) uses.append(el("i", { class: `swatch ${this.looks[req.index]}`, title: req.name }));
    box.append(uses);
    return box;
  },

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
  },
});

/** The length of the longest path of nodes below this one. */
function depth(node) {
  return node.children.reduce((most, child) => Math.max(most, 1 + depth(child)), 0);
}

/** The most frequent owner. */
function dominant(owners) {
  const counts = new Map();
  for (const owner of owners) counts.set(owner, (counts.get(owner) ?? 0) + 1);
  return [...counts].reduce((best, entry) => (entry[1] > best[1] ? entry : best))[0];
}
