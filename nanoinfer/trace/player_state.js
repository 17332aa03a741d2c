// The state of the engine after any frame, rebuilt from the events of a trace by the same rules as in nanoinfer/trace/state.py.
//
// The drawings ask a state for `requests`, `nodes`, `fresh` (what the frame changed), `ended`, `size`, and for what is below
// "questions". Requests have `name`, `look` and `index`, nodes `length`.
//
// A frame is what the slider shows at one position. Frame 0 is the beginning of the trace. Then there is one frame per step,
// which includes what happened since the step before, and one more if something happened after the last step.

/** The events of a trace as frames {events, step, mode}; `mode` is null for a frame without a step. */
function framesOf(trace) {
  const isStep = (event) => ["EXTEND", "DECODE", "VERIFY", "FAILED"].includes(event.mode);
  const frames = [{ events: [trace.events[0]], step: 0, mode: null }];
  let between = [];
  for (const event of trace.events.slice(1)) {
    if (isStep(event)) {
      frames.push({ events: [...between, event], step: event.step, mode: event.mode });
      between = [];
    } else {
      between.push(event);
    }
  }
  if (between.length) frames.push({ events: between, step: between[0].step, mode: null });
  return frames;
}

class TreeNode {
  constructor(fields) {
    Object.assign(this, fields);
  }

  get length() {
    return this.key.length;
  }
}

class State {
  constructor(trace) {
    this.trace = trace;
    this.size = trace.engine.max_total_tokens;
    this.free = this.size; // as the pool itself says
    this.requests = new Map(); // index → request, those that have arrived
    this.nodes = new Map([[0, new TreeNode({ number: 0, parent: null, key: [], value: [], children: [], lock: 0, used: 0, hits: 0 })]]);
    this.forgetChanges();
  }

  /** Forget what the last frame changed; the pictures mark these changes. */
  forgetChanges() {
    this.fresh = { written: new Set(), evicted: new Set(), nodes: new Set(), splits: new Set(), removed: [] };
    this.batch = [];
    this.ended = [];
  }

  apply(event) {
    this.free = event.free;
    for (const index of event.arrived ?? []) {
      const request = this.trace.requests[index];
      const tokens = [...request.prompt, ...(request.outputs ?? [])];
      this.requests.set(index, {
        index, name: request.name, look: lookOf(request), status: "waiting", tokens, promptLen: request.prompt.length, row: null, node: 0,
        treeLen: 0, kvLen: 0, slots: [], cached: request.cached_tokens ?? 0, found: 0, retractions: 0, reason: null,
        admitted: request.admitted ?? false, drafted: request.drafted_tokens ?? 0, accepted: request.accepted_tokens ?? 0,
        fetched: request.fetched ?? {},
      });
      const req = this.requests.get(index);
      if (req.admitted) req.came = origins({ ...req, found: req.cached });
    }
    for (const [what, number, ...rest] of event.tree ?? []) this[what](number, ...rest);
    for (const [number, lock, used, hits] of event.nodes ?? []) Object.assign(this.nodes.get(number), { lock, used, hits });
    for (const [index, row, node, treeLen, kvLen, runs] of event.held ?? []) {
      const req = this.requests.get(index);
      const done = kvLen + 1 === req.tokens.length && req.tokens.length > req.promptLen;
      const status = done ? "running" : "prefilling";
      Object.assign(req, { row, node, treeLen, kvLen, slots: fromRuns(runs), status, found: treeLen, admitted: true });
    }
    for (const index of event.retracted ?? []) {
      const req = this.requests.get(index);
      this.release(req, "retracted");
      req.retractions += 1;
      req.admitted = true;
    }
    for (const index of event.paused ?? []) this.release(this.requests.get(index), "paused");
    for (const index of [...(event.retracted ?? []), ...(event.paused ?? [])]) this.requests.get(index).fetched = {};
    for (const index of event.resumed ?? []) {
      const req = this.requests.get(index);
      req.status = req.retractions ? "retracted" : "waiting";
    }
    for (const [index, start, middle, end] of event.fetched ?? []) this.requests.get(index).fetched = { host: [start, middle], disk: [middle, end] };
    for (const [index, row, node, prefixLen] of event.admitted ?? []) {
      const req = this.requests.get(index);
      Object.assign(req, { status: "running", row, node, treeLen: prefixLen, kvLen: prefixLen, found: prefixLen });
      if (!req.admitted) req.cached = prefixLen;
      req.admitted = true;
      req.came ??= origins(req); // its first admission is what counts
    }
    for (const [index, start, end, runs, tokens, allocated, drafts] of event.batch ?? []) {
      const req = this.requests.get(index);
      const slots = fromRuns(runs);
      const inputs = req.tokens.slice(start, end);
      const different = tokens.findIndex((token, i) => token !== drafts?.[i]);
      const accepted = different < 0 ? tokens.length : different; // of the drafts
      req.slots.push(...(allocated == null ? slots : fromRuns(allocated)));
      req.kvLen = drafts ? start + tokens.length : end; // K/V of wrong drafts does not count
      req.status = tokens.length ? "running" : "prefilling";
      req.tokens.push(...tokens);
      if (drafts && (tokens.length || event.error == null)) {
        req.drafted += drafts.length;
        req.accepted += accepted;
      }
      for (const slot of slots) this.fresh.written.add(slot);
      // `first`: the position of the first sampled token
      this.batch.push({ req, start, end, slots, tokens, inputs, drafts: drafts ?? [], accepted, first: drafts ? start + 1 : end });
    }
    for (const [index, node, treeLen] of event.paths ?? []) {
      const req = this.requests.get(index);
      req.slots.splice(0, treeLen - req.treeLen);
      Object.assign(req, { node, treeLen });
    }
    for (const [index, reason] of event.ended ?? []) {
      const req = this.requests.get(index);
      this.release(req, "ended");
      req.reason = reason;
      this.ended.push(req);
    }
  }

