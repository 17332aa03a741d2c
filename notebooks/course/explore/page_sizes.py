"""What does a page size cost? Slots that nothing fills, and prompt tokens that whole pages cannot match."""

from nanoinfer.llm import LLM
from nanoinfer.viz.trace import Trace
from nanoinfer.viz.trace.state import TraceState
from nanoinfer.viz.words import count, percent
from notebooks.course.explore import Bars, Cells, Control, Frame, InteractiveFigure, Number, Numbers, bars_of
from notebooks.course.explore.runs import Arrival, legend, look_of, pool_rows, prompts_note, serve, slot_looks
from notebooks.course.prompts import BEAR, FOX, HELLO, RIVER

SIZES = (1, 2, 4, 8, 16)
SLOTS = 80
# The first has ended when the others come, so that they find its tokens in the tree.
ARRIVALS = (Arrival(0, FOX, 4), Arrival(4, RIVER, 9), Arrival(4, BEAR, 9), Arrival(4, HELLO, 9))


def record_page_sizes(llm: LLM) -> dict[int, Trace]:
    """The same requests, served with each page size."""
    return {size: serve(llm, ARRIVALS, SLOTS, page_size=size) for size in SIZES}


def page_sizes(llm: LLM) -> InteractiveFigure:
    """Page size and step → the pool's slots, those that are held but empty, and the prompt tokens found in the tree."""
    runs = record_page_sizes(llm)
    steps = range(ARRIVALS[1].step + 1, len(runs[1]) + 1)
    states = {(size, step): run.state(step) for size, run in runs.items() for step in steps}
    found = {size: found_tokens(run.state()) for size, run in runs.items()}
    most = max(empty_slots(state) for state in states.values())
    note = prompts_note(runs[1])

    def show(size: int, step: int) -> Frame:
        state = states[size, step]
        looks, bars = slot_looks(state), dict[str, tuple[float, str]]()
        for other in SIZES:
            empty, held = empty_slots(states[other, step]), held_slots(states[other, step])
            bars[f"pages of {other}"] = empty, f"{empty} ({percent(empty, held)})"
        pool = f"The pool after step {step}, in pages of {count(size, 'slot')}"
        title = f"Held but empty after step {step}, and the share of what is held (solid: this page size)"
        panels = [
            Cells(pool, pool_rows(looks), legend(looks), note=note, group=size if size > 1 else 0),
            Bars(title, bars_of(bars, f"pages of {size}", "padding"), most),
            Numbers("Found in the tree when the three requests arrived", numbers(size, found)),
        ]
        return Frame(panels, sentence(size, state, found))

    return InteractiveFigure(
        "What does a larger page waste?",
        "A request is given whole pages. Look for the grey slots at the end of each request's last page: they are held, "
        "but no token is in them yet. The tree also keeps and matches whole pages only.",
        [
            Control("page_size", "page size (slots)", list(SIZES), start=3),
            Control("step", "after step", list(steps), start=3),
        ],
        show,
        height=1150,
        runs=len(SIZES),
    )


def held_slots(state: TraceState) -> int:
    """Slots that running requests hold, in the tree or not."""
    return state.protected_size() + sum(len(req.slots) for req in state.running)


def empty_slots(state: TraceState) -> int:
    """Those of them without a token."""
    return sum(req.tree_len + len(req.slots) - req.kv_len for req in state.running)


def found_tokens(state: TraceState) -> list[int]:
    """For each request the tokens of its prompt that were in the tree."""
    return [req.cached_tokens for req in state.requests.values()]


def numbers(size: int, found: dict[int, list[int]]) -> list[Number]:
    rows = [
        Number(f"request {i}", f"{found[size][i]} of {found[1][i]} shared tokens", look_of(i))
        for i in range(1, len(ARRIVALS))
    ]
    lost = sum(found[1]) - sum(found[size])
    return [*rows, Number("lost to whole pages", count(lost, "token"), strong=True)]


def sentence(size: int, state: TraceState, found: dict[int, list[int]]) -> str:
    """What there is to see."""
    empty, held, lost = empty_slots(state), held_slots(state), sum(found[1]) - sum(found[size])
    if size == 1:
        return (
            "With one slot per page no slot is held without a token, and a prefix matches up to its very last token. The "
            "price isn't in this picture: the allocator and the tree have the most pieces to keep track of."
        )
    if not state.running:
        return "All requests have ended. Their whole pages stay in the tree; incomplete last pages are free again."
    return (
        f"{empty} of the {held} slots that the running requests use {'is' if empty == 1 else 'are'} empty. Each new token "
        f"fills one, until the page is full and the request is given another page. {count(lost, 'token')} of a shared "
        f"beginning {'was' if lost == 1 else 'were'} computed again, because the match ended inside a page."
    )
