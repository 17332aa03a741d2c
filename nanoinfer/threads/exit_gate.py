"""exit_gate: makes sure that no thread is inside compiled code when the interpreter ends.

If a daemon thread returns from C++ or Rust code while Python is shutting down, the system ends that thread in the middle
of code that does not expect it, and the whole process is aborted. (Python waits for all other threads before that.)
"""

import atexit
import os
import threading
from collections.abc import Callable
from weakref import WeakMethod

from nanoinfer.threads.signals import uninterrupted


class ExitGate:
    """Threads enter it (`with exit_gate:`) to make passes and to tokenize.

    When Python exits, it first calls the methods that were given to `before_closing`, which end every engine's loop. Then
    it waits until no thread is inside, lets only the main thread in, and calls the methods that were given to
    `after_closing`. Other threads that come later end, by a SystemExit.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[threading.Thread, int] = {}
        self.is_closing = False  # True: Python exits
        self.is_closed = False  # True: no other thread is let in
        self._kept: list[
            Callable[[], None]
        ] = []  # or another thread could free, while Python exits, what the last one used
        self._before_closing: list[WeakMethod[Callable[[], None]]] = []
        self._after_closing: list[WeakMethod[Callable[[], None]]] = []

    def lets_call(self) -> bool:
        """False in a thread that begins a call when Python is exiting."""
        return not self.is_closing or threading.current_thread() is threading.main_thread()

    def lets_in(self) -> bool:
        """False in a thread that comes too late."""
        me = threading.current_thread()
        return not self.is_closed or me is threading.main_thread() or me in self._inside

    @uninterrupted()  # if a handler raised between taking and using the lock, the lock would stay taken forever
    def __enter__(self) -> None:
        me = threading.current_thread()
        with self._changed:
            if not self.lets_in():
                raise SystemExit("Python is exiting")
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

    @uninterrupted()
    def before_closing(self, method: Callable[[], None]) -> None:
        """Call a bound method when Python exits, if its object still exists by then."""
        with self._changed:
            self._before_closing = [kept for kept in self._before_closing if kept() is not None]
            self._before_closing.append(WeakMethod(method))

    @uninterrupted()
    def after_closing(self, method: Callable[[], None]) -> None:
        """Call a bound method when Python exits and no thread is inside any more, if its object still exists by then."""
        with self._changed:
            self._after_closing = [kept for kept in self._after_closing if kept() is not None]
            self._after_closing.append(WeakMethod(method))

    def after_fork(self) -> None:
        """Forget all other threads and their locks: in a forked process only the current thread is left."""
        me = threading.current_thread()
        self._changed = threading.Condition()
        self._inside = {thread: times for thread, times in self._inside.items() if thread is me}

    def close(self) -> None:
        """Close the gate; Python calls this at exit."""
        self.is_closing = True
        self._kept = [method for reference in list(self._before_closing) if (method := reference()) is not None]
        for method in self._kept:
            method()
        with self._changed:
            self.is_closed = True
            while self._others_are_inside():
                self._changed.wait()
        for reference in self._after_closing:
            if (method := reference()) is not None:
                method()

    @uninterrupted()  # if a handler raised in `Thread.is_alive`, Python would believe that the thread has ended
    def _others_are_inside(self) -> bool:
        return any(thread is not threading.main_thread() and thread.is_alive() for thread in self._inside)


exit_gate = ExitGate()
atexit.register(exit_gate.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=exit_gate.after_fork)
