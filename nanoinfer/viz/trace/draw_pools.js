// Draws slots, rows and tree of a frame: more methods of Page (draw.js).

const MOST_CELLS = 4096; // of the slot map; if there are more slots, a cell stands for several
const MOST_NODES = 80;

Object.assign(Page.prototype, {
  // --- slots ---

  /** How many slots are worth drawing: those that have ever been in use, rounded up, and all of a small pool. */
  shownSlots() {
    return Math.min(Math.max(512, 2 ** Math.ceil(Math.log2(this.replay.usedSlots))), this.engine.max_total_tokens);
  },

  /** A grid of cells, in whole pages where these are not too long; again only when there are more slots to show. */
  layOutSlots() {
    const { page_size: page } = this.engine;
    const shown = this.shownSlots();
    const group = Math.ceil(shown / MOST_CELLS);
    const count = Math.ceil(shown / group);
    if (count === this.grid.cells.length && group === this.grid.group) return;
    const hasPages = page > 1 && group === 1;
    const unit = hasPages && page <= 32 ? Math.max(8, page) : 8;
    const columns = Math.floor((count > 512 ? 64 : 32) / unit) * unit;
    const cells = Array.from({ length: count }, (_, i) => {
      const isPageEnd = hasPages && i % page === page - 1;
      return el("i", { "data-slot": i * group, "data-page-end": isPageEnd && "", class: "slot" });
    });
    $("#slots .grid").style.setProperty("--columns", columns);
    const every = columns * (count > 512 ? 4 : 1); // cells from one number at the side to the next
    const side = (i) => (i % columns ? [] : [el("span", { text: i % every ? "" : i * group })]);
    $("#slots .grid").replaceChildren(...cells.flatMap((cell, i) => [...side(i), cell]));
    this.grid = { cells, group };
  },

  lookOf(state, owner) {
    return typeof owner === "number" ? state.requests.get(owner).look : `o-${owner}`;
  },

  drawSlots(state) {
    const { cells, group } = this.grid;
    const owners = state.owners(cells.length * group);
    const ofCell = group === 1 ? owners : cells.map((_, i) => mostFrequent(owners.slice(i * group, (i + 1) * group)));
    const looks = ofCell.map((owner) => `slot ${this.lookOf(state, owner)}`);
    for (const [marked, mark] of [[state.fresh.evicted, " evicted"], [state.fresh.written, " written"]]) {
      for (const i of new Set([...marked].map((slot) => Math.floor(slot / group)))) {
        if (i < cells.length) looks[i] = looks[i].replace(" evicted", "") + mark;
      }
    }
    cells.forEach((cell, i) => {
      if (cell.className !== looks[i]) cell.className = looks[i];
    });
    const counts = state.slotCounts();
    const order = ["locked", "tree", ...state.running.map((req) => req.index), "free"];
    const names = { locked: "tree, locked", tree: "tree", free: "free" };
    const shown = order.filter((owner) => counts.get(owner));
    fill($("#slots .bar"), ...shown.map((owner) => el("i", { class: this.lookOf(state, owner), style: `flex-grow: ${counts.get(owner)}` })));
    const entries = shown.map((owner) =>
      typeof owner === "number"
        ? this.chip(state.requests.get(owner), ` ${counts.get(owner)}`)
        : el("span", { class: "entry" }, el("i", { class: `swatch ${this.lookOf(state, owner)}` }), `${names[owner]} ${counts.get(owner)}`),
    );
    if (state.fresh.written.size) entries.push(el("span", { class: "entry" }, el("i", { class: "swatch written" }), `written now ${state.fresh.written.size}`));
    if (state.fresh.evicted.size) entries.push(el("span", { class: "entry" }, el("i", { class: "swatch evicted" }), `evicted now ${state.fresh.evicted.size}`));
    fill($("#slots .legend"), ...entries);
    const counted = shown.map((owner) => `${typeof owner === "number" ? state.requests.get(owner).name : names[owner]} ${counts.get(owner)}`);
    $("#slots .grid").setAttribute("aria-label", `${state.size} slots: ${counted.join(", ")}`);
    const rest = state.size - this.shownSlots();
    this.tell(`${group > 1 ? `A cell is ${group} slots. ` : ""}${rest ? `The other ${plural(rest, "slot")} have not been in use.` : ""}`);
  },

  tell(text) {
    $("#slots .detail").textContent = text || "\u00a0";
  },

  // --- tree ---

  drawTree(state) {
    const users = new Map(); // node → running requests whose prefix passes through
    for (const req of state.running) for (const node of state.path(req)) users.set(node, [...(users.get(node) ?? []), req]);
    let left = MOST_NODES;
    const branch = (node) => {
      const children = [];
      let hidden = 0;
      for (const child of node.children) {
        if (left-- > 0) children.push(branch(child));
        else hidden += 1;
      }
      if (hidden) children.push(el("div", { class: "branch", "data-key": "more" }, el("div", { class: "node more", text: `… ${hidden.toLocaleString("en")} more` })));
      const box = node.number ? this.nodeBox(node, state, users.get(node) ?? []) : el("div", { class: "node root", text: "root" });
      return el("div", { class: "branch", "data-key": node.number }, box, children.length ? el("div", { class: "children" }, ...children) : null);
    };
    fill($("#tree .branches"), branch(state.nodes.get(0)));
    const gone = state.fresh.removed.map((node) => `“${shortened(visible(this.nodeText(node)), 24, 10)}” (${plural(node.key.length, "token")})`);
    const evicted = gone.length ? `Evicted now: ${gone.slice(0, 3).join(", ")}${gone.length > 3 ? ` and ${gone.length - 3} more` : ""}.` : "";
    const empty = this.engine.disable_radix_cache ? "The radix cache is switched off." : state.nodes.size === 1 ? "The tree is empty." : "\u00a0";
    $("#tree .note").textContent = evicted || empty;
  },

  /** What a node says; of a long one, its beginning and its end. */
  nodeText({ key }) {
    const shown = key.length > 120 ? [...key.slice(0, 60), ...key.slice(-60)] : key;
    return shown.map((token) => this.textOf(token)).join("");
  },

  nodeBox(node, state, users) {
    const classes = ["node", node.lock ? "o-locked" : "o-tree"];
    if (state.fresh.nodes.has(node.number)) classes.push("fresh");
    if (state.fresh.splits.has(node.number)) classes.push("split");
    const box = el("div", { class: classes.join(" "), "data-node": node.number, tabindex: 0 });
    if (node.extraKey != null) box.append(el("small", { class: "key", text: `extra_key=${node.extraKey}` }));
    box.append(el("b", { text: shortened(visible(this.nodeText(node)), 16, 8) }));
    const parts = (...texts) => el("span", { class: "parts" }, ...texts.map((text) => el("span", { text })));
    box.append(parts(plural(node.key.length, "token"), `slots ${runsText(node.value, 1)}`));
    const uses = parts(`lock_ref ${node.lock}`, plural(node.hits, "hit"), `last use ${node.used}`);
    for (const req of users) uses.append(el("i", { class: `swatch ${req.look}`, title: req.name }));
    box.append(uses);
    return box;
  },

  // --- rows ---

  drawRows(state) {
    const rows = state.running.sort((a, b) => a.row - b.row);
    const fresh = state.fresh.written;
    const lines = rows.slice(0, MOST_ROWS).map((req) => {
      const slots = state.rowSlots(req);
      const kinds = slots.map((slot, i) => (i >= req.kvLen ? "empty" : i < req.treeLen ? "o-locked" : req.look));
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
        const style = `flex-grow: ${run.length}`;
        return el("span", { class: `run ${run.look}`, "data-slots": `${run.start} ${run.length}`, style }, el("em", { text }));
      });
      return el(
        "div",
        { class: "row", "data-request": req.index },
        el("div", { class: "head" }, el("b", { text: `row ${req.row}` }), this.chip(req), el("small", { text: `seq_len ${req.kvLen}` })),
        el("div", { class: "runs" }, ...parts),
      );
    });
    const more = rows.length - lines.length;
    if (more > 0) lines.push(el("p", { text: `… and ${plural(more, "more row")}` }));
    if (!rows.length) lines.push(el("p", { class: "none", text: `All ${this.engine.max_running_requests} rows are free.` }));
    fill($("#rows .list"), ...lines);
  },
});

function mostFrequent(owners) {
  const counts = new Map();
  for (const owner of owners) counts.set(owner, (counts.get(owner) ?? 0) + 1);
  return [...counts].reduce((best, entry) => (entry[1] > best[1] ? entry : best))[0];
}
