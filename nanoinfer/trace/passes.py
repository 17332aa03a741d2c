"""What a recorder notes about the pass that is being made, from its beginning to its end."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nanoinfer.requests.req import Req
from nanoinfer.trace.events import Runs, TraceEvent
from nanoinfer.trace.packed import PackedDecode


@dataclass
class Seen:
    """What the trace knows about an unfinished request."""

    index: int
    node: int = 0
    tree_len: int = 0
    allocated_len: int = 0


class Member(NamedTuple):
    """A request in the current pass, and how many tokens it had before. `entry`: the beginning of its BatchEntry;
    `allocated`, `drafts`: the end of it."""

    req: Req
    num_tokens: int
    entry: tuple[int, int, int, list[int]]
    allocated: Runs | None
    drafts: list[int] | None


class Decoding(NamedTuple):
    """The requests of passes with the same requests."""

    reqs: Sequence[Req]
    seen: Sequence[Seen]
    requests: tuple[int, ...]  # their indices


class DecodePass(NamedTuple):
    """The current pass, if it is a DECODE, as most are. `ends`: how many tokens each request had before. `slots`: the bytes
    of int32 [B]. `allocated`: as in PackedDecode."""

    decoding: Decoding
    ends: list[int]
    slots: bytes
    allocated: list[Runs] | None

    def tokens(self) -> list[int] | None:
        """The token that each request has got; None if one of them has got none."""
        reqs = self.decoding.reqs
        tokens = [
            req.token_ids.item(end) for req, end in zip(reqs, self.ends, strict=True) if req.num_tokens == end + 1
        ]
        return tokens if len(tokens) == len(reqs) else None

    def packed(self, event: TraceEvent, tokens: list[int], others: TraceEvent | None) -> PackedDecode:
        """As an event with these tokens, and with the step and times of `event`."""
        ends = array("i", self.ends).tobytes()
        numbers = (self.decoding.requests, ends, self.slots, array("q", tokens).tobytes())
        return PackedDecode(event.step, event.time, event.seconds, event.free, *numbers, self.allocated, others)

    def members(self) -> list[Member]:
        """The requests one by one."""
        reqs, _, requests = self.decoding
        slots = np.frombuffer(self.slots, np.int32).tolist()
        runs: Sequence[Runs | None] = self.allocated or [None] * len(reqs)
        columns = (reqs, requests, self.ends, slots, runs)
        return [
            Member(req, end, (index, end - 1, end, [slot, 1]), allocated, None)
            for req, index, end, slot, allocated in zip(*columns, strict=True)
        ]
