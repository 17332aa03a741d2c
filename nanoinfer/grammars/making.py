"""MadeOnce: a value that takes long to make. It is made in a thread of its own, for all threads that want it."""

import os
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

STACK_BYTES = 64 * 2**20  # of such a thread; only what is used of it takes memory
LOOK_S = 0.02  # whoever waits looks so often at the clock, and lets signal handlers run

T = TypeVar("T")
_starting = threading.RLock()  # the size of stacks is a setting of the whole process


class _Making(Generic[T]):
    """A thread that calls `make`."""

    def __init__(self, make: Callable[[], T]):
        self._make, self._process = make, os.getpid()
        self._results: list[T] = []  # at most one
        self._error: BaseException | None = None
        self.ended = threading.Event()

    def start(self) -> None:
        """Start the thread; if there can be none, that is the error."""
        thread = threading.Thread(target=self._run, name="nanoinfer-grammar", daemon=True)
        try:
            with _starting:
                before = threading.stack_size(STACK_BYTES)
                try:
                    thread.start()
                finally:
                    threading.stack_size(before)
        except BaseException as error:
            self._error = error
            self.ended.set()

    def _run(self) -> None:
        try:
            self._results.append(self._make())
        except BaseException as error:  # it is for those who wait
            self._error = error
        finally:
            self.ended.set()

    @property
    def is_done(self) -> bool:
        """True when there is a result. (A forked process must not wait for the event, which another process sets.)"""
        return bool(self._results) or self._error is not None

    @property
    def is_lost(self) -> bool:
        """True when no value will come of it."""
        return self._error is not None or (not self._results and self._process != os.getpid())

    def result(self) -> T:
        """What was made, or raised. Only once it is done."""
        if self._error is not None:
            raise self._error
        return self._results[0]


class MadeOnce(Generic[T]):
    """A value that `make` makes when it is wanted for the first time. Threads that want it meanwhile wait for the same
    thread. If `make` raises, these raise the same, and whoever wants the value next has it made again.

    `clock` returns seconds.
    """

    def __init__(self, make: Callable[[], T], clock: Callable[[], float] = time.monotonic):
        self._make, self._clock = make, clock
        self._lock = threading.RLock()
        self._making: _Making[T] | None = None

    def get(self, seconds: float) -> T:
        """The value. TimeoutError if it is not there in `seconds`; signal handlers run meanwhile, and may raise."""
        end = self._clock() + seconds
        making = self._join()
        while not making.is_done:
            if self._clock() >= end:
                raise TimeoutError
            making.ended.wait(LOOK_S)
        return making.result()

    def _join(self) -> _Making[T]:
        new = _Making(self._make)
        with self._lock:
            if self._making is None or self._making.is_lost:
                self._making = new
            making = self._making
        if making is new:
            making.start()
        return making
