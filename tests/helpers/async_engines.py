"""Engines over a model that tests let through pass by pass; LLMs and AsyncEngines around them."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import torch

from nanoinfer import LLM, AsyncEngine, Engine, SamplingParams
from nanoinfer.engine.sync_client import SyncClient
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.layers.logits_processor import LogitsOutput
from tests.helpers.engines import V, make_engine
from tests.helpers.engines import assert_all_free as assert_all_free
from tests.helpers.waiting import HANG_S, Worker, someone_waits, until, until_async
from tests.helpers.waiting import run as run

T = TypeVar("T")


class PassBarrier:
    """A model that waits before each pass until it is let through, so that tests decide what happens in between.

    `arrivals` counts the passes that have come to the barrier, `passes` those that went through.
    """

    def __init__(self, model: Any, open_at_once: bool = True):
        self.model, self.passes, self.arrivals = model, 0, 0
        self._permits, self._is_open = threading.Semaphore(0), open_at_once
        self.error: BaseException | None = None
        self.error_at = 0

    def let_one_through(self) -> None:
        self._permits.release()

    def open(self) -> None:
        """Let all passes through from now on, also the one that waits."""
        self._is_open = True
        self._permits.release()

    def close(self) -> None:
        """Of one that has been open from the beginning."""
        self._is_open = False

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor, input_metadata: InputMetadata) -> LogitsOutput:
        self.arrivals += 1
        assert self._is_open or self._permits.acquire(timeout=HANG_S), "this pass is not let through"
        self.passes += 1
        if self.error is not None and self.passes == self.error_at:
            raise self.error
        return self.model(input_ids, positions, input_metadata)


def with_barrier(open_at_once: bool = True, **options: Any) -> tuple[Engine, PassBarrier]:
    engine = make_engine(**options)
    barrier = PassBarrier(engine.model_runner.model, open_at_once)
    engine.model_runner.model = barrier
    return engine, barrier


@asynccontextmanager
async def with_front(open_at_once: bool = True, **options: Any) -> AsyncIterator[tuple[AsyncEngine, PassBarrier]]:
    """An AsyncEngine over an engine with a barrier; at the end, nothing is left of any request."""
    engine, barrier = with_barrier(open_at_once, **options)
    async with AsyncEngine(engine) as front:
        yield front, barrier
    assert_all_free(engine)


def llm_around(engine: Engine) -> LLM:
    llm = LLM.__new__(LLM)
    llm.engine, llm.config, llm._calls = engine, engine.config, SyncClient(engine)
    return llm


@contextmanager
def llm_behind_barrier(**options: Any) -> Iterator[tuple[LLM, PassBarrier]]:
    """An LLM whose passes wait to be let through; at the end, nothing is left of any request."""
    engine, barrier = with_barrier(open_at_once=False, **options)
    llm = llm_around(engine)
    yield llm, barrier
    assert not llm._calls._calls
    assert_all_free(engine)


def in_a_pass(llm: LLM, barrier: PassBarrier, prompt: list[int], params: SamplingParams) -> Worker:
    """A thread that calls `generate`, once it waits at the barrier in its first pass."""
    before = barrier.arrivals
    thread = Worker(llm.generate, prompt, params)
    until(lambda: barrier.arrivals > before, "a pass")
    return thread


def between_passes(engine: Engine, barrier: PassBarrier, function: Callable[..., T], *args: Any) -> T:
    """Call a function that needs the engine lock while a pass waits at the barrier. Only that pass is let through."""

    def let_through() -> None:
        until(lambda: someone_waits(engine), "somebody who waits for the engine lock")
        barrier.let_one_through()

    until(
        lambda: barrier.arrivals > barrier.passes, "a pass at the barrier"
    )  # else the engine's thread may be who waits
    letting = Worker(let_through)
    result = function(*args)
    letting.result()
    return result


async def arrival(barrier: PassBarrier, number: int) -> None:
    """Until the engine's thread waits at the barrier in its pass of that number."""
    await until_async(lambda: barrier.arrivals >= number, f"pass {number}")


def following(token: int, count: int) -> list[int]:
    return [(token + 1 + i) % V for i in range(count)]


async def idle(engine: AsyncEngine) -> None:
    """Until nothing is left to do. Each `stats` is answered between two steps."""
    while (stats := await engine.stats()).running or stats.waiting:
        pass
