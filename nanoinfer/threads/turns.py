"""Turns: lets one thread at a time into an engine, in the order in which they come."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from weakref import WeakSet

from nanoinfer.threads import cache_locks  # noqa: F401 - before this module: at a fork, its locks are taken after all turns
from nanoinfer.threads.exit_gate import exit_gate
from nanoinfer.threads.signals import handlers_wait, interruptible, uninterrupted

# While the main thread waits, it looks this often whether a signal handler has to wait, and lets it run. (None runs inside
# `Condition.wait`, because a handler that raises there could leave the lock in an undefined state.)
SECONDS_BETWEEN_HANDLERS = 0.02

IN_PASS = "this engine is computing a pass: wait until it ends to serve, pause or abort requests, or to shut down"


class Turns:
    """The right to be in an engine. One thread at a time has the turn, and may take it again inside (`visit`).

    Each step takes a turn, and so does whoever adds or aborts requests, or looks. Signal handlers run while a thread waits
    for its turn, but not while it has it (`uninterrupted`).
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holder: threading.Thread | None = None
        self.waiting: deque[threading.Thread] = deque()  # threads that wait for a turn, in their order
        # Functions to call when a turn begins or ends. A dict without values, because C code can add to it (Calls.open).
        self.later: dict[Callable[[], object], object] = {}
        self.is_computing = False  # True during a pass, when its requests must not be changed
        self.after_fork: Callable[[], object] | None = None  # called in a forked process
        _all.add(self)

    @property
    def is_mine(self) -> bool:
        """True when this thread has the turn."""
        return self._holder is threading.current_thread()

    def check_between_passes(self) -> None:
        """RuntimeError in code that a pass calls, such as a logits processor. Call it during a visit."""
        if self.is_computing:
            raise RuntimeError(IN_PASS)

    @contextmanager
    def visit(self, let_handlers_in: bool = True) -> Iterator[None]:
        """Take a turn. If this thread already has it, this is part of it.

        `let_handlers_in`: signal handlers run while this thread waits for its turn; if one raises, the wait ends.
        """
        if self.is_mine:
            with uninterrupted():
                yield
            return
        with uninterrupted(), exit_gate:
            self._wait(let_handlers_in)
            try:
                self._do_later()
                yield
            finally:
                self._give_back()

    def soon(self, function: Callable[[], object]) -> None:
        """Call a function between two passes: now if no thread has the turn, else when the current turn ends.

        Never waits. Garbage collection may call this, and it can run anywhere, even during a turn of the same thread.
        """
        self.later[function] = None
        self._do_now()

    def _wait(self, let_handlers_in: bool) -> None:
        me = threading.current_thread()
        let_handlers_in &= me is threading.main_thread()  # no other thread runs them
        place = self.waiting.append
        while True:
            with self._changed:
                place(me)
                while not (is_first := self._holder is None and self.waiting[0] is me):
                    self._changed.wait(SECONDS_BETWEEN_HANDLERS if let_handlers_in else None)
                    if let_handlers_in and handlers_wait():
                        break
                self.waiting.remove(me)
                if is_first:
                    self._holder = me
                    return
                self._changed.notify_all()
            with interruptible():  # outside the queue, because a handler may need a turn itself, or wait for others
                pass
            place = self.waiting.appendleft  # the place that it had, or nearly: meanwhile, others may have had turns

    def _give_back(self) -> None:
        try:
            self._do_later()
        finally:
            with self._changed:
                self._holder = None
                self._changed.notify_all()
        self._do_now()  # for functions that were added after `_do_later` looked

    def _do_later(self) -> None:
        while self.later:
            function, _ = self.later.popitem()
            function()

    def _do_now(self) -> None:
        while self.later and exit_gate.lets_in():
            with uninterrupted(), exit_gate:
                with self._changed:
                    if self._holder is not None:
                        return  # it will be done when that turn ends
                    self._holder = threading.current_thread()
                self._give_back()


# A process is only forked between two passes of every engine, so that the new process finds complete bookkeeping.
_all: WeakSet[Turns] = WeakSet()
_at_fork: list[ExitStack] = []


def _before_fork() -> None:
    stack = ExitStack()
    for turns in list(_all):
        stack.enter_context(turns.visit(let_handlers_in=False))
    _at_fork.append(stack)


def _after_fork_in_parent() -> None:
    _at_fork.pop().close()


def _after_fork_in_child() -> None:
    """No other thread is left in the new process, so none waits, and none will read the results of its calls."""
    for turns in list(_all):
        turns._changed = threading.Condition()
        turns.waiting.clear()
    _at_fork.pop().close()
    for turns in list(_all):
        if turns.after_fork is not None:
            turns.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
