"""How tests wait: for a condition, never for an amount of time. `HANG_S` only ends what hangs."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

HANG_S = 120.0  # whoever waits so long waits for ever
PAUSE_S = 0.001  # between two looks

T = TypeVar("T")


def until(condition: Callable[[], T], what: str = "the condition") -> T:
    """Look again and again until `condition()` is true; returns what it returned."""
    end = time.monotonic() + HANG_S
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} never comes true"
        time.sleep(PAUSE_S)
    return value


async def until_async(condition: Callable[[], T], what: str = "the condition") -> T:
    """`until`, while the event loop goes on."""
    end = time.monotonic() + HANG_S
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} never comes true"
        await asyncio.sleep(PAUSE_S)
    return value


def run(test: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function in a new event loop; a test that hangs ends after `HANG_S`."""
    return asyncio.run(asyncio.wait_for(test(), timeout=HANG_S))


def someone_waits(engine: Any) -> bool:
    """True while a thread waits until the engine's current step ends: in line, or for a command of its own."""
    if engine.loop is not None and engine.loop._commands.qsize():
        return True
    if engine._line.acquire(blocking=False):
        engine._line.release()
        return False
    return True


class Paced:
    """A logits processor that waits in each pass after the first `passes`, until `open`. For `SamplingParams`."""

    def __init__(self, passes: int):
        self._permits = threading.Semaphore(passes)
        self._is_open = self.is_waiting = False

    def arrival(self) -> None:
        """Until a pass waits. Whoever wants a turn from then on waits as well."""
        until(lambda: self.is_waiting, "a pass that waits")

    def open(self) -> None:
        """Let all passes through from now on."""
        self._is_open = True
        self._permits.release()

    def __call__(self, token_ids: Any, logits: T) -> T:
        self.is_waiting = not self._is_open
        assert self._is_open or self._permits.acquire(timeout=HANG_S), "this pass is not let through"
        self.is_waiting = False
        return logits


class Worker(threading.Thread):
    """A thread that calls a function at once. `result()` returns what it returned, or raises what it raised."""

    def __init__(self, function: Callable[..., Any], *args: Any):
        super().__init__(daemon=True)
        self._function, self._args = function, args
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._function(*self._args)
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self.join(HANG_S)
        assert not self.is_alive(), "a thread hangs"
        if self._error is not None:
            raise self._error
        return self._result
