"""From recorded state to panels: the pool as cells, the tree as nodes, a run as lanes with the pool's occupancy above."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from nanoinfer.viz.palette import REQUESTS
from nanoinfer.viz.trace.phases import EXTEND, SEPARATE
from nanoinfer.viz.trace.state import NodeState, TraceState
from nanoinfer.viz.trace.trace import Trace
from nanoinfer.viz.words import runs, visible_ends
from notebooks.course.explore import Cell, CellRow, Lane, Node, Span, Strip
from notebooks.course.explore.runs import Moment

ACROSS = 16  # slots in one row of a picture of the pool
NAMES = {"free": "free", "tree": "the tree's, unlocked", "locked": "the tree's, locked", "padding": "held, but empty"}


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
        spans: list[Span] = []
        for place, moment in enumerate(moments):
            phase = moment.phases.get(index)
            if phase is None:
                continue
            if spans and spans[-1].end == place and spans[-1].phase == phase and phase not in SEPARATE:
                spans[-1] = Span(spans[-1].start, place + 1, phase)
            else:
                text = str(moment.computed[index]) if phase == EXTEND else ""
                spans.append(Span(place, place + 1, phase, text))
        ends = next((moment.step for moment in moments if index in moment.ended), None)
        lanes.append(Lane(request.name, spans, look_of(index), ends))
    return lanes


def prompts_note(trace: Trace) -> str:
    """Which request asks what."""
    texts = trace.texts
    said = []
    for request in trace.requests:
        text = "".join(texts.get(token, f" {token}") for token in request.prompt[1:])
        said.append(f"{request.name}: “{text if len(text) <= 90 else text[:87] + '…'}”")
    return " · ".join(said)