  release(req, status) {
    Object.assign(req, { status, row: null, node: 0, treeLen: 0, kvLen: 0, slots: [] });
  }

  // --- what can happen to the tree ---

  add(number, parent, tokens, runs, extraKey, time) {
    const above = this.nodes.get(parent);
    const node = new TreeNode({ number, parent: above, key: [...tokens], value: fromRuns(runs), children: [], lock: 0, used: time, hits: 0, extraKey });
    above.children.push(node);
    this.nodes.set(number, node);
    this.fresh.nodes.add(number);
  }

  grow(number, tokens, runs) {
    const node = this.nodes.get(number);
    node.key.push(...tokens);
    node.value.push(...fromRuns(runs));
    this.fresh.nodes.add(number);
  }

  split(number, upperNumber, length) {
    const node = this.nodes.get(number); // becomes the lower part
    const upper = new TreeNode({ ...node, number: upperNumber, key: node.key.slice(0, length), value: node.value.slice(0, length), children: [node] });
    upper.parent.children[upper.parent.children.indexOf(node)] = upper;
    Object.assign(node, { key: node.key.slice(length), value: node.value.slice(length), parent: upper });
    this.nodes.set(upperNumber, upper);
    this.fresh.splits.add(upperNumber);
  }

  remove(number) {
    const node = this.nodes.get(number);
    node.parent.children.splice(node.parent.children.indexOf(node), 1);
    this.nodes.delete(number);
    this.fresh.removed.push(node);
    for (const slot of node.value) this.fresh.evicted.add(slot);
  }

  // --- questions ---

  get running() {
    return [...this.requests.values()].filter((req) => req.row !== null);
  }

  get waiting() {
    return [...this.requests.values()].filter((req) => req.status === "waiting" || req.status === "retracted");
  }

  /** The nodes from the root down to where a request's cached prefix ends. */
  path(req) {
    const path = [];
    for (let node = this.nodes.get(req.node); node && node.number; node = node.parent) path.unshift(node);
    return path;
  }

  /** The slots in a running request's row, position by position. */
  rowSlots(req) {
    return [...this.path(req).flatMap((node) => node.value).slice(0, req.treeLen), ...req.slots];
  }

  /** Owner of every slot: "free", "tree", "locked", or the index of a request. */
  owners() {
    const owners = new Array(this.size).fill("free");
    for (const node of this.nodes.values()) for (const slot of node.value) owners[slot] = node.lock ? "locked" : "tree";
    for (const req of this.running) for (const slot of req.slots) owners[slot] = req.index;
    return owners;
  }

  /** How many slots each owner has. */
  slotCounts() {
    const counts = new Map();
    for (const owner of this.owners()) counts.set(owner, (counts.get(owner) ?? 0) + 1);
    return counts;
  }

  treeSize(locked) {
    let size = 0;
    for (const node of this.nodes.values()) if (locked === undefined || (node.lock > 0) === locked) size += node.key.length;
    return size;
  }
}

/** The class of a request's colour; completions of one request have different ones. */
const lookOf = (request) => `o-r${(request.request_id + 3 * request.completion) % 8}`;

/** The states of all frames, one at a time: going forward applies the next events, going back starts from the beginning. */
class Replay {
  constructor(trace) {
    this.trace = trace;
    this.frames = framesOf(trace);
    this.at = -1;
  }

  goTo(number) {
    if (number < this.at || this.at < 0) {
      this.state = new State(this.trace);
      this.at = -1;
    }
    while (this.at < number) {
      this.at += 1;
      this.state.forgetChanges();
      for (const event of this.frames[this.at].events) this.state.apply(event);
    }
    return this.state;
  }
}

/** What every request does in every frame, as runs {phase, from, to}. Also sets how many slots are worth drawing. */
function survey(replay) {
  const lanes = new Map();
  let used = 0;
  replay.frames.forEach((frame, number) => {
    const state = replay.goTo(number);
    const inPass = new Set(state.batch.map((entry) => entry.req));
    for (const node of state.fresh.nodes) for (const slot of state.nodes.get(node)?.value ?? []) used = Math.max(used, slot + 1);
    for (const req of state.running) for (const slot of req.slots) used = Math.max(used, slot + 1);
    for (const slot of state.fresh.written) used = Math.max(used, slot + 1);
    for (const req of state.requests.values()) {
      if (req.status === "ended" && !state.ended.includes(req)) continue;
      if (frame.mode === null) continue;
      if (req.status === "ended" && !inPass.has(req)) continue; // it ended before this step
      const waits = req.status === "retracted" || req.status === "paused" ? req.status : "waiting";
      const phase = inPass.has(req) ? frame.mode.toLowerCase() : req.row === null ? waits : "idle";
      const runs = lanes.get(req.index) ?? lanes.set(req.index, []).get(req.index);
      const last = runs.at(-1);
      if (last && last.phase === phase && last.to === number && phase !== "extend" && phase !== "verify") last.to = number + 1;
      else runs.push({ phase, from: number, to: number + 1 });
    }
    for (const req of state.ended) {
      const runs = lanes.get(req.index) ?? lanes.set(req.index, []).get(req.index);
      const at = number + (inPass.has(req) ? 1 : 0);
      runs.push({ phase: req.reason === "stop" || req.reason === "length" ? "end" : "cut", from: at, to: at });
    }
  });
  const { max_total_tokens: size } = replay.trace.engine;
  replay.usedSlots = size <= 512 || used > size / 2 ? size : Math.max(used, 1);
  return lanes;
}
