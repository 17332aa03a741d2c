"use strict";
// A frame's state, in the form that the drawings ask for (nanoinfer/trace/player_state.js has the same for a trace).

/** `before` with `changes`: fields are set, those that are null are gone, objects are changed field by field. Returns a new object
 *  that shares with `before` what is the same. The inverse of what nanoinfer/server/live/feed.py makes. */
function merged(before, changes) {
  const after = { ...before };
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) delete after[name];
    else if (typeof value === "object" && !Array.isArray(value) && typeof after[name] === "object") after[name] = merged(after[name], value);
    else after[name] = value;
  }
  return after;
}

const [FREE, TREE, LOCKED, OTHER, FIRST_REQUEST] = [0, 1, 2, 3, 4]; // codes of cells, as in pool_view.py
const OWNERS = { [FREE]: "free", [TREE]: "tree", [LOCKED]: "locked", [OTHER]: "other" };

const Mine = new Set(); // the engine's numbers of the requests that this page has sent

/** {name, look} of a request of a frame; one of this page's is marked. */
function marked({ id, name, look }) {
  return Mine.has(id) ? { name: `${name}, yours`, look: `o-r${look} mine` } : { name, look: `o-r${look}` };
}

class LiveState {
  /** `fields`: the frame's state. `before`: the fields of the frame before, null if it is not known. */
  constructor(fields, before, engine) {
    Object.assign(this, { fields, engine, size: engine.max_total_tokens, free: fields.counts.free_slots, batch: [] });
    this.requests = new Map(Object.entries(fields.requests).map(([index, req]) => [Number(index), liveRequest(Number(index), req)]));
    this.nodes = liveNodes(fields.nodes);
    const fresh = before === null ? [] : [...this.nodes.values()].filter((node) => (before.nodes[node.number]?.tokens ?? 0) < node.length);
    this.fresh = {
      written: new Set(fromRuns(fields.written)), evicted: new Set(), removed: [], splits: new Set(),
      nodes: new Set(fresh.map((node) => node.number)),
    };
    this.ended = [...this.requests.values()].filter((req) => req.status === "ended" && before?.requests[req.index]?.status !== "ended");
  }

  get running() {
    return [...this.requests.values()].filter((req) => req.row !== null);
  }

  get numRunning() {
    return this.fields.counts.running;
  }

  path(req) {
    const path = [];
    for (let node = this.nodes.get(req.node); node && node.number; node = this.nodes.get(node.parent)) path.unshift(node);
    return path;
  }

  /** The slots in a running request's row, position by position; none for a row that the frame does not give. */
  rowSlots(req) {
    return fromRuns(req.runs);
  }

  /** How many slots of its row are left out. */
  slotsLeft(req) {
    return req.treeLen + req.held - this.rowSlots(req).length;
  }

  /** The owner of each cell of the map. */
  cellOwners() {
    const owners = [];
    for (const line of Object.keys(this.fields.map.lines).sort((a, b) => a - b)) {
      const runs = this.fields.map.lines[line];
      for (let i = 0; i < runs.length; i += 2) {
        const owner = OWNERS[runs[i + 1]] ?? runs[i + 1] - FIRST_REQUEST;
        const known = typeof owner === "string" || this.requests.has(owner) ? owner : "other";
        for (let k = 0; k < runs[i]; k++) owners.push(known);
      }
    }
    return owners;
  }

  slotCounts() {
    const { counts } = this.fields;
    const held = this.running.map((req) => [req.index, req.held]);
    const others = counts.request_slots - held.reduce((sum, [, slots]) => sum + slots, 0);
    return new Map([["locked", counts.protected_slots], ["tree", counts.evictable_slots], ...held, ["other", others], ["free", counts.free_slots]]);
  }
}

function liveRequest(index, req) {
  return {
    index, ...marked(req), isMine: Mine.has(req.id), status: req.status, phase: req.phase, reason: req.reason ?? null, adapter: req.adapter ?? null,
    promptLen: req.prompt, numTokens: req.tokens, limit: req.limit, cached: req.cached, found: req.cached,
    fetched: req.fetched ?? {}, fetching: req.fetching ?? 0, again: req.again ?? false, drafted: req.drafted, accepted: req.accepted,
    row: req.row ?? null, node: req.node ?? 0, treeLen: req.tree ?? 0, kvLen: req.kv ?? 0, held: req.held ?? 0, runs: req.slots ?? [],
    promptText: req.prompt_text ?? null, outputText: req.output_text ?? null,
  };
}

function liveNodes(fields) {
  const nodes = new Map();
  for (const [number, node] of Object.entries(fields)) {
    nodes.set(Number(number), {
      number: Number(number), parent: node.parent ?? null, length: node.tokens ?? 0, value: fromRuns(node.slots ?? []), children: [],
      lock: node.lock ?? 0, hits: node.hits ?? 0, used: node.used ?? 0, made: node.made ?? 0, hidden: node.hidden, label: node.key ?? null, text: node.text ?? null,
      kept: { host: node.host ?? 0, disk: node.disk ?? 0 },
    });
  }
  for (const node of nodes.values()) nodes.get(node.parent)?.children.push(node);
  for (const node of nodes.values()) node.children.sort((a, b) => a.made - b.made || a.number - b.number);
  return nodes;
}

// --- the last minutes ---

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
    if (req.phase !== "ended") extend(lane.runs, req.phase, position);
    if (req.status !== "ended") return;
    lane.hasEnded = true;
    const at = position + (req.phase === "ended" ? 0 : 1);
    lane.runs.push({ phase: req.reason === "stop" || req.reason === "length" ? "end" : "cut", from: at, to: at });
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

/** Add what happened at a position to runs of the same. */
function extend(runs, phase, position) {
  const last = runs.at(-1);
  if (last && last.phase === phase && last.to === position) last.to += 1;
  else runs.push({ phase, from: position, to: position + 1 });
}
