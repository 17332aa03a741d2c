"use strict";
// A frame's state, in the form that the drawings ask for (nanoinfer/trace/player_state.js has the same for a trace).

/** `before` with `changes`: fields are set, those that are null are gone, objects are changed field by field. Returns a new object
 *  that shares with `before` what is the same. The inverse of nanoinfer/server/live/patch.py. */
function merged(before, changes) {
  const after = { ...before };
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) delete after[name];
    else if (typeof value === "object" && !Array.isArray(value) && typeof after[name] === "object") after[name] = merged(after[name], value);
    else after[name] = value;
  }
  return after;
}

const [FREE, TREE, LOCKED, OTHER, FIRST_REQUEST] = [0, 1, 2, 3, 4]; // codes of cells, as in slot_view.py
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
