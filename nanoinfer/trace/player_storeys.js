// The storeys of a trace: which positions of a request came from where, at its last admission. Only in a player whose trace has any.

refine(State, {
  apply(before, event) {
    before(event);
    for (const index of event.arrived ?? []) {
      const req = this.requests.get(index);
      req.fetched = this.trace.requests[index].fetched ?? {};
      if (req.admitted) req.came = origins({ ...req, found: req.cached });
    }
    for (const index of [...(event.retracted ?? []), ...(event.paused ?? [])]) this.requests.get(index).fetched = {};
    for (const [index, start, middle, end] of event.fetched ?? []) this.requests.get(index).fetched = { host: [start, middle], disk: [middle, end] };
    for (const [index] of event.admitted ?? []) this.requests.get(index).came ??= origins(this.requests.get(index));
  },
});

refine(Page, {
  fillCounters(before, values) {
    const came = { host: 0, disk: 0 };
    for (const req of this.state.requests.values()) for (const storey of Object.keys(came)) came[storey] += req.came?.[storey] ?? 0;
    const fetched = this.engine.storeys.map((storey) => [`from ${STOREYS[storey]}`, [came[storey].toLocaleString("en"), `o-${storey}`]]);
    before({ ...values, ...Object.fromEntries(fetched) });
  },

  lookOfToken(before, req, position, entry) {
    const look = before(req, position, entry);
    const storey = Object.keys(STOREYS).find((name) => position >= req.fetched[name]?.[0] && position < req.fetched[name][1]);
    return look === "cached" && storey ? `cached from-${storey}` : look;
  },
});

// What the looks of a request's text mean: those of the storeys behind that of the tree.
for (const storey of JSON.parse($("#data").textContent).trace.engine.storeys.toReversed()) {
  $("#texts-title .cached").after(" · ", el("span", { class: `cached from-${storey}`, text: `from ${STOREYS[storey]}` }));
}
