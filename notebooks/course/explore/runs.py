"""Recorded runs: an engine serves a few requests while `nanoinfer.viz.trace` watches; `moments` says what each step was.
And their panels: the pool as cells, the tree as nodes, a run as lanes with the pool's occupancy above.

What an interactive figure shows of the engine comes from here, and so from a run that has taken place.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from nanoinfer.config import EngineConfig
from nanoinfer.engine.engine import Engine
from nanoinfer.engine.stats import EngineStats
from nanoinfer.llm import LLM, make_engine
from nanoinfer.sampling_params import SamplingParams
from nanoinfer.viz.palette import REQUESTS
from nanoinfer.viz.trace import Trace, record
from nanoinfer.viz.trace.events import TraceEvent
from nanoinfer.viz.trace.phases import EXTEND, SEPARATE, spans
from nanoinfer.viz.trace.state import NodeState, TraceState
from nanoinfer.viz.words import runs, visible_ends
from notebooks.course.explore import Cell, CellRow, Lane, Node, Span, Strip

ROWS, CONTEXT = 8, 512
ACROSS = 16  # slots in one row of a picture of the pool
NAMES = {"free": "free", "tree": "the tree's, unlocked", "locked": "the tree's, locked", "padding": "held, but empty"}


class Arrival(NamedTuple):
    """A prompt that arrives once so many steps are done; `max_new_tokens` of its answer are wanted, never fewer."""

    step: int
    prompt: str
    max_new_tokens: int


class Room(NamedTuple):
    """Before a step: the slots that are free or evictable, and those that a DECODE of all running requests needs."""

    obtainable: int
    needed: int


@dataclass
class Run:
    """A recorded run. `room[i]` and `stats[i]`: before and after step `i + 1`."""

    trace: Trace
    room: list[Room]
    stats: list[EngineStats]


@dataclass
class Moment:
    """A step of a run, with all that a picture of it needs. A request is named by its index in the trace.

    - `phases`: what each unfinished request did; `computed`: tokens of each request in the pass.
    - After the step: `free` slots, `unlocked` and `locked` ones of the tree, and those that each request holds.
    - `evicted`: cached tokens that made room. `room`: see Room.
    """

    step: int
    mode: str
    phases: dict[int, str]
    computed: dict[int, int]
    free: int
    unlocked: int
    locked: int
    held: dict[int, int]
    evicted: int
    retracted: list[int]
    ended: list[int]
    room: Room

    @property
    def num_tokens(self) -> int:
        return sum(self.computed.values())


def serve(llm: LLM, arrivals: Sequence[Arrival], slots: int, **config: object) -> Run:
    """Record how an engine with `slots` slots, made from the model of `llm`, serves `arrivals`, to the last token.

    `config`: fields of EngineConfig. Greedy; no token ends a text, so every setting produces the same tokens.
    """
    fields = {"max_running_requests": ROWS, "max_total_tokens": slots, "max_context_len": CONTEXT, **config}
    engine = make_engine(llm.model, EngineConfig(**fields))  # type: ignore[arg-type]
    with one_thread(), record(engine) as trace:
        room, stats = _run(engine, list(arrivals))
    return Run(trace, room, stats)


@contextmanager
def one_thread() -> Iterator[None]:
    """Passes of a few tokens gain nothing from more threads, and lose much where other programs keep the cores busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(engine: Engine, arrivals: list[Arrival]) -> tuple[list[Room], list[EngineStats]]:
    room: list[Room] = []
    stats: list[EngineStats] = []
    while arrivals or engine.has_unfinished():
        while arrivals and (arrivals[0].step <= len(stats) or not engine.has_unfinished()):
            _, prompt, tokens = arrivals.pop(0)
            engine.add_request(prompt, SamplingParams(max_new_tokens=tokens, temperature=0, ignore_eos=True))
        running = engine.scheduler.running
        room.append(Room(engine.cache.obtainable_size(), engine.cache.decode_size(running)))
        engine.step()
        engine.check_integrity()
        stats.append(engine.stats())
    return room, stats


def moments(run: Run) -> list[Moment]:
    """The steps of a run, in order."""
    phases: list[dict[int, str]] = [{} for _ in range(len(run.trace) + 1)]
    for span in spans(run.trace)[0]:
        for step in range(span.first, span.last + 1):
            phases[step][span.request] = span.phase
    found: list[Moment] = []
    evicted = 0
    for event, gone, state in changes(run.trace):
        evicted += gone
        if event.is_step:
            found.append(
                Moment(
                    event.step,
                    event.mode,
                    phases[event.step],
                    {entry.request: entry.end - entry.start for entry in event.batch},
                    state.free,
                    state.evictable_size(),
                    state.protected_size(),
                    {index: len(req.slots) for index, req in state.requests.items() if req.is_running},
                    evicted,
                    list(event.retracted),
                    [entry.request for entry in event.ended],
                    run.room[event.step - 1],
                )
            )
            evicted = 0
    return found


