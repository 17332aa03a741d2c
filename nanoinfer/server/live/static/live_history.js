"use strict";
// The last minutes: the states of the newest frames, and what each request did in them. Bounded, whatever the server sends.

const MOST_FRAMES = 1800; // three minutes, if every tenth of a second brings one
const MOST_LANES = 24; // that are drawn

class History {
  constructor() {
    this.frames = []; // {fields, at}; states share what is the same in them
    this.first = 0; // the position of the oldest; positions count on for as long as the page is open
    this.lanes = new Map(); // request → {index, id, name, look, runs}
    this.passes = [];
  }

  get end() {
    return this.first + this.frames.length;
  }

  /** The frame at a position, or null. */
  frame(position) {
    return this.frames[position - this.first] ?? null;
  }

  add(fields) {
    const position = this.end;
    this.frames.push({ fields, at: Date.now() });
    const kinds = ["extend", "verify", "decode"].filter((kind) => fields.passes[kind.toUpperCase()]);
    if (kinds.length) extend(this.passes, kinds[0], position);
    for (const [index, req] of Object.entries(fields.requests)) this.note(Number(index), req, position);
    if (this.frames.length > MOST_FRAMES) this.forget();
  }

  note(index, req, position) {
    let lane = this.lanes.get(index);
    if (lane?.hasEnded) return;
    if (lane === undefined) this.lanes.set(index, (lane = { index, id: req.id, name: req.name, look: req.look, runs: [], hasEnded: false }));
    const tokens = this.isAdmission(lane, req) ? fetchedTokens(req) : {};
    if (Object.keys(tokens).length) lane.runs.push({ phase: FETCHED, from: position, to: position + 1, tokens });
    if (req.phase !== "ended") extend(lane.runs, req.phase, position);
    if (req.status !== "ended") return;
    lane.hasEnded = true;
    const at = position + (req.phase === "ended" ? 0 : 1);
    lane.runs.push({ phase: req.reason === "stop" || req.reason === "length" ? "end" : "cut", from: at, to: at });
  }

  /** Whether a request was admitted for the first time since the frame before; of later admissions, no frame says what was fetched. What
   *  was before the first frame is not known. */
  isAdmission(lane, req) {
    const hasWaited = lane.runs.every((run) => run.phase === "waiting" || run.phase === "paused");
    return this.frames.length > 1 && req.phase === "extend" && hasWaited && !req.again;
  }

  forget() {
    this.frames.shift();
    this.first += 1;
    while (this.passes.length && this.passes[0].to < this.first) this.passes.shift();
    for (const [index, { runs }] of this.lanes) if (runs.at(-1).to < this.first) this.lanes.delete(index);
  }

  /** Nothing can be compared with what was before: the server is another one. */
  clear() {
    Object.assign(this, { first: this.end, frames: [], passes: [] });
    this.lanes.clear();
  }

  /** What is between two positions, cut at them: {passes, lanes, left}; `left`: how many older lanes are not among them. */
  window(from, to) {
    const cut = (runs) => runs.filter((run) => run.to >= from && run.from < to).map((run) => ({ ...run, from: Math.max(run.from, from), to: Math.min(run.to, to) }));
    const all = [...this.lanes.values()].map((lane) => ({ ...lane, runs: cut(lane.runs) })).filter((lane) => lane.runs.some((run) => run.to > run.from));
    const lanes = all.slice(-MOST_LANES);
    return { passes: cut(this.passes), lanes, left: all.length - lanes.length };
  }
}

/** Storey → how many of the tokens that were found for a request came from it, without storeys that gave none. */
function fetchedTokens({ cached, fetched }) {
  const counts = origins({ found: cached, fetched });
  return Object.fromEntries(Object.keys(STOREYS).filter((storey) => counts[storey]).map((storey) => [storey, counts[storey]]));
}

/** Add what happened at a position to runs of the same. */
function extend(runs, phase, position) {
  const last = runs.at(-1);
  if (last && last.phase === phase && last.to === position) last.to += 1;
  else runs.push({ phase, from: position, to: position + 1 });
}
