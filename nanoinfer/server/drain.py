"""Drain: how a server ends without losing a request."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nanoinfer.server.errors import shut_down


@dataclass(eq=False)
class _Served:
    task: asyncio.Task[Any] | None
    has_begun: Callable[[], bool]
    is_ended: bool = False


class Drain:
    """Counts the requests that are being served. After `begin`, newcomers are refused, and `wait` waits for the others.
    `end` ends those for which nothing is generated yet: their bodies are still coming, or they are being prepared."""

    def __init__(self) -> None:
        self.is_draining = False
        self._inside: set[_Served] = set()

    @property
    def serving(self) -> int:
        """How many requests are being served."""
        return len(self._inside)

    def begin(self) -> None:
        """Refuse newcomers from now on."""
        self.is_draining = True

    @contextmanager
    def inside(self, has_begun: Callable[[], bool]) -> Iterator[None]:
        """Serve a request. ApiError (503) when the server is ending, or when `end` has ended the request. `has_begun`:
        whether it has an answer, or one in the making."""
        if self.is_draining:
            raise shut_down()
        served = _Served(asyncio.current_task(), has_begun)
        self._inside.add(served)
        try:
            yield
        except asyncio.CancelledError:
            if not served.is_ended or served.task is None:
                raise
            served.task.uncancel()
            raise shut_down() from None
        finally:
            self._inside.remove(served)

    def end(self) -> None:
        """End the requests that have not begun (`Service.close_all` ends the others)."""
        for served in self._inside:
            if served.task is not None and not served.is_ended and not served.has_begun():
                served.is_ended = True
                served.task.cancel()

    async def wait(self, timeout_s: float) -> bool:
        """Wait until no request is being served. False if that takes longer than `timeout_s`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while self._inside:
            if loop.time() >= end:
                return False
            await asyncio.sleep(0.02)
        return True
