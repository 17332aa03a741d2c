"""What each request of a trace did, as spans for timelines: waiting, extend, decode, verify, idle, retracted, paused."""

from dataclasses import dataclass
from typing import NamedTuple

from nanoinfer.viz.trace.data import TraceData

WAITING, EXTEND, DECODE, VERIFY = "waiting", "extend", "decode", "verify"
IDLE, RETRACTED, PAUSED = "idle", "retracted", "paused"
PHASES = (WAITING, EXTEND, DECODE, VERIFY, IDLE, RETRACTED, PAUSED)
COMPUTING = (EXTEND, DECODE, VERIFY)
SEPARATE = (EXTEND, VERIFY)  # every pass is a span of its own


@dataclass
class Span:
    """One request in one phase, over steps `first..last`, from `start` to `end` seconds.

    `tokens`: how many tokens were computed in it, for extend, decode and verify. `sampled`, `drafted`, `accepted`: how many
    tokens it got, and how many drafts were checked and accepted. In the phase `idle`, a request holds slots but is not in
    the pass.
    """

    request: int
    phase: str
    first: int
    last: int
    start: float
    end: float
    tokens: int = 0
    sampled: int = 0
    drafted: int = 0
    accepted: int = 0


class Mark(NamedTuple):
    """A request ended, during or right after `step`. `reason`: stop, length, abort, timeout or error."""

    request: int
    step: int
    time: float
    reason: str


def spans(trace: TraceData) -> tuple[list[Span], list[Mark]]:
    """The spans of all requests in the order in which they begin, and the marks of their ends.

    Each extend and each verify has a separate span. The other spans last until something changes: between steps, a request
    waits or continues as before.
    """
    done: list[Span] = []
    marks: list[Mark] = []
    latest: dict[int, Span] = {}  # of each unfinished request
    since: dict[int, float] = {}  # unfinished requests → the end of their latest span, or their arrival
    holding: set[int] = set()  # requests that hold slots
    away: dict[int, str] = {}  # requests without slots that have been retracted or paused → their phase
    retracted: set[int] = set()  # requests that have been retracted at least once
    for event in trace.events:
        for index in event.arrived:
            since[index] = max(trace.requests[index].time, 0.0)
        retracted.update(event.retracted)
        away.update(dict.fromkeys(event.retracted, RETRACTED) | dict.fromkeys(event.paused, PAUSED))
        away.update((index, RETRACTED if index in retracted else WAITING) for index in event.resumed)
        holding.difference_update(event.retracted, event.paused)
        holding.update(entry.request for entry in event.held)
        holding.update(entry.request for entry in event.admitted)
        for entry in event.admitted:
            away.pop(entry.request, None)
        if event.is_step:
            entries = {entry.request: entry for entry in event.batch}
            for index in since:
                idle = IDLE if index in holding else away.get(index, WAITING)
                phase = event.mode.lower() if index in entries else idle
                span = latest.get(index)
                computing = phase in COMPUTING
                if span is None and phase == EXTEND and since[index] < event.time:  # for less than a step
                    done.append(Span(index, WAITING, event.step, event.step - 1, since[index], event.time))
                if span is not None and computing and span.phase not in COMPUTING:
                    span.end = event.time
                if span is None or span.phase != phase or phase in SEPARATE:
                    start = event.time if computing else since[index]
                    span = latest[index] = Span(index, phase, event.step, event.step, start, start)
                    done.append(span)
                span.last, span.end = event.step, event.time + event.seconds
                if (computed := entries.get(index)) is not None:
                    span.tokens += computed.end - computed.start
                    span.sampled += len(computed.tokens)
                    span.drafted += len(computed.drafts or ())
                    span.accepted += computed.accepted
                since[index] = span.end
        for index, reason in event.ended:
            marks.append(Mark(index, event.step, event.time + event.seconds, reason))
            since.pop(index, None)
            latest.pop(index, None)
            holding.discard(index)
            away.pop(index, None)
    return done, marks
