"""Requests in a frame: what each of them is doing, in which passes it was, and where its K/V is."""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np

from nanoinfer.adapters.adapter import Adapter
from nanoinfer.engine.engine import Engine
from nanoinfer.requests.adapter_key import AdapterKey
from nanoinfer.requests.req import Req
from nanoinfer.server.live.limits import Limits
from nanoinfer.server.live.pool_view import runs_of
from nanoinfer.server.live.storey_view import waiting_for
from nanoinfer.viz.palette import COMPLETION, REQUESTS

Fields = dict[str, Any]
STRENGTH = ("DECODE", "VERIFY", "EXTEND")  # of several passes in one frame, a request is shown in the last of these
MOST_REQUESTS = 1024  # that are noted between two frames; the frame's counts are of all of them


class Seen(NamedTuple):
    """A request that frames show: its `number`, which is never used again, and which completion of its prompt it is."""

    number: int
    completion: int


class RequestView:
    """Numbers requests as it first sees them. Keeps a Req only while it is open, and the few that ended last."""

    def __init__(self, engine: Engine, limits: Limits):
        self._engine, self._limits = engine, limits
        self._next = count()
        self._ended: deque[Req] = deque(maxlen=limits.ended)
        self.seen: dict[Req, Seen] = {}  # those of the last frame

    def state(self, kinds: Mapping[Req, str]) -> dict[str, Fields]:
        """Number → what the request is doing. `kinds`: the passes it was in since the last frame (StepNotes)."""
        limits, scheduler = self._limits, self._engine.scheduler
        running = sorted(scheduler.running, key=lambda req: req.req_pool_idx or 0)[: limits.running]
        waiting = list(islice(scheduler.waiting, limits.waiting))
        paused = sorted(scheduler.paused, key=lambda req: req.ticket)[: limits.paused]
        self._ended += [req for req in {**self.seen, **kinds} if req.finished and req not in self._ended]
        shown = dict.fromkeys((*self._ended, *running, *waiting, *paused))
        for req in shown:
            if req not in self.seen:
                self.seen[req] = Seen(next(self._next), self._completion(req))
        self.seen = {req: self.seen[req] for req in shown}
        with_row = set(running[: limits.rows])
        return {str(self.seen[req].number): self._fields(req, kinds.get(req), req in with_row) for req in shown}

    def clear(self) -> None:
        """Let go of all requests."""
        self.seen = {}
        self._ended.clear()

    def row(self, req: Req) -> np.ndarray:
        """The slots of a running request, position by position."""
        return self._engine.cache.rows[req.req_pool_idx, : req.allocated_len]

    def _fields(self, req: Req, kind: str | None, with_row: bool) -> Fields:
        status, completion = self._status(req), self.seen[req].completion
        fields: Fields = {
            "id": req.request_id,
            "name": f"request {req.request_id}" + f" ({completion + 1})" * (completion > 0),
            "look": (req.request_id + COMPLETION * completion) % len(REQUESTS),
            "status": status,
            "phase": kind.lower() if kind else "idle" if req.req_pool_idx is not None else status,
            "prompt": req.prompt_len,
            "tokens": req.num_tokens,
            "limit": req.params.max_new_tokens,
            "cached": req.cached_tokens,
            "drafted": req.drafted_tokens,
            "accepted": req.accepted_tokens,
        }
        if req.adapter is not None:
            fields["adapter"] = req.adapter.name
        if req.finish_reason is not None:
            fields["reason"] = "error" if req.error is not None else req.finish_reason.value
        if came := {storey: [*part] for storey, part in req.fetched.items() if part[0] < part[1]}:
            fields["fetched"] = came
            fields["again"] = req.num_admissions > 1  # then what its row has may have come from elsewhere
        if coming := waiting_for(self._engine.cache.storey, req):
            fields["fetching"] = coming
        if req.req_pool_idx is not None:
            held = req.allocated_len - req.tree_len
            fields |= {"row": req.req_pool_idx, "tree": req.tree_len, "kv": req.kv_len, "held": held}
        if with_row:
            fields["slots"] = runs_of(self.row(req), self._limits.runs)
        return fields

    def _status(self, req: Req) -> str:
        if req.finished:
            return "ended"
        if req in self._engine.scheduler.paused:
            return "paused"
        if req.req_pool_idx is not None:
            return "running" if req.num_output_tokens and req.kv_len >= req.num_tokens - 1 else "prefilling"
        return "retracted" if req.num_retractions else "waiting"

    def _completion(self, req: Req) -> int:
        group = self._engine.open_requests.groups.get(req.request_id)
        if group is not None:
            return group.reqs.index(req)
        return sum(other.request_id == req.request_id for other in self.seen)  # all of them have ended already


def name_of_key(key: Hashable, adapters: Iterable[Adapter]) -> str | None:
    """What keeps a node of the tree apart from others, in words: an adapter's name. Never a caller's own key, which may be
    a secret."""
    if key is None:
        return None
    if not isinstance(key, AdapterKey):
        return "a key of its own"
    name = next((f"adapter {adapter.name}" for adapter in adapters if adapter.id == key.id), "an unloaded adapter")
    return name if key.extra_key is None else f"{name}, a key of its own"


class StepNotes:
    """How many passes of which kind there were since the last `take`, and which requests were in them.

    A frame is made a few times per second, a pass takes milliseconds: without these notes, a frame would show only what its
    last pass did, and a short request would never be seen. Used in the engine's thread alone.
    """

    def __init__(self) -> None:
        self._passes: Counter[str] = Counter()
        self._kinds: dict[Req, str] = {}
        self._last: tuple[str, Sequence[Req]] = ("", [])  # the pass that was noted last: most passes are like it

    def after_pass(self, engine: Engine) -> None:
        """Note the pass that has just been made; the tape's recorder calls this."""
        batch = engine.last_batch
        if batch is None:
            return
        mode = batch.forward_mode.name
        self._passes[mode] += 1
        if (mode, batch.reqs) == self._last:
            return
        self._last = mode, batch.reqs
        for req in batch.reqs:
            before = self._kinds.get(req)
            if before is None:
                if len(self._kinds) < MOST_REQUESTS:
                    self._kinds[req] = mode
            elif STRENGTH.index(before) < STRENGTH.index(mode):
                self._kinds[req] = mode

    def take(self) -> tuple[dict[str, int], dict[Req, str]]:
        """Passes by kind, and each request's strongest kind; then forget both."""
        passes, kinds = dict(self._passes), self._kinds
        self._passes.clear()
        self._kinds, self._last = {}, ("", [])
        return passes, kinds
