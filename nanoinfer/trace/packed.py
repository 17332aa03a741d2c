"""PackedDecode: the event of a DECODE pass as a few strings of bytes, as long as nobody reads it.

A TraceEvent has an object for each request in its pass. Making them takes longer than everything else that a recorder does
in the engine's thread, and most events of an engine that runs for long are never looked at.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from nanoinfer.trace.events import DECODE, BatchEntry, Runs, TraceEvent


class Event(Protocol):
    """What a trace keeps for an event: a TraceEvent, or one that is packed."""

    @property
    def is_step(self) -> bool: ...


class PackedDecode(NamedTuple):
    """The event of a DECODE in which each of `B` requests got one token.

    - `step`, `time`, `seconds`, `free`: as in TraceEvent. `requests`: indices [B]; passes of the same requests share it.
    - `ends` int32, `slots` int32, `tokens` int64: the bytes of [B] numbers, of which `BatchEntry` says what they mean; and
      `allocated`, None if all entries have None.
    - `others`: the event with everything else that happened in the step; None if nothing did.
    """

    step: int
    time: float
    seconds: float
    free: int
    requests: tuple[int, ...]
    ends: bytes
    slots: bytes
    tokens: bytes
    allocated: Sequence[Runs] | None
    others: TraceEvent | None

    @property
    def is_step(self) -> bool:
        return True

    def unpacked(self) -> TraceEvent:
        """The event. It is `others`, if there is one, with the entries of the batch."""
        event = self.others or TraceEvent(self.step, DECODE, self.time, self.seconds, self.free)
        allocated: Sequence[Runs | None] = self.allocated or [None] * len(self.requests)
        ends, slots = (np.frombuffer(numbers, np.int32).tolist() for numbers in (self.ends, self.slots))
        tokens = np.frombuffer(self.tokens, np.int64).tolist()
        columns = (self.requests, ends, slots, tokens, allocated)
        event.batch = [
            BatchEntry(request, end - 1, end, [slot, 1], [token], runs)
            for request, end, slot, token, runs in zip(*columns, strict=True)
        ]
        return event


def unpack(events: list[Event], first: int) -> int:
    """Replace those of `events` that are packed, from number `first` on, by TraceEvents. Returns their number."""
    for i in range(first, len(events)):
        event = events[i]
        if isinstance(event, PackedDecode):
            events[i] = event.unpacked()
    return len(events)
