"""Recorded runs: an engine serves a few requests while `nanoinfer.viz.trace` watches. And their panels: the pool as cells,
the tree as nodes.

What an interactive figure shows of the engine comes from here, and so from a run that has taken place.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from nanoinfer.config import EngineConfig
from nanoinfer.engine.engine import Engine
from nanoinfer.llm import LLM, make_engine
from nanoinfer.sampling_params import SamplingParams
from nanoinfer.viz.palette import REQUESTS
from nanoinfer.viz.trace import Trace, record
from nanoinfer.viz.trace.state import NodeState, TraceState
from nanoinfer.viz.words import runs, visible_ends
from notebooks.course.explore import Cell, CellRow, Node

ROWS, CONTEXT = 8, 512
ACROSS = 16  # slots in one row of a picture of the pool
NAMES = {"free": "free", "tree": "the tree's, unlocked", "locked": "the tree's, locked", "padding": "held, but empty"}


class Arrival(NamedTuple):
    """A prompt that arrives once so many steps are done; `max_new_tokens` of its answer are wanted, never fewer."""

    step: int
    prompt: str
    max_new_tokens: int


def serve(llm: LLM, arrivals: Sequence[Arrival], slots: int, **config: object) -> Trace:
    """Record how an engine with `slots` slots, made from the model of `llm`, serves `arrivals`, to the last token.

    `config`: fields of EngineConfig. Greedy; no token ends a text, so every setting produces the same tokens.
    """
    fields = {"max_running_requests": ROWS, "max_total_tokens": slots, "max_context_len": CONTEXT, **config}
    engine = make_engine(llm.model, EngineConfig(**fields))  # type: ignore[arg-type]
    with one_thread(), record(engine) as trace:
        _run(engine, list(arrivals))
    return trace


@contextmanager
def one_thread() -> Iterator[None]:
    """Passes of a few tokens gain nothing from more threads, and lose much where other programs keep the cores busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(engine: Engine, arrivals: list[Arrival]) -> None:
    steps = 0
    while arrivals or engine.has_unfinished():
        while arrivals and (arrivals[0].step <= steps or not engine.has_unfinished()):
            _, prompt, tokens = arrivals.pop(0)
            engine.add_request(prompt, SamplingParams(max_new_tokens=tokens, temperature=0, ignore_eos=True))
        engine.step()
        engine.check_integrity()
        steps += 1


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
