"""The life of a token's K/V, followed through a trace: written, read, handed to the tree, found, evicted."""

from copy import deepcopy
from dataclasses import dataclass, field, replace

from nanoinfer.viz.trace.events import BatchEntry, TraceEvent, from_runs
from nanoinfer.viz.trace.state import NodeState, TraceState
from nanoinfer.viz.trace.trace import Trace
from nanoinfer.viz.words import count


@dataclass
class Life:
    """A token after a step, as the trace has it.

    - `known`: the token itself is there (as part of a prompt, or chosen by the model). `slot`: where its K/V is, None
      before it is written and after it is freed. `written`, `freed`: in which step, 0 for not yet.
    - `reads`: step → how many tokens read it in that step's pass, itself included.
    - `owner`: "request", "tree", or "" while no slot holds it. `locks`: of its node. `node`: its number.
    - `sharers`: other running requests that have its slot in their row. `news`: what this step did with it.
    """

    known: bool = False
    slot: int | None = None
    written: int = 0
    freed: int = 0
    reads: dict[int, int] = field(default_factory=dict)
    owner: str = ""
    node: int = 0
    locks: int = 0
    sharers: tuple[int, ...] = ()
    news: tuple[str, ...] = ()


def lives_of(trace: Trace, request: int, position: int) -> list[Life]:
    """The token at `position` of `request` at every moment of `seen_moments`."""
    follower, lives = _Follower(trace, request, position), []
    for event, state in trace.states():
        life = follower.after(event, state)
        if is_seen(event):
            lives.append(life)
    return lives


def is_seen(event: TraceEvent) -> bool:
    """Whether a life is shown after `event`: after the first arrival and after every step."""
    return event.is_step or 0 in event.arrived


def seen_moments(trace: Trace) -> list[tuple[TraceEvent, TraceState]]:
    """The events after which a life is shown, each with the state after it."""
    return [(event, deepcopy(state)) for event, state in trace.states() if is_seen(event)]


def node_at(state: TraceState, tokens: list[int], position: int) -> tuple[NodeState, int] | None:
    """The node of the tree that holds `tokens` up to `position`, and the slot with that token's K/V."""
    node, start = state.root, 0
    while start <= position:
        child = next((each for each in node.children if each.key[0] == tokens[start]), None)
        if child is None:
            return None
        known = child.key[: position + 1 - start]
        if known != tokens[start : start + len(known)]:
            return None
        node, start = child, start + len(child)
    return node, node.value[position - start]


class _Follower:
    """Goes through the events with an eye on one token."""

    def __init__(self, trace: Trace, request: int, position: int):
        self.trace, self.request, self.position = trace, request, position
        self.tokens = trace.state().requests[request].tokens
        self.life = Life()

    def after(self, event: TraceEvent, state: TraceState) -> Life:
        """The life after `event`, which has led to `state`."""
        self.life = replace(self.life, reads=dict(self.life.reads), news=())
        self._admissions(event)
        for entry in event.batch:
            if entry.request == self.request or entry.request in self.life.sharers:
                self._pass(event, entry)
        if self.request in state.requests:
            was, self.life.known = self.life.known, len(state.requests[self.request].tokens) > self.position
            if self.life.known and not was and event.is_step:
                self._say(f"the model chooses it as the next token of request {self.request}")
        self._owner(event, state)
        self.life.sharers = tuple(
            index
            for index, req in state.requests.items()
            if index != self.request and req.is_running and self._is_in(state.row_slots(req))
        )
        return self.life

    def _is_in(self, row: list[int]) -> bool:
        return self.life.slot is not None and row[self.position : self.position + 1] == [self.life.slot]

    def _say(self, news: str) -> None:
        self.life.news += (news,)

    def _admissions(self, event: TraceEvent) -> None:
        """Requests that start with the same tokens and found this one in the tree."""
        for entry in event.admitted:
            same = self.trace.requests[entry.request].prompt[: self.position + 1] == self.tokens[: self.position + 1]
            if self.life.slot is not None and same and entry.prefix_len > self.position:
                self.life.sharers += (entry.request,)
                self._say(f"request {entry.request} starts with the same tokens and finds it in the tree")

    def _pass(self, event: TraceEvent, entry: BatchEntry) -> None:
        """A pass of a request that has the token in its row, or gets it. A wrong draft at its position is not the token."""
        request, start, end = entry.request, entry.start, entry.end
        if request == self.request and start <= self.position < entry.kv_len:
            self.life.slot, self.life.written = from_runs(entry.slots)[self.position - start], event.step
            self._say(f"the pass computes its K/V and writes it to slot {self.life.slot}")
        if self.life.slot is None:
            return
        first = max(start, self.position)
        self.life.reads[event.step] = self.life.reads.get(event.step, 0) + end - first
        if first == self.position:
            later = end - first - 1
            others = f" and those of the {count(later, 'token')} after it" if later else ""
            self._say(f"its own query{others} read{'' if later else 's'} it in the same pass")
        else:
            one = end == first + 1
            queries = f"query of position {first}" if one else f"queries of positions {first} to {end - 1}"
            self._say(f"the {queries} of request {request} read{'s' * one} it")

    def _owner(self, event: TraceEvent, state: TraceState) -> None:
        """The owner of the slot now."""
        life = self.life
        if life.slot is None:
            return
        was, locked = life.owner, life.locks
        if life.slot in state.requests[self.request].slots:
            life.owner = "request"
            return
        found = node_at(state, self.tokens, self.position)
        if found is None or found[1] != life.slot:
            rows = {index: state.row_slots(req) for index, req in state.requests.items() if req.is_running}
            now = [(row.index(life.slot), index) for index, row in rows.items() if life.slot in row]
            heir = f"now holds position {now[0][0]} of request {now[0][1]}" if now else "is free"
            self._say(f"it is evicted to make room: slot {life.slot} {heir}")
            life.owner, life.locks, life.node, life.slot, life.freed = "", 0, 0, None, event.step
            return
        life.owner, life.node, life.locks = "tree", found[0].number, found[0].lock_ref
        if was != "tree":
            lock = "and locked while the request runs" if life.locks else "unlocked, because the request ends"
            self._say(f"its slot is handed to the tree, {lock}")
        elif locked and not life.locks:
            self._say("the request that used it ends, so it is unlocked; it stays in the tree")
