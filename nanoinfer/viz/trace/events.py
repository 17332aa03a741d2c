"""What a trace is made of: the requests, and one TraceEvent per step with only what changed.

Everything here is numbers and text. Lists of slots are stored as *runs*, `[start, length, start, length, ...]` in the order
of the tokens, because the pool allocates neighbours whenever it can.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from nanoinfer.cache.indices import consecutive_runs

Runs = Sequence[int]

START, EXTEND, DECODE, VERIFY = "START", "EXTEND", "DECODE", "VERIFY"
FAILED, BETWEEN = "FAILED", "BETWEEN"
STEPS = (EXTEND, DECODE, VERIFY, FAILED)  # the modes of events that are steps
MODES = (START, *STEPS, BETWEEN)


def to_runs(slots: np.ndarray) -> list[int]:
    """Slots, in order, as runs."""
    return [number for start, end in consecutive_runs(slots) for number in (start, end - start)]


def from_runs(runs: Runs) -> list[int]:
    """Runs as slots, in order."""
    slots: list[int] = []
    for start, length in zip(runs[::2], runs[1::2], strict=True):
        slots += range(start, start + length)
    return slots


@dataclass
class TraceRequest:
    """One request (with `n` > 1, one completion of it) as it arrived.

    `name`: its name in pictures. `time`: seconds since the trace began (negative if before). `extra_key`: its `repr`, or
    None. `outputs`, `cached_tokens`, `admitted`, `drafted_tokens`, `accepted_tokens`, `fetched`: its output tokens, its
    number of cached tokens, whether it had been admitted, its numbers of drafts, and the positions that came from each
    tier (`[first, the one behind the last]`), when the trace began.
    """

    name: str
    request_id: int
    completion: int
    prompt: list[int]
    max_new_tokens: int
    time: float
    extra_key: str | None = None
    outputs: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    admitted: bool = False
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    fetched: dict[str, tuple[int, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The request for `json.dump`, without empty fields."""
        fields = {name: value for name, value in vars(self).items() if value not in ([], {}, None)}
        return fields | {"time": round(self.time, 6)}


class Admission(NamedTuple):
    """`request` got a row, and `prefix_len` of its tokens were found in the tree, on the path to `node`."""

    request: int
    row: int | None  # None: the pass failed before the request had a row
    node: int
    prefix_len: int


class Fetch(NamedTuple):
    """K/V of `request` came back into the pool's tree, just before an admission or when one was tried: that of positions
    `start..middle-1` from host memory; that of `middle..end-1` had been read from files for this request."""

    request: int
    start: int
    middle: int
    end: int

    @property
    def parts(self) -> dict[str, tuple[int, int]]:
        """Tier → the first position that came from it, and the one behind the last; without tiers that gave none."""
        both = {"host": (self.start, self.middle), "disk": (self.middle, self.end)}
        return {tier: part for tier, part in both.items() if part[0] < part[1]}


class BatchEntry(NamedTuple):
    """One request in a pass: the K/V of positions `start..end-1` is written to `slots`, and `tokens` are sampled.

    `tokens`: none if a later pass continues the prompt, or if the step failed; after a VERIFY, those that the request got,
    at most one more than it had drafts. `allocated`: the slots that were allocated for this pass, if they may differ from
    `slots`: in whole pages, for later passes, or for drafts. `drafts`: in VERIFY, the tokens that were tried at the
    positions `start+1..end-1`; else None.
    """

    request: int
    start: int
    end: int
    slots: Runs
    tokens: Sequence[int]
    allocated: Runs | None = None
    drafts: Sequence[int] | None = None

    @property
    def accepted(self) -> int:
        """How many drafts became tokens of the request."""
        same = [token == draft for token, draft in zip(self.tokens, self.drafts or (), strict=False)]
        return same.index(False) if False in same else len(same)

    @property
    def kv_len(self) -> int:
        """How many of the request's tokens have K/V afterwards. That of wrong drafts does not count."""
        return self.end if self.drafts is None else self.start + len(self.tokens)


class Path(NamedTuple):
    """From now on, the tree owns the first `tree_len` slots of `request`, on the path to `node`."""

    request: int
    node: int
    tree_len: int


class Held(NamedTuple):
    """What a running request had when the trace began. `slots`: the slots that it owns, from position `tree_len` on."""

    request: int
    row: int
    node: int
    tree_len: int
    kv_len: int
    slots: Runs


class NodeUse(NamedTuple):
    """Lock and use of a node of the tree after the event, if one of them has changed."""

    node: int
    lock_ref: int
    last_access_time: int
    hit_count: int


class Ended(NamedTuple):
    """`reason`: stop, length, abort or timeout, or `error` if the request's step raised."""

    request: int
    reason: str


@dataclass
class TraceEvent:
    """Everything that changed in one step, or between two steps.

    - `step`: number of the step, from 1; for an event between steps, the number of the step before. `mode`: EXTEND, DECODE,
      VERIFY, FAILED (no pass could be made) or BETWEEN. START is the first event, which says what was there when the trace
      began.
    - `time`: when it began, in seconds since the trace began. `seconds`: how long it took. Both by the engine's clock.
    - Requests are given by their index in `trace.requests`, nodes of the tree by a number (0: the root).
    - `tree`: what was done to the tree, in order: `["add", node, parent, tokens, runs, extra_key, time]`,
      `["grow", node, tokens, runs]`, `["split", node, upper, length]`, `["remove", node]`.
    - `retracted`, `paused`: requests that gave back their row and slots. `resumed`: paused requests that wait again.
    - `free`: free slots afterwards. `error`: what the step raised.
    """

    step: int
    mode: str
    time: float
    seconds: float = 0.0
    free: int = 0
    arrived: list[int] = field(default_factory=list)
    fetched: list[Fetch] = field(default_factory=list)
    admitted: list[Admission] = field(default_factory=list)
    retracted: list[int] = field(default_factory=list)
    paused: list[int] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    batch: list[BatchEntry] = field(default_factory=list)
    tree: list[list[Any]] = field(default_factory=list)
    nodes: list[NodeUse] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    error: str | None = None

    @property
    def drafted(self) -> int:
        """How many drafts the pass has checked."""
        return sum(len(entry.drafts or ()) for entry in self.batch)

    @property
    def accepted(self) -> int:
        """How many of them became tokens."""
        return sum(entry.accepted for entry in self.batch)

    @property
    def is_step(self) -> bool:
        return self.mode in STEPS

    def to_json(self) -> dict[str, Any]:
        """The event for `json.dump`, without empty fields."""
        fields = {name: value for name, value in vars(self).items() if value not in ([], None)}
        return fields | {"time": round(self.time, 6), "seconds": round(self.seconds, 6)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "TraceEvent":
        """The inverse of `to_json`. TypeError or ValueError if `fields` do not look like an event."""
        event = cls(**fields)
        event.time, event.seconds, event.step = float(event.time), float(event.seconds), int(event.step)
        if event.mode not in MODES:
            raise ValueError(f"mode={event.mode!r}: must be one of {', '.join(MODES)}")
        for name, kind in ENTRIES.items():
            setattr(event, name, [kind(*entry) for entry in getattr(event, name)])
        return event


ENTRIES: dict[str, Any] = {
    "fetched": Fetch,
    "admitted": Admission,
    "batch": BatchEntry,
    "nodes": NodeUse,
    "paths": Path,
    "held": Held,
    "ended": Ended,
}
