"""Engines over a model that tests let through pass by pass; LLMs and AsyncEngines around them."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from nanoinfer import LLM, AsyncEngine, Engine, SamplingParams
from nanoinfer.engine.calls import Calls
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.layers.logits_processor import LogitsOutput
from tests.helpers.engines import V, make_engine
from tests.helpers.engines import assert_all_free as assert_all_free
from tests.helpers.waiting import HANG_S, Worker, someone_waits, until, until_async
from tests.helpers.waiting import run as run

T = TypeVar("T")


class Gate:
    """A model that waits before each pass until it is let through, so that tests decide what happens in between.

    `arrivals` counts the passes that have come to the gate, `passes` those that went through.
    """

    def __init__(self, model: Any, open_at_once: bool = True):
        self.model, self.passes, self.arrivals = model, 0, 0
        self._turns, self._is_open = threading.Semaphore(0), open_at_once
        self.error: BaseException | None = None
        self.error_at = 0

    def let_one_through(self) -> None:
        self._turns.release()

    def open(self) -> None:
        """Let all passes through from now on, also the one that waits."""
        self._is_open = True
        self._turns.release()

    def close(self) -> None:
        """Of a gate that has been open from the beginning."""
        self._is_open = False

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor, input_metadata: InputMetadata) -> LogitsOutput:
        self.arrivals += 1
        assert self._is_open or self._turns.acquire(timeout=HANG_S), "this pass is not let through"
        self.passes += 1
        if self.error is not None and self.passes == self.error_at:
            raise self.error
        return self.model(input_ids, positions, input_metadata)


def gated(open_at_once: bool = True, **options: Any) -> tuple[Engine, Gate]:
    engine = make_engine(**options)
    gate = Gate(engine.model_runner.model, open_at_once)
    engine.model_runner.model = gate
    return engine, gate


def llm_around(engine: Engine) -> LLM:
    llm = LLM.__new__(LLM)
    llm.engine, llm.config, llm._calls = engine, engine.config, Calls(engine)
    return llm


def in_a_pass(llm: LLM, gate: Gate, prompt: list[int], params: SamplingParams) -> Worker:
    """A thread that calls `generate`, once it waits at the gate in its first pass."""
    before = gate.arrivals
    thread = Worker(llm.generate, prompt, params)
    until(lambda: gate.arrivals > before, "a pass")
    return thread


def between_passes(engine: Engine, gate: Gate, function: Callable[..., T], *args: Any) -> T:
    """Call a function that needs a turn, here, while a pass waits at the gate. That pass is let through, and no other."""

    def let_through() -> None:
        until(lambda: someone_waits(engine), "somebody who waits for a turn")
        gate.let_one_through()

    until(lambda: gate.arrivals > gate.passes, "a pass at the gate")  # else the engine's thread may be who waits
    letting = Worker(let_through)
    result = function(*args)
    letting.result()
    return result


async def arrival(gate: Gate, number: int) -> None:
    """Until the engine's thread waits at the gate in its pass of that number."""
    await until_async(lambda: gate.arrivals >= number, f"pass {number}")


def following(token: int, count: int) -> list[int]:
    return [(token + 1 + i) % V for i in range(count)]


async def idle(engine: AsyncEngine) -> None:
    """Until nothing is left to do. Each `stats` is answered between two steps."""
    while (stats := await engine.stats()).running or stats.waiting:
        pass
