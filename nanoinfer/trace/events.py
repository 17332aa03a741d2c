"""What a trace is made of: the requests, and one TraceEvent per step with nothing but what changed.

Everything here is numbers and text. Lists of slots are kept as *runs*, `[start, length, start, length, ...]` in the order
of the tokens, because the pool hands out neighbours whenever it can.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from nanoinfer.cache.indices import consecutive_runs

Runs = Sequence[int]

START, EXTEND, DECODE, FAILED, BETWEEN = "START", "EXTEND", "DECODE", "FAILED", "BETWEEN"
STEPS = (EXTEND, DECODE, FAILED)  # the modes of events that are steps
MODES = (START, *STEPS, BETWEEN)


def to_runs(slots: np.ndarray) -> list[int]:
    """Slots, in order, as runs."""
    if len(slots) == 1:  # of every request in a DECODE
        return [int(slots[0]), 1]
    return [number for start, end in consecutive_runs(slots) for number in (start, end - start)]


def from_runs(runs: Runs) -> list[int]:
    """Runs as slots, in order."""
    slots: list[int] = []
    for start, length in zip(runs[::2], runs[1::2], strict=True):
        slots += range(start, start + length)
    return slots


@dataclass
class TraceRequest:
    """One request (with `n` > 1: one completion of it) as it arrived.

    `name`: what pictures call it. `time`: seconds since the trace began (negative: before). `extra_key`: its `repr`, or
    None. `outputs`, `cached_tokens`: what it had already when the trace began; `admitted`: whether it had been admitted.
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


class Admission(NamedTuple):
    """`request` got a row; `prefix_len` of its tokens were found in the tree, on the path to `node`."""

    request: int
    row: int | None  # None: making the pass failed before it had one
    node: int
    prefix_len: int


class BatchEntry(NamedTuple):
    """One request in a pass: K/V of positions `start..end-1` goes to `slots`; `token` is what was sampled.

    `token`: None when there was none, since the prompt goes on in a later pass or the step failed. `allocated`: the slots
    it was given for that, where pages make them other than `slots`.
    """

    request: int
    start: int
    end: int
    slots: Runs
    token: int | None
    allocated: Runs | None = None


class Path(NamedTuple):
    """From now on the first `tree_len` slots of `request` are the tree's, on the path to `node`."""

    request: int
    node: int
    tree_len: int


class Held(NamedTuple):
    """What a running request had when the trace began. `slots`: those it owns, from position `tree_len` on."""

    request: int
    row: int
    node: int
    tree_len: int
    kv_len: int
    slots: Runs


class NodeUse(NamedTuple):
    """Lock and use of a node of the tree after the event, where one of them has changed."""

    node: int
    lock_ref: int
    last_access_time: int
    hit_count: int


class Ended(NamedTuple):
    """`reason`: stop, length, abort or timeout; `error` for those whose step raised."""

    request: int
    reason: str


@dataclass
class TraceEvent:
    """All that changed in one step, or between two.

    - `step`: number of the step, from 1; of an event between steps: of the step before it. `mode`: EXTEND, DECODE, FAILED
      (no pass could be made), BETWEEN; START for the first event, which says what was there when the trace began.
    - `time`: when it began, `seconds`: how long it took, by the engine's clock, since the trace began.
    - Requests are meant by their index in `trace.requests`, nodes of the tree by a number (0: the root).
    - `tree`: what was done to the tree, in order: `["add", node, parent, tokens, runs, extra_key, time]`,
      `["grow", node, tokens, runs]`, `["split", node, upper, length]`, `["remove", node]`.
    - `retracted`, `paused`, `resumed`: requests that give back their row and slots, and those that wait again.
    - `free`: free slots afterwards. `error`: what the step raised.
    """

    step: int
    mode: str
    time: float
    seconds: float = 0.0
    free: int = 0
    arrived: list[int] = field(default_factory=list)
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
    def is_step(self) -> bool:
        return self.mode in STEPS

    @property
    def empty(self) -> bool:
        """Nothing has happened."""
        changes = (
            self.arrived,
            self.ended,
            self.tree,
            self.nodes,
            self.retracted,
            self.paused,
            self.resumed,
            self.held,
        )
        return not any(changes)

    def to_json(self) -> dict[str, Any]:
        """For `json.dump`: without what is empty."""
        fields = {name: value for name, value in vars(self).items() if value not in ([], None)}
        return fields | {"time": round(self.time, 6), "seconds": round(self.seconds, 6)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "TraceEvent":
        """The inverse of `to_json`. TypeError or ValueError when it does not look like an event."""
        event = cls(**fields)
        event.time, event.seconds, event.step = float(event.time), float(event.seconds), int(event.step)
        if event.mode not in MODES:
            raise ValueError(f"mode={event.mode!r}: must be one of {', '.join(MODES)}")
        for name, kind in ENTRIES.items():
            setattr(event, name, [kind(*entry) for entry in getattr(event, name)])
        return event


ENTRIES: dict[str, Any] = {
    "admitted": Admission,
    "batch": BatchEntry,
    "nodes": NodeUse,
    "paths": Path,
    "held": Held,
    "ended": Ended,
}
