// Where K/V came from that was not computed: more of the class Drawings, for an engine with storeys below its pool. For others,
// the trace player has neither this file nor player_storeys.js, and draws what it drew before there were storeys.
//
// A request of such an engine says `found` (how many of its first tokens were not computed), `fetched` (storey → [the first of
// them that came from it, the one behind the last]), and `fetching` (how many are on their way). If these are of a later admission,
// `came` has the counts of the first. A node may say `kept` (storey → how many of its tokens are there as well).

const STOREYS = { host: "host memory", disk: "files" };

/** Put methods in place of those of a class. Each gets the one before it as its first argument. */
function refine(kind, methods) {
  for (const [name, method] of Object.entries(methods)) {
    const before = kind.prototype[name];
    kind.prototype[name] = function (...given) {
      return method.call(this, before.bind(this), ...given);
    };
  }
}

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

refine(Drawings, {
  frameCard(before, req, numbers, text, justEnded) {
    const came = storeyWords(req.came ?? origins(req), "from");
    const coming = req.fetching ? ` · waits for ${plural(req.fetching, "token")} on their way from files` : "";
    const where = came ? numbers.replace("found in the tree", `found, of those ${came}`) : numbers;
    return before(req, where + coming, text, justEnded);
  },

  nodeBox(before, node, state, users) {
    const box = before(node, state, users);
    const kept = storeyWords(node.kept, "in");
    if (kept) box.append(el("span", { class: "kept", text: `also kept: ${kept}` }));
    return box;
  },

  drawRows(before, state) {
    before(state);
    if (!this.engine.storeys) return; // on the live page
    for (const row of document.querySelectorAll("#rows .row")) {
      const req = state.requests.get(Number(row.dataset.request));
      if (!req.again) row.append(this.originBar(req));
    }
  },
});

/** A row's tokens by where their K/V is from, as a bar and in words. */
Drawings.prototype.originBar = function (req) {
  const { device, host, disk } = origins(req);
  const all = [
    ["o-locked", "found in the pool", device],
    ["o-host", "from host memory", host],
    ["o-disk", "from files", disk],
    ["p-decode", "computed", Math.max(req.kvLen - req.found, 0)],
  ];
  const parts = all.filter(([, , tokens]) => tokens > 0);
  const bar = parts.map(([look, , tokens]) => el("i", { class: look, style: `flex-grow: ${tokens}` }));
  const words = parts.map(([look, name, tokens]) => el("span", { class: "entry" }, el("i", { class: `swatch ${look}` }), `${name} ${tokens.toLocaleString("en")}`));
  return el("div", { class: "origins" }, el("div", { class: "bar", "aria-hidden": "true" }, ...bar), el("p", { class: "legend" }, ...words));
};