def changes(trace: Trace) -> Iterator[tuple[TraceEvent, int, TraceState]]:
    """Every event with how many cached tokens it evicted, and the state after it (one that goes on changing)."""
    before = 0
    for event, state in trace.states():
        entered = sum(
            len(rest[2] if what == "add" else rest[1]) for what, *rest in event.tree if what in ("add", "grow")
        )
        after = sum(map(len, state.nodes.values()))
        yield event, before + entered - after, state
        before = after


def look_of(request: int) -> str:
    """The colour of a request."""
    return f"r{request % len(REQUESTS)}"


def slot_looks(state: TraceState) -> list[str]:
    """For each slot of the pool the look of its owner; a slot that a request holds without a token in it is padding."""
    looks = ["free"] * state.size
    for _, node in state.walk():
        for slot in node.value:
            looks[slot] = "locked" if node.lock_ref else "tree"
    for index, req in state.requests.items():
        for place, slot in enumerate(req.slots, req.tree_len):
            looks[slot] = look_of(index) if place < req.kv_len else "padding"
    return looks


def pool_rows(looks: Sequence[str], marks: Mapping[int, str] | None = None) -> list[CellRow]:
    """The pool, a row for each sixteen slots. `marks`: slot → mark of its cell."""
    cells = [Cell(look, mark=(marks or {}).get(slot, "")) for slot, look in enumerate(looks)]
    return [
        CellRow(f"slots {start}–{min(start + ACROSS, len(cells)) - 1}", cells[start : start + ACROSS])
        for start in range(0, len(cells), ACROSS)
    ]


def legend(looks: Iterable[str]) -> list[tuple[str, str]]:
    """What the looks that occur mean: requests first, then the tree, then what is empty."""
    found = set(looks)
    requests = [(look, f"request {look[1:]}") for look in sorted(found) if look not in NAMES]
    return requests + [(look, name) for look, name in NAMES.items() if look in found]


def tree_root(
    state: TraceState,
    texts: Mapping[int, str],
    marks: Mapping[int, str] | None = None,
    was: Callable[[int], str] = lambda number: "",
) -> Node:
    """The tree. `marks`: node → mark; `was`: node → the key of the node that it comes from, "" for none."""

    def node(each: NodeState) -> Node:
        return Node(
            visible_ends("".join(texts.get(token, f" {token}") for token in each.key)),
            runs(each.value, 3).replace("-", "–") if each.value else "",
            each.lock_ref if each.number else 0,
            (marks or {}).get(each.number, ""),
            str(each.number),
            was(each.number) if each.number else "",
            children=[node(child) for child in each.children],
        )

    return node(state.root)


def occupancy(moments: Sequence[Moment], slots: int, width: int = 0) -> Strip:
    """The owners of the pool's slots after each step, from the bottom up: requests, the tree (locked, then evictable); the
    rest is free. `width`: steps that the picture has, when it has more."""
    steps = [
        [
            *((look_of(index), held) for index, held in sorted(moment.held.items()) if held),
            ("locked", moment.locked),
            ("tree", moment.unlocked),
        ]
        for moment in moments
    ]
    return Strip(f"{slots} slots", slots, steps + [[]] * (width - len(steps)))


def lanes_of(trace: Trace, moments: Sequence[Moment]) -> list[Lane]:
    """What each request did in each step."""
    lanes = []
    for index, request in enumerate(trace.requests):
        drawn: list[Span] = []
        for place, moment in enumerate(moments):
            phase = moment.phases.get(index)
            if phase is None:
                continue
            if drawn and drawn[-1].end == place and drawn[-1].phase == phase and phase not in SEPARATE:
                drawn[-1] = Span(drawn[-1].start, place + 1, phase)
            else:
                text = str(moment.computed[index]) if phase == EXTEND else ""
                drawn.append(Span(place, place + 1, phase, text))
        ends = next((moment.step for moment in moments if index in moment.ended), None)
        lanes.append(Lane(request.name, drawn, look_of(index), ends))
    return lanes


def prompts_note(trace: Trace) -> str:
    """Which request asks what."""
    texts = trace.texts
    said = []
    for request in trace.requests:
        text = "".join(texts.get(token, f" {token}") for token in request.prompt[1:])
        said.append(f"{request.name}: “{text if len(text) <= 90 else text[:87] + '…'}”")
    return " · ".join(said)
