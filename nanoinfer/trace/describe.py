"""What happened in a step, in a sentence or three."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from nanoinfer.cache.indices import consecutive_runs
from nanoinfer.trace import events as ev
from nanoinfer.trace.data import TraceData
from nanoinfer.trace.events import TraceEvent, from_runs
from nanoinfer.trace.state import NodeState, TraceState

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
    state = TraceState(trace.engine["max_total_tokens"], trace.requests)
    texts, pieces = trace.texts, trace.pieces
    before: list[str] = []
    between: TraceEvent | None = None
    for event in trace.events:
        narrator = _Narrator(trace, texts, pieces, state, event)
        state.apply(event)
        clauses = narrator.clauses(state)
        if event.mode == ev.BETWEEN:
            before, between = before + clauses, event
            continue
        head = f"Step {event.step} {event.mode}" if event.is_step else "Start"
        yield event, Description(head, clauses, before, event.error)
        before, between = [], None
    if between is not None:
        yield between, Description(f"After step {between.step}", before)


class _Narrator:
    """Notes the state before an event, and describes the event when the state after it is known."""

    def __init__(
        self,
        trace: TraceData,
        texts: Mapping[int, str],
        pieces: Mapping[int, Mapping[int, str]],
        state: TraceState,
        event: TraceEvent,
    ):
        self.trace, self.texts, self.pieces, self.event = trace, texts, pieces, event
        self.back = {
            e.request for e in event.admitted if e.request in state.requests and state.requests[e.request].admitted
        }
        self.free = state.free
        self.tree_size = sum(map(len, state.nodes.values()))
        self.known = {
            e.request: len(state.requests[e.request].tokens) for e in event.batch if e.request in state.requests
        }

    def clauses(self, state: TraceState) -> list[str]:
        """What the event did, in the order in which things happen."""
        event = self.event
        if event.mode == ev.START:
            return self._start(state)
        entering = sum(
            len(operation[3 if operation[0] == "add" else 2])
            for operation in event.tree
            if operation[0] in ("add", "grow")
        )
        evicted = self.tree_size + entering - sum(map(len, state.nodes.values()))
        given = sum(len(from_runs(e.slots if e.allocated is None else e.allocated)) for e in event.batch)
        fetched = sum(fetch.end - fetch.start for fetch in event.fetched)  # in the tree from then on
        given, entering = given + fetched, entering - fetched
        freed = event.free - self.free + given - evicted
        clauses = [*self._arrivals(), *self._ends(("timeout",)), *self._retractions(state), *self._pauses()]
        clauses += self._fetches()
        clauses += self._admissions()
        if evicted:
            clauses.append(f"the tree evicts {_count(evicted, 'token')}")
        clauses += [f"a node splits after token {length}" for length in _splits(state, event)[:MOST]]
        clauses += self._pass()
        clauses += self._ends(("stop", "length", "abort", "error"))
        if entering:
            clauses.append(f"{_count(entering, 'token')} enter{'s' * (entering == 1)} the tree")
        if freed > 0:
            engine = self.trace.engine
            exact = event.error is None and engine["page_size"] == 1 and not engine["drafter"]
            are = "is" if freed == 1 else "are"
            clauses.append(f"{_count(freed, 'duplicate slot' if exact else 'slot')} {are} freed")
        return clauses

    def _start(self, state: TraceState) -> list[str]:
        running, waiting, cached = len(state.running), len(state.waiting), len(state.tree_slots())
        slots = f"{_count(cached, 'token')} in the tree, {_count(state.free, 'free slot')}"
        return [f"{_count(running, 'request')} running, {waiting} waiting, {slots}"]

    def _arrivals(self) -> list[str]:
        return _each(
            self.event.arrived,
            lambda i: f"{self._name(i)} arrives with {_count(len(self.trace.requests[i].prompt), 'prompt token')}",
            lambda rest: f"{len(rest)} more requests arrive",
        )

    def _retractions(self, state: TraceState) -> list[str]:
        return [
            f"{self._name(i)} is retracted for lack of slots and keeps its "
            f"{_count(len(state.requests[i].output_ids), 'output token')}"
            for i in self.event.retracted
        ]

    def _pauses(self) -> list[str]:
        paused = [f"{self._name(i)} is paused and gives back its row and slots" for i in self.event.paused]
        return paused + [f"{self._name(i)} is resumed" for i in self.event.resumed]

    def _fetches(self) -> list[str]:
        def one(fetch: ev.Fetch) -> str:
            (first, number), *more = ((FROM[storey], end - start) for storey, (start, end) in fetch.parts.items())
            others = "".join(f" and {n:,} from {where}" for where, n in more)
            return f"{self._name(fetch.request)} fetches K/V of {_count(number, 'token')} from {first}{others}"

        def in_short(rest: Sequence[ev.Fetch]) -> str:
            return f"{len(rest)} more fetch K/V of {sum(fetch.end - fetch.start for fetch in rest):,} tokens"

        return _each(self.event.fetched, one, in_short)

    def _admissions(self) -> list[str]:
        def one(entry: ev.Admission) -> str:
            total = self._length(entry.request)
            found = f"{entry.prefix_len} of {total}" if entry.prefix_len else f"none of {total}"
            kind = "tokens" if entry.request in self.back else "prompt tokens"
            again = " again" if entry.request in self.back else ""
            return f"{self._name(entry.request)} is admitted{again} with {found} {kind} cached"

        return _each(self.event.admitted, one, lambda rest: f"{len(rest)} more are admitted")

    def _pass(self) -> list[str]:
        event = self.event
        if event.mode == ev.VERIFY:
            return _each(event.batch, self._verified, self._verified_in_short)
        if event.mode == ev.DECODE:
            first = event.batch[0]
            if len(event.batch) == 1:
                return [
                    f"{self._name(first.request)} computes position {first.start} in slot {first.slots[0]}"
                    f"{self._sampled(first)}"
                ]
            slots = np.concatenate([from_runs(entry.slots) for entry in event.batch])
            where = ", ".join(span(start, end - 1) for start, end in consecutive_runs(np.sort(slots))[:4])
            return [f"{len(event.batch)} requests compute one token each, in slots {where}"]
        return _each(
            event.batch,
            self._extended,
            lambda rest: f"{len(rest)} more requests extend {sum(e.end - e.start for e in rest)} tokens",
        )

    def _verified(self, entry: ev.BatchEntry) -> str:
        drafts, slots = entry.drafts or (), from_runs(entry.slots)
        first, last = entry.start, entry.end - 1
        place = f"slot{'s' * (len(slots) > 1)} " + ", ".join(
            span(start, end - 1) for start, end in consecutive_runs(np.array(slots))[:4]
        )
        what = f"{self._name(entry.request)} computes position {first}"
        if drafts:
            what += f" and {_count(len(drafts), 'draft')} at {span(first + 1, last)}"
        what += f" in {place}"
        if not entry.tokens:
            return what
        how_many = {0: "none", len(drafts): "all"}.get(entry.accepted, str(entry.accepted))
        taken = (
            f", accepts {how_many} of them"
            if len(drafts) > 1
            else f", accepts {'it' if entry.accepted else 'no draft'}"
        )
        return what + taken * bool(drafts) + self._sampled(entry)

    def _verified_in_short(self, rest: Sequence[ev.BatchEntry]) -> str:
        drafted, accepted = sum(len(e.drafts or ()) for e in rest), sum(e.accepted for e in rest)
        sampled = sum(len(e.tokens) for e in rest)
        return (
            f"{len(rest)} more requests check {_count(drafted, 'draft')}, accept {accepted} and sample "
            f"{_count(sampled, 'token')}"
        )

    def _extended(self, entry: ev.BatchEntry) -> str:
        what = f"{self._name(entry.request)} extends {_count(entry.end - entry.start, 'token')}"
        total = self._length(entry.request)
        if entry.end < total:
            return f"{what} and leaves {total - entry.end} for later"
        return what + self._sampled(entry)

    def _sampled(self, entry: ev.BatchEntry) -> str:
        if not entry.tokens:
            return ""
        pieces = self.pieces.get(entry.request, {})
        known = [
            pieces.get(position, self.texts.get(token))
            for position, token in enumerate(entry.tokens, self._length(entry.request))
        ]
        text = "".join(piece for piece in known if piece is not None)
        if len(entry.tokens) == 1:
            return f" and samples {_quoted(text) if text else f'token {entry.tokens[0]}'}"
        return f" and samples {_count(len(entry.tokens), 'token')}" + f": {_quoted(text)}" * bool(text)

    def _ends(self, reasons: Sequence[str]) -> list[str]:
        ended = [entry for entry in self.event.ended if entry.reason in reasons]
        return _each(
            ended,
            lambda entry: f"{self._name(entry.request)} ends ({entry.reason})",
            lambda rest: f"{len(rest)} more end",
        )

    def _length(self, index: int) -> int:
        """Tokens of a request before the event."""
        return self.known.get(index, len(self.trace.requests[index].prompt))

    def _name(self, index: int) -> str:
        return self.trace.requests[index].name


def _splits(state: TraceState, event: TraceEvent) -> list[int]:
    """How many tokens from the root each split is. Later splits do not change where a node ends."""
    splits = []
    for what, _, *rest in event.tree:
        node: NodeState | None = state.nodes.get(rest[0]) if what == "split" else None
        length = 0
        while node is not None:
            length, node = length + len(node), node.parent
        splits += [length] if length else []
    return splits


def _each(entries: Sequence[T], one: Callable[[T], str], rest: Callable[[Sequence[T]], str]) -> list[str]:
    """A clause for each of the first few entries, and one for the rest."""
    clauses = [one(entry) for entry in entries[: MOST if len(entries) > MOST + 1 else None]]
    return clauses if len(clauses) == len(entries) else [*clauses, rest(entries[len(clauses) :])]


def span(first: int, last: int) -> str:
    """`3-7`, or `3`."""
    return str(first) if first == last else f"{first}-{last}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _quoted(text: str) -> str:
    return "“" + text.replace("\n", "⏎").strip(" ") + "”" if text.strip() else repr(text)
