"""What is continuous batching worth? The same requests in fixed groups, and in a batch that changes from pass to pass."""

from collections.abc import Sequence
from itertools import product

from nanoinfer.llm import LLM
from nanoinfer.sessions.inference import InferenceEngine
from nanoinfer.sessions.offline_scheduler import OfflineScheduler
from nanoinfer.viz.words import percent
from notebooks.course.explore import Bar, Bars, Control, Frame, InteractiveFigure, Lane, Lanes, Span
from notebooks.course.explore.runs import one_thread
from notebooks.course.prompts import HELLO

LONG, ROWS = (5, 10, 20, 30, 40), (2, 4, 8)
Steps = list[dict[int, int]]  # what each step gave: request → its new token


def wanted(long: int) -> list[int]:
    """New tokens of each request."""
    return [long, 4, 6, 5, 8, long, 4, 7, 5, 6, long, 4]


def serve(engine: InferenceEngine, new_tokens: Sequence[int], rows: int, continuous: bool) -> Steps:
    """A waiting request joins when a row is free, or, unless `continuous`, when all are."""
    scheduler, waiting, steps = OfflineScheduler(engine), list(new_tokens), Steps()
    while scheduler.has_unfinished() or waiting:
        running = sum(not session.finished for session in scheduler.sessions.values())
        if continuous or not running:
            for number in waiting[: rows - running]:
                scheduler.add_request(HELLO, number, temperature=0, stop_on_eos=False)
            del waiting[: rows - running]
        steps.append(scheduler.step())
    return steps


def record_batching(llm: LLM) -> dict[tuple[int, int, bool], Steps]:
    """(tokens of the long requests, rows, continuous) → its steps."""
    engine = InferenceEngine(llm.model)
    with one_thread():
        settings = product(LONG, ROWS, (False, True))
        return {(long, rows, kind): serve(engine, wanted(long), rows, kind) for long, rows, kind in settings}


def batching(llm: LLM) -> InteractiveFigure:
    """Tokens of the long requests and rows → which request has which row in which pass, static and continuous."""
    runs = record_batching(llm)
    most = max(map(len, runs.values()))

    def show(long: int, rows: int) -> Frame:
        static, continuous = runs[long, rows, False], runs[long, rows, True]
        bars = [bar_of("static", static, rows), bar_of("continuous", continuous, rows)]
        panels = [
            lanes("Static: a group runs until its last request has ended", static, rows, most),
            lanes("Continuous: the next request in line takes a free row", continuous, rows, most),
            Bars("Decode passes", bars, 1.2 * most),
        ]
        said = (
            f"Static batching needs {len(static) / len(continuous):.1f} times as many decode passes. Its empty rows wait "
            "for the longest request of their group. Continuous batching has some only when no request waits."
        )
        return Frame(panels, said)

    return InteractiveFigure(
        "What is continuous batching worth?",
        "Twelve requests wait, three of them long. Drag their length and the number of rows. Look for the grey: rows that "
        "no request uses.",
        [
            Control("long", "tokens of the three long requests", list(LONG), start=len(LONG) - 1),
            Control("rows", "requests at a time", list(ROWS), start=1),
        ],
        show,
        height=1060,
        runs=len(runs),
    )


def lanes(title: str, steps: Steps, rows: int, most: int) -> Lanes:
    """A lane per row of the batch."""
    spans: list[list[Span]] = [[] for _ in range(rows)]
    for number in sorted({number for step in steps for number in step}):
        here = [i for i, step in enumerate(steps) if number in step]
        row = next(row for row in range(rows) if not spans[row] or spans[row][-1].end <= here[0])
        if (free := spans[row][-1].end if spans[row] else 0) < here[0]:
            spans[row].append(Span(free, here[0], "waiting"))
        spans[row].append(Span(here[0], here[-1] + 1, "decode", str(number)))
    for of_row in spans:
        if of_row[-1].end < len(steps):
            of_row.append(Span(of_row[-1].end, len(steps), "waiting"))
    return Lanes(
        title,
        len(steps),
        [Lane(f"row {row}", of_row) for row, of_row in enumerate(spans)],
        legend=[("decode", "in the pass, with the number of its request"), ("waiting", "empty")],
        widths=[1] * len(steps),
        whole=most,
        scale=("decode passes →", str(most)),
    )


def bar_of(name: str, steps: Steps, rows: int) -> Bar:
    used = percent(sum(map(len, steps)), rows * len(steps))
    return Bar(name, len(steps), f"{len(steps)}, {used} of their rows used")
