"""exit_gate: no thread is in the middle of compiled code when the interpreter ends.

A daemon thread that comes back from C++ or Rust while Python is being taken down is ended by the system in the middle of
code that does not expect it, and the whole process is aborted. (Other threads have ended by then: Python waits for them.)
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from weakref import WeakMethod

from nanoinfer.signals import uninterrupted

SECONDS_IN_ONE_WAIT = 1.0  # after which an exit function is taken to wait for a thread that waits at the closed gate
SECONDS_BETWEEN_LOOKS = 0.1


class ExitGate:
    """Threads pass through it (`with exit_gate:`) to make passes and to tokenize.

    When Python exits it first calls what was given to `before_closing`; then it waits until no thread is inside, and lets
    none in but the main thread. Those that come later wait, and end with the process. But where an exit function of the
    user's waits for another thread (`join`, `Event.wait`, a queue, a future), they go on for as long as that wait lasts.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[threading.Thread, int] = {}
        self._is_closed = False  # let no thread in
        self._is_empty = False  # closed, and those that were inside have left
        self._wait_seen: tuple[object, float] | None = None  # where the main thread waits, and since when
        self._before_closing: list[WeakMethod[Callable[[], None]]] = []

    @uninterrupted()  # a handler that raises between taking and using the lock would leave it taken for ever
    def __enter__(self) -> None:
        me = threading.current_thread()
        with self._changed:
            while self._is_closed and me is not threading.main_thread() and me not in self._inside:
                if self._exit_function_waits():
                    break
                self._changed.wait(SECONDS_BETWEEN_LOOKS)
            self._inside[me] = self._inside.get(me, 0) + 1

    @uninterrupted()
    def __exit__(self, *exc_info: object) -> None:
        me = threading.current_thread()
        with self._changed:
            self._inside[me] -= 1
            if not self._inside[me]:
                del self._inside[me]
                self._changed.notify_all()

    def before_closing(self, method: Callable[[], None]) -> None:
        """Call a bound method when Python exits, if its object still exists then."""
        self._before_closing = [kept for kept in self._before_closing if kept() is not None]
        self._before_closing.append(WeakMethod(method))

    def after_fork(self) -> None:
        """A new process: no other thread is left in it, whatever locks they had."""
        me = threading.current_thread()
        self._changed = threading.Condition()
        self._inside = {thread: times for thread, times in self._inside.items() if thread is me}

    def close(self) -> None:
        """What happens at exit."""
        for reference in self._before_closing:
            if (method := reference()) is not None:
                method()
        with self._changed:
            self._is_closed = True
            while self._others_are_inside():
                self._changed.wait()
            self._is_empty = True

    def _exit_function_waits(self) -> bool:
        """Whether the main thread has been in one and the same wait for a while. How long it takes to exit says nothing:
        on a busy machine that may be seconds."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        if not self._is_empty or frame is None or frame.f_globals["__name__"] != "threading":
            self._wait_seen = None  # `close` waits, or no function of `threading` does
            return False
        place, now = (frame.f_code, frame.f_lasti), time.monotonic()
        if self._wait_seen is None or self._wait_seen[0] != place:
            self._wait_seen = place, now
        return now - self._wait_seen[1] >= SECONDS_IN_ONE_WAIT

    @uninterrupted()  # a handler that raises in `Thread.is_alive` would have Python believe that the thread has ended
    def _others_are_inside(self) -> bool:
        return any(thread is not threading.main_thread() and thread.is_alive() for thread in self._inside)


exit_gate = ExitGate()
atexit.register(exit_gate.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=exit_gate.after_fork)
