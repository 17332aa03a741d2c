"""MadeOnce: a value that takes long to make. It is made in a thread of its own, for all threads that want it."""

import os
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from nanoinfer.threads.cache_locks import new_cache_lock
from nanoinfer.threads.exit_gate import exit_gate
from nanoinfer.threads.signals import interruptible, uninterrupted

STACK_BYTES = 64 * 2**20  # of such a thread; only what is used of it takes memory
LOOK_S = 0.02  # whoever waits looks so often at the clock, and lets signal handlers run

T = TypeVar("T")
_starting = new_cache_lock()  # the size of stacks is a setting of the whole process


class Attempt(Protocol):
    """What can be given up: `stop` makes `run` end soon, or at once if it has not begun."""

    def run(self) -> None: ...

    def stop(self) -> None: ...


class Stopped(Exception):
    """Nobody waited for the value any more, or Python was about to exit."""


class Making(Generic[T]):
    """A thread that calls `make(self)`, and who waits for it."""

    def __init__(self, make: Callable[["Making[T]"], T]):
        self._make = make
        self._lock = new_cache_lock()
        self._process = os.getpid()
        self._attempt: Attempt | None = None  # what can be given up now
        self._is_unwanted = self._is_closed = False  # nobody waits any more; Python is about to exit
        self._results: list[T] = []  # at most one
        self.error: BaseException | None = None
        self.waiting = 0
        self.ended = threading.Event()

    def start(self) -> None:
        """Start the thread; if there can be none, that is the error."""
        thread = threading.Thread(target=self._run, name="nanoinfer-grammar", daemon=True)
        try:
            exit_gate.admit(thread)
            with _starting:
                before = threading.stack_size(STACK_BYTES)
                try:
                    thread.start()
                finally:
                    threading.stack_size(before)
        except BaseException as error:
            self.error = error
            self.ended.set()

    def _run(self) -> None:
        try:
            self._results.append(self._make(self))
        except BaseException as error:  # it is for those who wait
            self.error = error
        finally:
            self.ended.set()
            exit_gate.__exit__()

    @property
    def is_done(self) -> bool:
        """True when there is a result."""
        return bool(self._results) or self.error is not None

    @property
    def is_lost(self) -> bool:
        """True when no value will come of it."""
        return self.error is not None or (not self._results and self._process != os.getpid())

    @property
    def was_given_up(self) -> bool:
        """True when whoever waits now had better have it made again: the attempt was given up just before."""
        return isinstance(self.error, Stopped) and not self._is_closed

    def attempt(self, attempt: Attempt) -> None:
        """For `make`: run something that is given up when nobody waits any more. Stopped is raised then."""
        with self._lock:
            if self._is_unwanted:
                raise Stopped
            self._attempt = attempt
        exit_gate.before_closing(self._close)
        try:
            attempt.run()
        finally:
            with self._lock:
                self._attempt = None
        if self._is_unwanted:
            raise Stopped

    def stop(self) -> None:
        """Give up what is attempted, now or later. What cannot be given up goes on."""
        if self._process != os.getpid():
            return  # it is the attempt of the process that this one was forked from
        with self._lock:
            self._is_unwanted = True
            attempt = self._attempt
        if attempt is not None:
            attempt.stop()

    def _close(self) -> None:
        self._is_closed = True
        self.stop()

    def result(self) -> T:
        """What was made, or raised. Only once it has ended."""
        if self.error is not None:
            raise self.error
        return self._results[0]


class MadeOnce(Generic[T]):
    """A value that `make` makes when it is wanted for the first time. Threads that want it meanwhile wait for the same
    thread. If `make` raises, these raise the same, and whoever wants the value next has it made again.

    `clock` returns seconds.
    """

    def __init__(self, make: Callable[[Making[T]], T], clock: Callable[[], float] = time.monotonic):
        self._make, self._clock = make, clock
        self._lock = new_cache_lock()
        self._making: Making[T] | None = None

    def get(self, seconds: float) -> T:
        """The value. TimeoutError if it is not there in `seconds`; signal handlers run meanwhile, and may raise. When
        nobody waits any more, what is attempted is given up."""
        end = self._clock() + seconds
        making = self._wait(end)
        while making.was_given_up:
            making = self._wait(end)
        return making.result()

    def _wait(self, end: float) -> Making[T]:
        with uninterrupted():
            making = self._join()
            try:
                while not making.is_done:  # looked at first, as a forked process must not wait for what another has set
                    if self._clock() >= end:
                        raise TimeoutError
                    making.ended.wait(LOOK_S)
                    with interruptible():
                        pass
            finally:
                self._leave(making)
            return making

    def _join(self) -> Making[T]:
        new = Making(self._make)
        with self._lock:
            if self._making is None or self._making.is_lost:
                self._making = new
            making = self._making
            making.waiting += 1
        if making is new:
            making.start()
        return making

    def _leave(self, making: Making[T]) -> None:
        with self._lock:
            making.waiting -= 1
            is_last = not making.waiting
        if is_last:
            making.stop()
