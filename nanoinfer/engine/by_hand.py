"""Who steps an engine: the thread that owns it, if there is one (Loop; see engine_loop.py), or one that does so by hand."""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from nanoinfer.requests.open_requests import OpenRequests
from nanoinfer.requests.outputs import RequestOutput
from nanoinfer.requests.request_group import Update, made
from nanoinfer.threads.signals import uninterrupted
from nanoinfer.threads.turns import Turns

USE_INSTEAD = "call LLM.generate, chat or stream, from any thread, or use an AsyncEngine"


class Loop(Protocol):
    """What owns an engine that requests reach through doors: an EngineLoop. All of it is called during a turn."""

    is_stepping: bool

    def has_work(self) -> bool:
        """True while a request of a door has something to do."""

    def request_ids(self) -> set[int]:
        """The requests of doors that have not ended. May be called at any time."""

    def deliver(self, updates: Sequence[Update]) -> list[RequestOutput]:
        """Hand out updates to the doors of their requests; returns the outputs of requests that were added by hand."""

    def wake(self) -> None:
        """Have it look whether there is work. May be called at any time."""


class NoLoop:
    """Of an engine that is only driven by hand."""

    is_stepping = False

    def has_work(self) -> bool:
        return False

    def request_ids(self) -> set[int]:
        return set()

    def deliver(self, updates: Sequence[Update]) -> list[RequestOutput]:
        return [made(update) for update in updates]

    def wake(self) -> None: ...


class ByHand:
    """One thread at a time drives the engine by hand, and steps it only while the engine's loop has no work."""

    def __init__(self, turns: Turns, loop: Callable[[], Loop], open_requests: OpenRequests):
        self._turns, self._loop, self._open = turns, loop, open_requests
        self._driver: threading.Thread | None = None  # the last thread that drove it

    def check_step(self) -> None:
        """In the turn of a step: RuntimeError while the loop has work, unless the step is its own; or as in `check`."""
        loop = self._loop()
        if loop.is_stepping:
            return
        if loop.has_work():
            raise RuntimeError(
                "this engine's own thread is serving requests of an LLM or an AsyncEngine, and steps the engine: wait "
                f"until they have ended. To have other requests served meanwhile, {USE_INSTEAD}"
            )
        self.check()

    def check(self) -> None:
        """Before this thread adds a request: RuntimeError when another thread has added some that have not ended."""
        if self._driver is not threading.current_thread():
            self._check_other(self._driver)
            self._driver = threading.current_thread()

    @uninterrupted()  # if a handler raised in `Thread.is_alive`, Python would believe that the thread has ended
    def _check_other(self, driver: threading.Thread | None) -> None:
        if driver is None or not driver.is_alive():
            return
        with self._turns.visit():
            if self._open.ids() - self._loop().request_ids():
                raise RuntimeError(
                    f"thread {driver.name!r} drives this engine by hand, and its requests have not ended: only one thread "
                    f"may do so. To share an engine between threads, {USE_INSTEAD}"
                )
