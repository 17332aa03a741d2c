"""AsyncEngines over a model that tests let through pass by pass, and how tests drive them."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import torch

from nanoinfer import AsyncEngine, Engine
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.layers.logits_processor import LogitsOutput
from tests.helpers.engines import V, make_engine


class Gate:
    """A model that waits before each pass until it is let through, so that tests decide what happens in between."""

    def __init__(self, model: Any, open_at_once: bool = True):
        self.model, self.passes = model, 0
        self._turns, self._is_open = threading.Semaphore(0), open_at_once
        self.error: BaseException | None = None
        self.error_at = 0

    def let_one_through(self) -> None:
        self._turns.release()

    def open(self) -> None:
        """Let all passes through from now on, also the one that waits."""
        self._is_open = True
        self._turns.release()

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor, input_metadata: InputMetadata) -> LogitsOutput:
        assert self._is_open or self._turns.acquire(timeout=30), "this pass is not let through"
        self.passes += 1
        if self.error is not None and self.passes == self.error_at:
            raise self.error
        return self.model(input_ids, positions, input_metadata)


def gated(open_at_once: bool = True, **options: Any) -> tuple[Engine, Gate]:
    engine = make_engine(**options)
    gate = Gate(engine.model_runner.model, open_at_once)
    engine.model_runner.model = gate
    return engine, gate


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine; nothing may take longer than half a minute."""
    asyncio.run(asyncio.wait_for(test(), timeout=30))


def following(token: int, count: int) -> list[int]:
    return [(token + 1 + i) % V for i in range(count)]


async def idle(engine: AsyncEngine) -> None:
    """Until nothing is left to do. Each `stats` is answered between two steps."""
    while (stats := await engine.stats()).running or stats.waiting:
        await asyncio.sleep(0)


def assert_all_free(engine: Engine) -> None:
    engine.check_integrity()
    stats = engine.stats()
    assert (stats.free_slots, stats.running, stats.waiting) == (stats.total_slots, 0, 0)
    assert engine.model_runner.req_to_token_pool.available_size() == engine.config.max_running_requests
