// Pointing at a request, a node or a slot: what belongs together lights up, and a sentence says what it is.

Object.assign(Drawings.prototype, {
  /** Look where the pointer and the focus are, from now on. */
  followPointer() {
    document.addEventListener("pointerover", (event) => this.point(event.target));
    document.addEventListener("focusin", (event) => event.target.matches("[data-node], .chip") && this.point(event.target));
  },

  /** Light up slots and nodes, or nothing (null). */
  light(what) {
    document.body.classList.toggle("lighting", what !== null);
    for (const lit of document.querySelectorAll(".lit")) lit.classList.remove("lit");
    if (what === null) return;
    const { group, cells } = this.grid;
    for (const slot of what.slots) cells[Math.floor(slot / group)]?.classList.add("lit");
    for (const number of what.nodes ?? []) $(`[data-node="${number}"]`)?.classList.add("lit");
    if (what.request != null) for (const one of document.querySelectorAll(`[data-request="${what.request}"]`)) one.classList.add("lit");
  },

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
  },

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
  },

  aboutRest(state, slot) {
    return `slot ${slot}: free`;
  },
});
