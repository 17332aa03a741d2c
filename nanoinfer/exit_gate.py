"""exit_gate: no thread is in the middle of compiled code when the interpreter ends.

A daemon thread that comes back from C++ or Rust while Python is being taken down is ended by the system in the middle of
code that does not expect it, and the whole process is aborted. (Other threads have ended by then: Python waits for them.)
"""

import atexit
import os
import threading
from collections.abc import Callable
from weakref import WeakMethod

from nanoinfer.signals import uninterrupted

SECONDS_TO_EXIT = 1.0  # after which a thread that waits at the closed gate may assume that Python is not exiting yet


class ExitGate:
    """Threads pass through it (`with exit_gate:`) to make passes and to tokenize.

    When Python exits it first calls what was given to `before_closing`; then it waits until no thread is inside, and lets
    none in but the main thread. Those that come later wait, and end with the process. If it is still there after a second,
    an exit function of the user's waits for them: then the gate opens again.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[threading.Thread, int] = {}
        self._is_closed = False
        self._before_closing: list[WeakMethod[Callable[[], None]]] = []

    @uninterrupted()  # a handler that raises between taking and using the lock would leave it taken for ever
    def __enter__(self) -> None:
        me = threading.current_thread()
        with self._changed:
            while self._is_closed and me is not threading.main_thread() and me not in self._inside:
                in_time = self._changed.wait(SECONDS_TO_EXIT)
                self._is_closed = in_time or bool(self._inside)
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

    @uninterrupted()  # a handler that raises in `Thread.is_alive` would have Python believe that the thread has ended
    def _others_are_inside(self) -> bool:
        return any(thread is not threading.main_thread() and thread.is_alive() for thread in self._inside)


exit_gate = ExitGate()
atexit.register(exit_gate.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=exit_gate.after_fork)
