"""What happens to one token? Its id, position and slot, which pass writes its K/V, which tokens read it, and its end."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace

from nanoinfer.llm import LLM
from nanoinfer.viz.trace.events import BatchEntry, TraceEvent, from_runs
from nanoinfer.viz.trace.state import NodeState, TraceState
from nanoinfer.viz.trace.trace import Trace
from nanoinfer.viz.words import count, visible
from notebooks.course.explore import (
    Cell,
    CellRow,
    Cells,
    Control,
    Frame,
    InteractiveFigure,
    Number,
    Numbers,
    Tree,
    padded,
)
from notebooks.course.explore.runs import ACROSS, Arrival, Run, legend, look_of, pool_rows, serve, slot_looks, tree_root
from notebooks.course.prompts import FOX, RIVER

SLOTS = 32
DONKEY = "Max was a clever donkey who lived in a barn. He had a big secret: he could not swim."
# The second prompt comes when the first request has ended; the third needs the room that the first two have left.
ARRIVALS = (Arrival(0, FOX, 5), Arrival(6, RIVER, 3), Arrival(10, DONKEY, 3))
# Request and position of the tokens that can be followed: one that both prompts have, one of an answer that the second
# prompt has too, the last of an answer, and one that only the second prompt has.
TOKENS = ((0, 10), (0, 14), (0, 18), (1, 18))


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


def record_lives(llm: LLM) -> Run:
    """Two requests about the fox, and one that needs their room."""
    return serve(llm, ARRIVALS, SLOTS)


def token_life(llm: LLM) -> InteractiveFigure:
    """Token and step → what has become of the token: in the rows, in the pool, in the tree."""
    trace = record_lives(llm).trace
    seen = [deepcopy(state) for event, state in trace.states() if is_seen(event)]
    lives = {token: lives_of(trace, *token) for token in TOKENS}
    return InteractiveFigure(
        "What happens to one token?",
        "Choose a token and follow it through the steps of a run. Its slot has a frame in the rows and in the pool, and "
        "its node is marked in the tree.",
        [
            Control("token", "token", TOKENS, [label(trace, *token) for token in TOKENS]),
            Control("step", "after step", range(len(seen)), [str(state.step) for state in seen]),
        ],
        lambda token, i: frame_of(trace, seen[i], lives[token][i], *token),
        height=1220,
        still=(0, 6),
        runs=1,
    )


def text_of(trace: Trace, request: int, position: int) -> str:
    token = trace.state().requests[request].tokens[position]
    return visible(trace.texts.get(token, str(token)))


def label(trace: Trace, request: int, position: int) -> str:
    """A token as the control names it."""
    kind = "prompt" if position < len(trace.requests[request].prompt) else "answer"
    return f"“{text_of(trace, request, position)}”, position {position} of request {request}'s {kind}"


def frame_of(trace: Trace, state: TraceState, life: Life, request: int, position: int) -> Frame:
    """What is there after one step."""
    looks = slot_looks(state)
    mark = "written" if life.written == state.step else "read"
    marks = {} if life.slot is None else {life.slot: mark}
    found = {life.node: "here"} if life.node else {}
    return Frame(
        [
            Numbers("The token", facts(trace, life, request, position)),
            Cells(
                f"The rows after step {state.step}: for each position (above), the slot that holds it",
                row_cells(trace, state, looks, marks),
                legend(looks),
                [str(place) for place in range(row_length(trace))],
            ),
            Cells("The pool", pool_rows(looks, marks), columns=[f"+{place}" for place in range(ACROSS)]),
            Tree("The tree", tree_root(state, trace.texts, found)),
        ],
        sentence(trace, state, life, request, position),
    )


def row_cells(trace: Trace, state: TraceState, looks: list[str], marks: Mapping[int, str]) -> list[CellRow]:
    """The row of each request, as long as the longest; without a row, dashes."""
    length = row_length(trace)
    rows = []
    for index, request in enumerate(trace.requests):
        req = state.requests.get(index)
        slots = state.row_slots(req) if req is not None and req.is_running else []
        cells = [Cell(looks[slot], str(slot), marks.get(slot, "")) for slot in slots]
        rows.append(CellRow(request.name, padded(cells, length)))
    return rows


def row_length(trace: Trace) -> int:
    """Positions of the longest request."""
    return max(len(request.prompt) + request.max_new_tokens for request in trace.requests)


def facts(trace: Trace, life: Life, request: int, position: int) -> list[Number]:
    token = trace.state().requests[request].tokens[position]
    if life.owner == "tree":
        owner = f"the tree, locked by {count(life.locks, 'request')}" if life.locks else "the tree, unlocked"
        look = "locked" if life.locks else "tree"
    elif life.owner:
        owner, look = f"request {request}", look_of(request)
    else:
        owner, look = "–", ""
    where = "–" if life.slot is None else str(life.slot)
    return [
        Number("token", f"“{text_of(trace, request, position)}”, id {token}" if life.known else "not there yet"),
        Number("position", f"{position} of request {request}"),
        Number("slot of its K/V", where if not life.freed else f"– (evicted in step {life.freed})", strong=True),
        Number("owner of the slot", owner, look),
        Number("written", f"in step {life.written}" if life.written else "not yet"),
        Number("read so far", reads(life)),
    ]


def reads(life: Life) -> str:
    if not life.reads:
        return "not yet"
    passes = f"{len(life.reads)} pass{'es' * (len(life.reads) > 1)}"
    return f"in {passes}, by the queries of {count(sum(life.reads.values()), 'token')}"


def sentence(trace: Trace, state: TraceState, life: Life, request: int, position: int) -> str:
    """What the step did with the token, or, where it did nothing, how it is."""
    head = f"Step {state.step} ({state.mode}): " if state.step else "Before the first step: "
    if life.news:
        return head + "; ".join(life.news) + "."
    if not life.known:
        missing = "the model hasn't chosen it" if request in state.requests else f"request {request} hasn't arrived"
        return f"{head}the token doesn't exist yet: {missing}."
    if life.freed:
        return f"{head}its K/V is gone. A prompt that has this token at this place will have to compute it again."
    if life.slot is None:
        req = state.requests[request]
        if req.finish_reason is not None:
            return f"{head}its request has ended with it. No token comes after it, so its K/V was never needed or computed."
        return (
            f"{head}the prompt has become token ids. This token has an id and a position, but no slot and no K/V yet."
        )
    return f"{head}nothing happens to it. It stays in slot {life.slot}."


def lives_of(trace: Trace, request: int, position: int) -> list[Life]:
    """The token at `position` of `request` at every moment that `is_seen`."""
    follower, lives = _Follower(trace, request, position), []
    for event, state in trace.states():
        life = follower.after(event, state)
        if is_seen(event):
            lives.append(life)
    return lives


def is_seen(event: TraceEvent) -> bool:
    """Whether a life is shown after `event`: after the first arrival and after every step."""
    return event.is_step or 0 in event.arrived


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
