"""ByHand: which thread drives an engine by hand, with `add_request` and `step`."""

import threading

from nanoinfer.engine.step_guard import StepGuard
from nanoinfer.requests.open_requests import OpenRequests
from nanoinfer.threads.signals import uninterrupted

USE_INSTEAD = "call LLM.generate, chat or stream, from any thread, or use an AsyncEngine"


class ByHand:
    """One thread at a time drives the engine by hand, and steps it only while the engine's loop has no work."""

    def __init__(self, guard: StepGuard, open_requests: OpenRequests):
        self._guard, self._open = guard, open_requests
        self._driver: threading.Thread | None = None  # the last thread that drove it

    def check_step(self) -> None:
        """In the turn of a step: RuntimeError while the loop has work, unless the step is its own; or as in `check`."""
        loop = self._guard.loop
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
        with self._guard.turns.visit():
            if self._open.ids() - self._guard.loop.request_ids():
                raise RuntimeError(
                    f"thread {driver.name!r} drives this engine by hand, and its requests have not ended: only one thread "
                    f"may do so. To share an engine between threads, {USE_INSTEAD}"
                )
