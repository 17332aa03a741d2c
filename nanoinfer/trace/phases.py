"""What each request of a trace did, as spans for timelines: waiting, extend, decode, idle, retracted, paused."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nanoinfer.trace import events as ev
from nanoinfer.trace.data import TraceData
from nanoinfer.trace.events import TraceEvent

WAITING, EXTEND, DECODE, IDLE, RETRACTED, PAUSED = "waiting", "extend", "decode", "idle", "retracted", "paused"
PHASES = (WAITING, EXTEND, DECODE, IDLE, RETRACTED, PAUSED)


@dataclass
class Span:
    """One request in one phase, over steps `first..last`, from `start` to `end` seconds.

    `tokens`: how many tokens were computed in it, for extend and decode. In the phase `idle`, a request holds slots but is
    not in the pass.
    """

    request: int
    phase: str
    first: int
    last: int
    start: float
    end: float
    tokens: int = 0


class Mark(NamedTuple):
    """A request ended, during or right after `step`. `reason`: stop, length, abort, timeout or error."""

    request: int
    step: int
    time: float
    reason: str


def spans(trace: TraceData) -> tuple[list[Span], list[Mark]]:
    """The spans of all requests in the order in which they begin, and the marks of their ends. Each extend has a separate
    span. The other spans last until something changes: between steps, a request waits or continues as before."""
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
            for index, phase, tokens in _in_step(event, since, holding, away):
                span = latest.get(index)
                computing = phase in (EXTEND, DECODE)
                if span is None and phase == EXTEND and since[index] < event.time:  # for less than a step
                    done.append(Span(index, WAITING, event.step, event.step - 1, since[index], event.time))
                if span is not None and computing and span.phase not in (EXTEND, DECODE):
                    span.end = event.time
                if span is None or span.phase != phase or phase == EXTEND:
                    start = event.time if computing else since[index]
                    span = latest[index] = Span(index, phase, event.step, event.step, start, start)
                    done.append(span)
                span.last, span.end = event.step, event.time + event.seconds
                span.tokens += tokens
                since[index] = span.end
        for index, reason in event.ended:
            marks.append(Mark(index, event.step, event.time + event.seconds, reason))
            since.pop(index, None)
            latest.pop(index, None)
            holding.discard(index)
            away.pop(index, None)
    return done, marks


def _in_step(
    event: TraceEvent, alive: Iterable[int], holding: set[int], away: Mapping[int, str]
) -> Iterator[tuple[int, str, int]]:
    """For every unfinished request, its phase in this step and the number of tokens computed for it."""
    batch = {entry.request: entry.end - entry.start for entry in event.batch}
    for index in alive:
        if index in batch:
            yield index, EXTEND if event.mode == ev.EXTEND else DECODE, batch[index]
        elif index in holding:
            yield index, IDLE, 0
        else:
            yield index, away.get(index, WAITING), 0
