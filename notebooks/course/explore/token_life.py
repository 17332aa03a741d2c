"""What happens to one token? Its id, position and slot, which pass writes its K/V, which tokens read it, and its end."""

from collections.abc import Mapping

from nanoinfer.llm import LLM
from nanoinfer.viz.trace.state import TraceState
from nanoinfer.viz.trace.trace import Trace
from nanoinfer.viz.words import count, visible
from notebooks.course.explore import Cell, CellRow, Cells, Control, Frame, InteractiveFigure, Number, Numbers, Tree
from notebooks.course.explore.lives import Life, lives_of, seen_moments
from notebooks.course.explore.runs import Arrival, Run, serve
from notebooks.course.explore.shown import ACROSS, legend, look_of, pool_rows, slot_looks, tree_root
from notebooks.course.prompts import FOX, RIVER

SLOTS = 32
DONKEY = "Max was a clever donkey who lived in a barn. He had a big secret: he could not swim."
# The second prompt comes when the first request has ended; the third needs the room that the first two have left.
ARRIVALS = (Arrival(0, FOX, 5), Arrival(6, RIVER, 3), Arrival(10, DONKEY, 3))
# Request and position of the tokens that can be followed: one that both prompts have, one of an answer that the second
# prompt has too, the last of an answer, and one that only the second prompt has.
TOKENS = ((0, 10), (0, 14), (0, 18), (1, 18))


def record_lives(llm: LLM) -> Run:
    """Two requests about the fox, and one that needs their room."""
    return serve(llm, ARRIVALS, SLOTS)


def token_life(llm: LLM) -> InteractiveFigure:
    """Token and step → what has become of the token: in the rows, in the pool, in the tree."""
    trace = record_lives(llm).trace
    seen = seen_moments(trace)
    frames = {}
    for i, (request, position) in enumerate(TOKENS):
        for j, life in enumerate(lives_of(trace, request, position)):
            frames[i, j] = frame_of(trace, seen[j][1], life, request, position)
    return InteractiveFigure(
        "What happens to one token?",
        "Choose a token and follow it through the steps of a run. Its slot has a frame in the rows and in the pool, and "
        "its node is marked in the tree.",
        [
            Control("token", "token", [list(token) for token in TOKENS], [label(trace, *token) for token in TOKENS]),
            Control("step", "after step", [state.step for _, state in seen]),
        ],
        frames,
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
        rows.append(CellRow(request.name, [*cells, *[Cell()] * (length - len(cells))]))
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
