"""What each request of a trace did, as spans for timelines: waiting, extend, decode, verify, idle, retracted, paused."""

from dataclasses import dataclass
from typing import NamedTuple

from nanoinfer.viz.trace.data import TraceData
from nanoinfer.viz.trace.state import ENDED, PAUSED, RETRACTED, WAITING

EXTEND, DECODE, VERIFY, IDLE = "extend", "decode", "verify", "idle"
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
    for event, state in trace.states():
        since |= {index: max(trace.requests[index].time, 0.0) for index in event.arrived}
        entries = {entry.request: entry for entry in event.batch}
        for index in since if event.is_step else ():
            req, span = state.requests[index], latest.get(index)
            phase = event.mode.lower() if index in entries else IDLE if req.is_running else req.status
            if phase == ENDED:  # before the pass: as it was until then
                phase = WAITING if span is None else IDLE if span.phase in COMPUTING else span.phase
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
            del since[index]
    return done, marks
