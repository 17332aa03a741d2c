"""Fetches of adapters that happen when a test says so, or when somebody waits for them: no threads."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Fetch(Future[Any]):
    """Work that is done by `run`, or by whoever waits for it."""

    def __init__(self, work: Callable[[], Any]):
        super().__init__()
        self._work = work

    def run(self) -> None:
        """Do it, unless it is done."""
        if self.done():
            return
        try:
            self.set_result(self._work())
        except Exception as error:
            self.set_exception(error)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.run()
        return super().exception(timeout)


class Fetches(Executor):
    """What has been submitted is in `waiting`."""

    def __init__(self) -> None:
        self.waiting: list[Fetch] = []

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        self.waiting.append(Fetch(lambda: function(*args, **kwargs)))
        return self.waiting[-1]

    def run_all(self) -> None:
        """Do all that is waiting."""
        while self.waiting:
            self.waiting.pop(0).run()
