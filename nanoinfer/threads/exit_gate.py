"""exit_gate: makes sure that no thread is inside compiled code when the interpreter ends.

If a daemon thread returns from C++ or Rust code while Python is shutting down, the system ends that thread in the middle
of code that does not expect it, and the whole process is aborted. (Python waits for all other threads before that.)
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from weakref import WeakMethod

from nanoinfer.threads.signals import uninterrupted

SECONDS_IN_ONE_WAIT = 1.0  # after such a wait, an exit function is assumed to wait for a thread at the closed gate
SECONDS_BETWEEN_LOOKS = 0.1


class ExitGate:
    """Threads enter it (`with exit_gate:`) to make passes and to tokenize.

    When Python exits, it first calls the methods that were given to `before_closing`. Then it waits until no thread is
    inside, lets only the main thread in, and calls the methods that were given to `after_closing`. Threads that come later
    wait, and end with the process. But while one of the user's exit functions waits for another thread (`join`,
    `Event.wait`, a queue, a future), they are let in.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[threading.Thread, int] = {}
        self._is_closed = False  # True: let no other thread in
        self._is_empty = False  # True: it is closed, and the threads that were inside have left
        self._wait_seen: tuple[object, float] | None = None  # where the main thread is waiting, and since when
        self._before_closing: list[WeakMethod[Callable[[], None]]] = []
        self._after_closing: list[WeakMethod[Callable[[], None]]] = []

    @uninterrupted()  # if a handler raised between taking and using the lock, the lock would stay taken forever
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

    @uninterrupted()
    def admit(self, thread: threading.Thread) -> None:
        """Let in a thread that is about to start and works for this one, which is inside. It leaves by `__exit__`."""
        with self._changed:
            self._inside[thread] = self._inside.get(thread, 0) + 1

    def before_closing(self, method: Callable[[], None]) -> None:
        """Call a bound method when Python exits, if its object still exists by then."""
        self._before_closing = [kept for kept in self._before_closing if kept() is not None]
        self._before_closing.append(WeakMethod(method))

    def after_closing(self, method: Callable[[], None]) -> None:
        """Call a bound method when Python exits and no thread is inside any more, if its object still exists by then."""
        self._after_closing = [kept for kept in self._after_closing if kept() is not None]
        self._after_closing.append(WeakMethod(method))

    def after_fork(self) -> None:
        """Forget all other threads and their locks: in a forked process only the current thread is left."""
        me = threading.current_thread()
        self._changed = threading.Condition()
        self._inside = {thread: times for thread, times in self._inside.items() if thread is me}

    def close(self) -> None:
        """Close the gate; Python calls this at exit."""
        for reference in self._before_closing:
            if (method := reference()) is not None:
                method()
        with self._changed:
            self._is_closed = True
            while self._others_are_inside():
                self._changed.wait()
            self._is_empty = True
        for reference in self._after_closing:
            if (method := reference()) is not None:
                method()

    def _exit_function_waits(self) -> bool:
        """True when the main thread has been in the same wait for a while. The time since the exit began says nothing,
        because on a busy machine exiting may take seconds."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        if not self._is_empty or frame is None or frame.f_globals["__name__"] != "threading":
            self._wait_seen = None  # `close` itself is waiting, or no function of `threading` is
            return False
        place, now = (frame.f_code, frame.f_lasti), time.monotonic()
        if self._wait_seen is None or self._wait_seen[0] != place:
            self._wait_seen = place, now
        return now - self._wait_seen[1] >= SECONDS_IN_ONE_WAIT

    @uninterrupted()  # if a handler raised in `Thread.is_alive`, Python would believe that the thread has ended
    def _others_are_inside(self) -> bool:
        return any(thread is not threading.main_thread() and thread.is_alive() for thread in self._inside)


exit_gate = ExitGate()
atexit.register(exit_gate.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=exit_gate.after_fork)
