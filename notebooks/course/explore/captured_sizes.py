"""Which captured graph serves a DECODE pass, how many of its rows are padding, and how many graphs are there to record?"""

from collections.abc import Callable

from nanoinfer.llm import LLM
from nanoinfer.model.graph_runner import padded_size
from nanoinfer.viz.words import count, percent
from notebooks.course.explore import (
    Bars,
    Cell,
    CellRow,
    Cells,
    Control,
    Frame,
    InteractiveFigure,
    Number,
    Numbers,
    bars_of,
)

REQUESTS = (1, 3, 5, 8, 11, 16, 17, 20, 23, 28, 33, 41, 48, 57, 64, 65, 72, 81, 90, 96)
MOST, ACROSS = REQUESTS[-1], 16
SIZES: dict[str, Callable[[int], int]] = {
    "a graph for every number": lambda requests: requests,
    "this engine's sizes": padded_size,
    "powers of two": lambda requests: 1 << (requests - 1).bit_length(),
    "one graph for 96": lambda requests: MOST,
}


def captured_sizes(_: LLM) -> InteractiveFigure:
    """Requests and sizes → the rows of the graph that serves them, its padding, and the number of graphs."""
    start = REQUESTS.index(17), list(SIZES).index("this engine's sizes")
    return InteractiveFigure(
        "Which captured graph serves this batch?",
        "A captured graph has a fixed number of rows. A batch takes the next larger graph, and the rows that are left "
        "are padding. Drag the number of requests, then choose other sizes.",
        [
            Control("requests", "requests in the pass", REQUESTS, start=start[0]),
            Control("sizes", "sizes that are recorded", list(SIZES), start=start[1]),
        ],
        _frame,
        height=900,
        source="Computed for each setting; this engine's sizes by the function that it uses itself.",
    )


def graphs(name: str) -> int:
    """How many graphs serve every number of requests up to MOST."""
    return len({SIZES[name](requests) for requests in range(1, MOST + 1)})


def _frame(requests: int, chosen: str) -> Frame:
    size = SIZES[chosen](requests)
    empty = size - requests
    cells = [Cell("in-use")] * requests + [Cell("padding")] * empty
    rows = [
        CellRow(f"rows {first}–{min(first + ACROSS, size) - 1}", cells[first : first + ACROSS])
        for first in range(0, size, ACROSS)
    ]
    legend = [("in-use", "a request's row"), ("padding", "padding: slot −1, length 0")]
    wasted = {name: each(requests) - requests for name, each in SIZES.items()}
    texts = {name: (rows, f"{count(graphs(name), 'graph')}, {rows} padding") for name, rows in wasted.items()}
    numbers = [
        Number("rows of the graph", str(size)),
        Number("of them padding", f"{empty} ({percent(empty, size)})", strong=True),
        Number(f"graphs to record, up to {MOST} requests", str(graphs(chosen))),
    ]
    return Frame(
        [
            Cells(f"The graph for {size} rows, with {count(requests, 'request')}", rows, legend),
            Bars("Rows of padding, by the sizes that are recorded", bars_of(texts, chosen), MOST),
            Numbers("The price", numbers),
        ],
        f"{count(requests, 'request')} in a graph of {count(size, 'row')}: "
        + (f"{count(empty, 'row')} of padding." if empty else "no padding.")
        + f" {count(graphs(chosen), 'graph')} would serve every batch up to {MOST}.",
    )
