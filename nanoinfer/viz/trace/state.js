// The state of the engine after any frame of a trace, rebuilt from its events by the same rules as in nanoinfer/viz/trace/state.py.
// The player has all events from the start; the server's live page gets more while the engine runs.
//
// A frame is what the slider shows at one position. Frame 0 is the beginning of the trace. Then there is one frame per step,
// which includes what happened since the step before, and one more if something happened after the last step.

class RequestState {
  constructor(index, request) {
    Object.assign(this, {
      index, request, status: "waiting", tokens: [...request.prompt, ...(request.outputs ?? [])], promptLen: request.prompt.length, row: null,
      node: 0, treeLen: 0, kvLen: 0, slots: [], cached: request.cached_tokens ?? 0, found: 0, retractions: 0, reason: null,
      admitted: request.admitted ?? false, drafted: request.drafted_tokens ?? 0, accepted: request.accepted_tokens ?? 0,
      fetched: request.fetched ?? {}, // tier → which of the first `cached` tokens came from it
    });
  }

  get name() {
    return this.request.name + (this.request.mine ? ", yours" : "");
  }

  /** The class of its colour; completions of one request have different ones. */
  get look() {
    return `o-r${(this.request.request_id + 3 * this.request.completion) % 8}${this.request.mine ? " mine" : ""}`;
  }
}

class State {
  constructor(trace) {
    this.trace = trace;
    this.size = trace.engine.max_total_tokens;
    this.free = this.size; // as the pool itself says
    this.requests = new Map(); // index → request, those that have arrived
    this.nodes = new Map([[0, { number: 0, parent: null, key: [], value: [], children: [], lock: 0, used: 0, hits: 0 }]]);
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
    for (const index of event.arrived ?? []) this.requests.set(index, new RequestState(index, this.trace.requests[index]));
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
    for (const index of event.resumed ?? []) {
      const req = this.requests.get(index);
      req.status = req.retractions ? "retracted" : "waiting";
    }
    for (const [index, start, middle, end] of event.fetched ?? []) {
      const req = this.requests.get(index);
      if (!req.admitted) req.fetched = { host: [start, middle], disk: [middle, end] };
    }
    for (const [index, row, node, prefixLen] of event.admitted ?? []) {
      const req = this.requests.get(index);
      Object.assign(req, { status: "running", row, node, treeLen: prefixLen, kvLen: prefixLen, found: prefixLen });
      if (!req.admitted) req.cached = prefixLen; // its first admission is what counts
      req.admitted = true;
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
    const node = { number, parent: above, key: [...tokens], value: fromRuns(runs), children: [], lock: 0, used: time, hits: 0, extraKey };
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
    const upper = { ...node, number: upperNumber, key: node.key.slice(0, length), value: node.value.slice(0, length), children: [node] };
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

  /** Owner of every slot below `end`: "free", "tree", "locked", or the index of a request. */
  owners(end) {
    const owners = new Array(end).fill("free");
    for (const node of this.nodes.values()) for (const slot of node.value) owners[slot] = node.lock ? "locked" : "tree";
    for (const req of this.running) for (const slot of req.slots) owners[slot] = req.index;
    return owners;
  }

  /** How many slots each owner has. */
  slotCounts() {
    const held = this.running.map((req) => [req.index, req.slots.length]);
    return new Map([["locked", this.treeSize(true)], ["tree", this.treeSize(false)], ...held, ["free", this.free]]);
  }

  treeSize(locked) {
    let size = 0;
    for (const node of this.nodes.values()) if (locked === undefined || (node.lock > 0) === locked) size += node.key.length;
    return size;
  }
}

/** The states of all frames, and what every request does in them. `add` takes the events of the trace one after the other. */
class Replay {
  constructor(trace) {
    this.trace = trace;
    this.frames = []; // {events, step, mode}; `mode` is null for a frame without a step
    this.newest = new State(trace);
    this.past = { at: -1 }; // a state that was asked for, and its frame
    this.lanes = new Map(); // index of a request → runs {phase, from, to} of frames; lanes of requests that go on are in `alive`
    this.alive = new Set();
    this.passes = [];
    this.usedSlots = 1; // up to the highest one that ever had an owner
  }

  get last() {
    return this.frames.length - 1;
  }

  add(event) {
    const isOpen = this.last > 0 && this.frames[this.last].mode === null;
    if (!isOpen) {
      this.frames.push({ events: [] });
      this.newest.forgetChanges();
    }
    const isStep = ["EXTEND", "DECODE", "VERIFY", "FAILED"].includes(event.mode);
    const frame = this.frames[this.last];
    frame.events.push(event);
    Object.assign(frame, { step: event.step, mode: isStep ? event.mode : null });
    this.newest.apply(event);
    this.survey(event, frame.mode);
  }

  /** Note in the lanes what requests do in this event. */
  survey(event, mode) {
    const { last, newest, lanes } = this;
    for (const index of event.arrived ?? []) this.alive.add(newest.requests.get(index)) && lanes.set(index, []);
    const inPass = new Set(newest.batch.map((entry) => entry.req));
    if (mode !== null) {
      addRun(this.passes, mode.toLowerCase(), last);
      for (const req of this.alive) {
        const waits = req.status === "retracted" || req.status === "paused" ? req.status : "waiting";
        if (inPass.has(req)) addRun(lanes.get(req.index), mode.toLowerCase(), last);
        else if (req.status !== "ended") addRun(lanes.get(req.index), req.row === null ? waits : "idle", last);
      }
    }
    for (const [index, reason] of event.ended ?? []) {
      const req = newest.requests.get(index);
      const at = last + (inPass.has(req) ? 1 : 0);
      lanes.get(index).push({ phase: reason === "stop" || reason === "length" ? "end" : "cut", from: at, to: at });
      this.alive.delete(req);
    }
    const batch = (event.batch ?? []).flatMap((entry) => [entry[3], entry[5] ?? []]);
    const tree = (event.tree ?? []).flatMap(([what, ...rest]) => (what === "add" ? [rest[3]] : what === "grow" ? [rest[2]] : []));
    for (const runs of [...batch, ...tree, ...(event.held ?? []).map((held) => held[5])]) {
      for (let i = 0; i < runs.length; i += 2) this.usedSlots = Math.max(this.usedSlots, runs[i] + runs[i + 1]);
    }
  }

  /** The state after a frame: the newest one, or one that goes forward with its events and back from the beginning. */
  goTo(number) {
    if (number === this.last) return this.newest;
    if (number < this.past.at || this.past.at < 0) this.past = { at: -1, state: new State(this.trace) };
    while (this.past.at < number) {
      this.past.at += 1;
      this.past.state.forgetChanges();
      for (const event of this.frames[this.past.at].events) this.past.state.apply(event);
    }
    return this.past.state;
  }
}

/** Add a frame to runs: to the last one if it is the same and goes on, but every extend and every verify is a run of its own. */
function addRun(runs, phase, frame) {
  const last = runs.at(-1);
  if (last?.phase === phase && last.to === frame && phase !== "extend" && phase !== "verify") last.to += 1;
  else runs.push({ phase, from: frame, to: frame + 1 });
}
