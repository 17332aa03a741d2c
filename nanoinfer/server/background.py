"""Runs what may take long, or never return, in a thread of its own: chat templates, tokenizers, compilers of grammars."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar
from weakref import WeakKeyDictionary

from nanoinfer.server.errors import NO_RETRY, ApiError

T = TypeVar("T")


class Background:
    """At most `at_once` threads at the same time per event loop, since more would only compete. A caller waits for one at
    most `timeout_s`. A thread that takes longer than that is given up, but counts until it ends: those that hang cannot
    pile up."""

    def __init__(self, timeout_s: float, at_once: int):
        self._timeout_s, self._at_once = timeout_s, at_once
        self._permits: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def call(self, function: Callable[[], T], what: str) -> T:
        """Call `function` and return or raise what it does. ApiError: 503 when all threads have been busy for `timeout_s`,
        500 when its own has, which is left alone."""
        loop = asyncio.get_running_loop()
        permits = self._permits.setdefault(loop, asyncio.Semaphore(self._at_once))
        try:
            async with asyncio.timeout(self._timeout_s):
                await permits.acquire()
        except TimeoutError:
            raise ApiError(503, f"{what} is busy with other requests: send it again later", code="overloaded") from None
        future: Future[T] = Future()

        def run() -> None:
            try:
                _run(function, future)
            finally:
                with suppress(RuntimeError):  # the event loop has ended
                    loop.call_soon_threadsafe(permits.release)

        try:
            threading.Thread(target=run, name=f"nanoinfer-{what}", daemon=True).start()
        except BaseException:
            permits.release()
            raise
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise ApiError(
                500,
                f"{what} took longer than preparation_timeout_s={self._timeout_s:g} seconds",
                code="preparation_timeout",
                headers=NO_RETRY,
            ) from None


def _run(function: Callable[[], T], future: "Future[T]") -> None:
    try:
        result = function()
    except BaseException as error:  # raised where it is awaited
        if future.set_running_or_notify_cancel():
            future.set_exception(error)
    else:
        if future.set_running_or_notify_cancel():
            future.set_result(result)
