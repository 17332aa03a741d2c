"""Stalls: notices when this process did not get to run, so that what was measured meanwhile is worth nothing."""

import asyncio
import time
from types import TracebackType

TICK_S = 0.02
STALL_S = 1.0  # after which a measurement is made again
ATTEMPTS = 3


class Stalls:
    """While `with Stalls() as stalls` runs in a coroutine, `longest` is the longest time without its turn, in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._watch: asyncio.Task[None] | None = None

    def __enter__(self) -> "Stalls":
        self._watch = asyncio.ensure_future(self._look())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._watch is not None
        self._watch.cancel()

    async def _look(self) -> None:
        before = time.perf_counter()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.perf_counter()
            self.longest, before = max(self.longest, now - before - TICK_S), now
