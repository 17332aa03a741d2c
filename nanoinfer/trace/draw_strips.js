// Strips in the lanes of the timeline: from which storeys K/V came with which a request was admitted. More of the class Drawings, after
// draw_storeys.js. nanoinfer/trace/fetch_pictures.py draws the same.
//
// A strip is one of a lane's runs: {phase: FETCHED, from, to, tokens, again, step}. `from`, `to`: the frame of the pass that admits the
// request. `tokens`: storey → how many tokens, without storeys that gave none. `again`: the request had been admitted before. `step`:
// the pass's number, where that is known.

const FETCHED = "fetched";
const NARROWEST = 11; // pixels of a part: hatches need as much to be told apart

refine(Drawings, {
  lane(before, req, runs, place) {
    const lane = before(req, runs.filter((run) => run.phase !== FETCHED), place);
    lane.lastChild.append(...fetchedRuns(runs).map((run) => strip(req, run, place)));
    return lane;
  },

  timelineLegend(before, runs) {
    before(runs);
    for (const [storey, where] of Object.entries(STOREYS)) {
      const tokens = fetchedRuns(runs).reduce((sum, run) => sum + (run.tokens[storey] ?? 0), 0);
      if (!tokens) continue;
      const words = `admitted with K/V of ${plural(tokens, "token")} from ${where}, locked in the tree`;
      $("#timeline .legend").append(el("span", { class: "entry" }, el("i", { class: `swatch o-${storey}` }), words));
    }
  },

  point(before, target) {
    before(target);
    const pointed = target.closest?.(".strip");
    if (pointed) this.tell(pointed.title);
  },
});

/** Those of a lane's runs that are strips. One without a width was cut off, with its frame. */
const fetchedRuns = (runs) => runs.filter((run) => run.phase === FETCHED && run.to > run.from);

/** A part for each storey, wider for more tokens. Where the frame is too narrow, the strip begins before it, but not before its lane. */
function strip(req, { from, to, tokens, again, step }, place) {
  const which = (again ? " again" : "") + (step === undefined ? "" : ` in step ${step}`);
  const words = `${req.name}: admitted${which} with K/V of ${fromWhere(tokens)}`;
  const parts = Object.entries(tokens).map(([storey, number]) => el("span", { class: `o-${storey}`, style: `flex: ${number} 0 ${NARROWEST}px` }));
  const drawn = el("span", { class: "strip", role: "img", "aria-label": words, title: words, "data-request": req.index, style: place(from, to) }, ...parts);
  const { style } = drawn;
  const least = `${NARROWEST * parts.length}px`;
  style.left = `max(0px, min(${style.left}, ${style.left} + ${style.width} - ${least}))`;
  style.minWidth = least;
  return drawn;
}

/** {host: 32, disk: 16} as "32 tokens from host memory and 16 from files", as `from_where` in nanoinfer/trace/fetches.py says it. */
function fromWhere(tokens) {
  const [[first, number], ...more] = Object.entries(tokens);
  return [`${plural(number, "token")} from ${STOREYS[first]}`, ...more.map(([storey, others]) => `${others.toLocaleString("en")} from ${STOREYS[storey]}`)].join(" and ");
}
