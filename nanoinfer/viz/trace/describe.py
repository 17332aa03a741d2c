"""What happened in a step, in a sentence or three."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from nanoinfer.cache.indices import consecutive_runs
from nanoinfer.viz.trace import events as ev
from nanoinfer.viz.trace.data import TraceData
from nanoinfer.viz.trace.events import TraceEvent, from_runs
from nanoinfer.viz.trace.state import TraceState

T = TypeVar("T")
FROM = {"host": "host memory", "disk": "files"}
MOST = 3  # requests that a sentence mentions one by one


@dataclass
class Description:
    """A step in words: what happened `before` it, and `clauses` that say what it did. `error`: what it raised."""

    head: str
    clauses: list[str]
    before: list[str] = field(default_factory=list)
    error: str | None = None

    def __str__(self) -> str:
        first = f"Before this step, {'; '.join(self.before)}. " if self.before else ""
        raised = f" The step raised {self.error}." if self.error else ""
        return f"{first}{self.head}: {'; '.join(self.clauses) or 'nothing happens'}.{raised}"


def descriptions(trace: TraceData) -> Iterator[tuple[TraceEvent, Description]]:
    """Describe the beginning, every step, and what came after the last one. What happens between two steps is described
    with the later one."""
    state, narrator = TraceState(trace.engine["max_total_tokens"], trace.requests), Narrator(trace)
    before: list[str] = []
    between: TraceEvent | None = None
    for event in trace.events:
        narrator.note(state)
        state.apply(event)
        clauses = narrator.clauses(event, state)
        if event.mode == ev.BETWEEN:
            before, between = before + clauses, event
            continue
        head = f"Step {event.step} {event.mode}" if event.is_step else "Start"
        yield event, Description(head, clauses, before, event.error)
        before, between = [], None
    if between is not None:
        yield between, Description(f"After step {between.step}", before)


class Narrator:
    """Notes the state before an event, and describes the event when the state after it is known."""

    def __init__(self, trace: TraceData):
        self._requests, self._texts, self._pieces = trace.requests, trace.texts, trace.pieces

    def note(self, state: TraceState) -> None:
        self._back = {index for index, req in state.requests.items() if req.admitted}
        self._lengths = {index: len(req.tokens) for index, req in state.requests.items()}
        self._free, self._tree_size = state.free, _tree_size(state)

    def clauses(self, event: TraceEvent, state: TraceState) -> list[str]:
        """What the event did, in the order in which things happen."""
        if event.mode == ev.START:
            slots = f"{_count(_tree_size(state), 'token')} in the tree, {_count(state.free, 'free slot')}"
            return [f"{_count(len(state.running), 'request')} running, {len(state.waiting)} waiting, {slots}"]
        entering = sum(len(op[3] if op[0] == "add" else op[2]) for op in event.tree if op[0] in ("add", "grow"))
        evicted = self._tree_size + entering - _tree_size(state)
        entering -= sum(fetch.end - fetch.start for fetch in event.fetched)  # said already
        given = sum(len(from_runs(e.slots if e.allocated is None else e.allocated)) for e in event.batch)
        given += sum(fetch.end - fetch.start for fetch in event.fetched)
        freed = event.free - self._free + given - evicted
        name = self._name
        clauses = _each(event.arrived, self._arrival)
        clauses += self._ends(event, ("timeout",))
        clauses += [
            f"{name(i)} is retracted for lack of slots and keeps its "
            f"{_count(len(state.requests[i].output_ids), 'output token')}"
            for i in event.retracted
        ]
        clauses += [f"{name(i)} is paused and gives back its row and slots" for i in event.paused]
        clauses += [f"{name(i)} is resumed" for i in event.resumed]
        clauses += _each(event.fetched, self._fetch)
        clauses += _each(event.admitted, self._admission)
        if evicted:
            clauses.append(f"the tree evicts {_count(evicted, 'token')}")
        clauses += [f"a node splits after its token {op[3]}" for op in event.tree if op[0] == "split"][:MOST]
        if event.mode == ev.DECODE and len(event.batch) > 1:
            slots = _slots(slot for entry in event.batch for slot in from_runs(entry.slots))
            clauses.append(f"{len(event.batch)} requests compute one token each, in {slots}")
        else:
            clauses += _each(event.batch, self._extended if event.mode == ev.EXTEND else self._computed)
        clauses += self._ends(event, ("stop", "length", "abort", "error"))
        if entering:
            clauses.append(f"{_count(entering, 'token')} enter{'s' * (entering == 1)} the tree")
        if freed > 0:
            clauses.append(f"{_count(freed, 'slot')} {'is' if freed == 1 else 'are'} freed")
        return clauses

    def _arrival(self, index: int) -> str:
        return f"{self._name(index)} arrives with {_count(len(self._requests[index].prompt), 'prompt token')}"

    def _fetch(self, fetch: ev.Fetch) -> str:
        (first, number), *more = ((FROM[tier], end - start) for tier, (start, end) in fetch.parts.items())
        others = "".join(f" and {n:,} from {where}" for where, n in more)
        return f"{self._name(fetch.request)} fetches K/V of {_count(number, 'token')} from {first}{others}"

    def _admission(self, entry: ev.Admission) -> str:
        total, back = self._length(entry.request), entry.request in self._back
        found = f"{entry.prefix_len or 'none'} of {total} {'' if back else 'prompt '}tokens cached"
        return f"{self._name(entry.request)} is admitted{' again' * back} with {found}"

    def _extended(self, entry: ev.BatchEntry) -> str:
        what = f"{self._name(entry.request)} extends {_count(entry.end - entry.start, 'token')}"
        left = self._length(entry.request) - entry.end
        return f"{what} and leaves {left} for later" if left > 0 else what + self._sampled(entry)

    def _computed(self, entry: ev.BatchEntry) -> str:
        drafts = entry.drafts or ()
        what = f"{self._name(entry.request)} computes position {entry.start}"
        if drafts:
            what += f" and {_count(len(drafts), 'draft')} at {span(entry.start + 1, entry.end - 1)}"
        what += f" in {_slots(from_runs(entry.slots))}"
        if drafts and entry.tokens:
            what += f", accepts {entry.accepted} of them"
        return what + self._sampled(entry)

    def _sampled(self, entry: ev.BatchEntry) -> str:
        if not entry.tokens:
            return ""
        pieces = self._pieces.get(entry.request, {})
        positions = enumerate(entry.tokens, self._length(entry.request))
        text = "".join(pieces.get(position, self._texts.get(token, "")) for position, token in positions)
        if len(entry.tokens) == 1:
            return f" and samples {_quoted(text) if text else f'token {entry.tokens[0]}'}"
        return f" and samples {_count(len(entry.tokens), 'token')}" + f": {_quoted(text)}" * bool(text)

    def _ends(self, event: TraceEvent, reasons: Sequence[str]) -> list[str]:
        ended = [entry for entry in event.ended if entry.reason in reasons]
        return _each(ended, lambda entry: f"{self._name(entry.request)} ends ({entry.reason})")

    def _length(self, index: int) -> int:
        """Tokens of a request before the event."""
        return self._lengths.get(index, len(self._requests[index].prompt))

    def _name(self, index: int) -> str:
        return self._requests[index].name


def _tree_size(state: TraceState) -> int:
    return sum(map(len, state.nodes.values()))


def _each(entries: Sequence[T], one: Callable[[T], str]) -> list[str]:
    """A clause for each of the first few entries, and one for the rest."""
    clauses = [one(entry) for entry in entries[: MOST if len(entries) > MOST + 1 else None]]
    rest = len(entries) - len(clauses)
    return [*clauses, f"so it is with {rest} more requests"] if rest else clauses


def _slots(slots: Iterable[int]) -> str:
    """`slot 3`, or `slots 3-7, 9`."""
    numbers = np.sort(np.fromiter(slots, dtype=np.int64))
    runs = ", ".join(span(start, end - 1) for start, end in consecutive_runs(numbers)[:4])
    return f"slot{'s' * (len(numbers) > 1)} {runs}"


def span(first: int, last: int) -> str:
    """`3-7`, or `3`."""
    return str(first) if first == last else f"{first}-{last}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _quoted(text: str) -> str:
    return "“" + text.replace("\n", "⏎").strip(" ") + "”" if text.strip() else repr(text)
