"""View: what a frame says about the engine, taken between two steps in the engine's thread."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from nanoinfer.engine.engine import Engine
from nanoinfer.server.live.limits import Limits
from nanoinfer.server.live.pool_view import SlotView, TreeView, locked_nodes, runs_of
from nanoinfer.server.live.request_view import RequestView, StepNotes, name_of_key
from nanoinfer.server.live.storey_view import StoreyView
from nanoinfer.server.live.texts import Excerpts

State = dict[str, Any]
COUNTS = (
    *("waiting", "running", "paused", "free_slots", "evictable_slots", "protected_slots", "request_slots"),
    *("extend_steps", "decode_steps", "finished", "aborted", "timed_out", "failed", "retractions", "evicted_tokens"),
    *("prompt_tokens", "cached_tokens", "output_tokens", "drafted_tokens", "accepted_tokens"),
)


@dataclass(frozen=True)
class Look:
    """One look at the engine. `state`: numbers and names, no prompt's tokens. `excerpts`: what texts can be made from; None
    unless prompts may be shown. `seconds`: of processor time that the look took."""

    state: State
    excerpts: Excerpts | None
    seconds: float


class View:
    """Looks at one engine. Everything here runs in the engine's thread, between two steps."""

    def __init__(self, engine: Engine, limits: Limits, show_prompts: bool = False):
        self._engine, self._limits, self._show_prompts = engine, limits, show_prompts
        self.notes = StepNotes()
        self.requests = RequestView(engine, limits)
        self.tree = TreeView(engine.radix_cache, limits.nodes, limits.runs)
        self._storeys = None if engine.cache.storey is None else StoreyView(engine.cache.storey)
        self._slots = SlotView(engine.cache.token_to_kv_pool, limits.cells)

    def look(self, engine: Engine) -> Look:
        """What there is to see now. Bounded by `Limits`, whatever the engine holds."""
        began = time.thread_time()
        with engine.visit():
            passes, kinds = self.notes.take()
            stats = engine.stats()
            adapters = list(engine.adapters.values())
            requests = self.requests.state(kinds)
            nodes = self.tree.state(lambda key: name_of_key(key, adapters))
            for req, seen in self.requests.seen.items():
                if req.req_pool_idx is not None:
                    requests[str(seen.number)]["node"] = self.tree.number(req.last_node)
            state: State = {
                "counts": {name: stats[name] for name in COUNTS},
                "passes": passes,
                "requests": requests,
                "nodes": nodes,
                "map": self._map(),
                "written": self._written(bool(passes)),
            }
            if self._storeys is not None:
                state["storeys"] = self._storeys.state(stats)
                for node, kept in self._storeys.kept(self.tree.shown).items():
                    nodes[str(self.tree.shown[node])] |= kept
            numbers = {req: seen.number for req, seen in self.requests.seen.items()}
            excerpts = Excerpts.of(self.tree.shown, numbers, self._limits) if self._show_prompts else None
            return Look(state, excerpts, time.thread_time() - began)

    def clear(self, _: Engine) -> None:
        """Let go of all nodes and requests, because nobody watches."""
        self.notes.take()
        self.requests.clear()
        self.tree.clear()
        if self._storeys is not None:
            self._storeys.clear()

    def _map(self) -> dict[str, Any]:
        owned: dict[int, np.ndarray] = {}
        others: list[np.ndarray] = []
        running = self._engine.scheduler.running
        for req in running:
            slots = self.requests.row(req)[req.tree_len :]
            if req in self.requests.seen:
                owned[self.requests.seen[req].number] = slots
            else:
                others.append(slots)
        locked = locked_nodes([req.last_node for req in running], self._engine.radix_cache.root)
        return self._slots.state(locked, owned, others)

    def _written(self, any_pass: bool) -> list[int]:
        """Where the last pass has written K/V, as runs; nothing if there was none since the last frame."""
        batch = self._engine.last_batch
        if batch is None or not any_pass:
            return []
        return runs_of(np.sort(batch.out_cache_loc.numpy()), 4 * self._limits.runs)
