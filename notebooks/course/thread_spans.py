"""thread_spans: when an engine's thread makes steps, and when event loops run coroutines, while a block runs."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from time import perf_counter
from typing import Any

from nanoinfer.engine.engine import Engine

Span = tuple[str, str, float, float]  # thread, kind, start and end in seconds of `perf_counter`
STEP, COROUTINES = "a step of the engine", "coroutines"


@contextmanager
def thread_spans(engine: Engine) -> Iterator[list[Span]]:
    """The list that it gives is filled while the block runs: a span per step of `engine`, and one per callback of every
    event loop of this process. One engine at a time: what it watches is put back at the end of the block."""
    spans: list[Span] = []
    run = asyncio.Handle._run

    def timed(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any) -> Any:
            start = perf_counter()
            try:
                return function(*arguments)
            finally:
                spans.append((threading.current_thread().name, kind, start, perf_counter()))

        return call

    asyncio.Handle._run = timed(run, COROUTINES)  # type: ignore[method-assign]
    engine.make_step = timed(engine.make_step, STEP)  # type: ignore[method-assign]
    try:
        yield spans
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
        del engine.make_step


def joined(spans: list[Span], gap_s: float) -> list[Span]:
    """In the order of their starts, with neighbours of one thread and kind joined that are at most `gap_s` apart."""
    last: dict[tuple[str, str], int] = {}
    found: list[Span] = []
    for thread, kind, start, end in sorted(spans, key=lambda span: span[2]):
        at = last.get((thread, kind))
        if at is not None and start - found[at][3] <= gap_s:
            found[at] = (thread, kind, found[at][2], max(end, found[at][3]))
            continue
        last[thread, kind] = len(found)
        found.append((thread, kind, start, end))
    return found
