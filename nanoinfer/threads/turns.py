"""Turns: lets one thread at a time into an engine, and decides which thread may step it by hand."""

import os
import threading
from collections.abc import Callable, Collection, Container, Iterator
from contextlib import ExitStack, contextmanager
from weakref import WeakSet

from nanoinfer.threads import cache_locks  # noqa: F401 - before this module: at a fork, its locks are taken after all turns
from nanoinfer.threads.exit_gate import exit_gate
from nanoinfer.threads.signals import interruptible, uninterrupted

# While the main thread waits, it lets signal handlers run this often. (None runs inside `Condition.wait`, because a handler
# that raises there could leave the lock in an undefined state.)
SECONDS_BETWEEN_HANDLERS = 0.02

USE_INSTEAD = "call LLM.generate, chat or stream, from any thread, or use an AsyncEngine"
IN_PASS = "this engine is computing a pass: wait until it ends to serve, pause or abort requests, or to shut down"


class Turns:
    """The right to be in an engine. One thread at a time has the turn, and may take it again inside.

    A thread takes a turn for a step, or for a visit between two steps: to add or abort requests, or to look. Neither kind
    starves the other: threads that wait for a visit when a step ends come before the next step, and threads that come later
    come after it. Signal handlers run while a thread waits, but not while it has the turn (`uninterrupted`).
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holder: threading.Thread | None = None
        self._steppers = self._visitors = 0  # how many threads wait for a step, and how many for a visit
        self._before_step = 0  # how many visits come before the next step
        # Functions to call when a turn begins or ends. A dict without values, because C code can add to it (Calls.open).
        self.later: dict[Callable[[], object], object] = {}
        self._by_hand: threading.Thread | None = None  # the last thread that drove the engine by hand
        self.taken_by: str | None = None  # what has this engine to itself, if anything does
        self.callers: dict[int, threading.Thread] = {}  # by request id: the thread whose call of an LLM made it
        self.pausers: dict[int, threading.Thread] = {}  # by request id: the thread that paused it
        self.is_computing = False  # True during a pass, when its requests must not be changed
        self.after_fork: Callable[[], object] | None = None  # called in a forked process
        _all.add(self)

    @property
    def is_mine(self) -> bool:
        """True when this thread has the turn."""
        return self._holder is threading.current_thread()

    def check_between_passes(self) -> None:
        """RuntimeError in code that a pass calls (a logits processor, a signal handler). Call it during a visit."""
        if self.is_computing:
            raise RuntimeError(IN_PASS)

    @contextmanager
    def visit(self, let_handlers_in: bool = True) -> Iterator[None]:
        """Take a turn between two passes. If this thread already has the turn, this is part of it.

        `let_handlers_in`: signal handlers run while this thread waits for its turn; if one raises, the wait ends.
        """
        if self.is_mine:
            with uninterrupted():
                yield
            return
        with uninterrupted(), exit_gate:
            self._wait(self._may_visit, self._count_visitor, let_handlers_in)
            try:
                self._do_later()
                yield
            finally:
                self._give_back()

    @contextmanager
    def step_unless(self, done: Callable[[], bool]) -> Iterator[bool]:
        """Wait for a turn to step, or until `done()`. Yields True if this thread has the turn.

        `done` may be called while another thread has its turn, so it must not read anything that passes change.
        """
        if self.is_mine:
            raise RuntimeError(IN_PASS)  # a step inside a step
        with uninterrupted(), exit_gate:
            self._wait(lambda: done() or self._may_step(), self._count_stepper)
            try:
                if self.is_mine:
                    self._do_later()
                yield self.is_mine
            finally:
                if self.is_mine:
                    self._before_step = self._visitors
                    self._give_back()

    def soon(self, function: Callable[[], object]) -> None:
        """Call a function between two passes: now if no thread has the turn, else when the current turn ends.

        Never waits. Garbage collection may call this, and it can run anywhere, even during a turn of the same thread.
        """
        self.later[function] = None
        self._do_now()

    def reserve(self, name: str, request_ids: Callable[[], Collection[int]]) -> None:
        """Give `name` this engine to itself, until `taken_by` is None again. ValueError when something else already has it,
        or when requests are unfinished."""
        with self.visit():
            if self.taken_by is not None:
                raise ValueError(f"llm: {self.taken_by} is already using its engine")
            if request_ids():
                raise ValueError("llm: its engine has unfinished requests, whose outputs would be lost")
            self.taken_by = name

    def note_pause(self, request_id: int, open_ids: Container[int]) -> None:
        """Note that this thread has paused a request, and forget paused requests that have ended."""
        self.pausers = {i: thread for i, thread in self.pausers.items() if i in open_ids}
        self.pausers[request_id] = threading.current_thread()

    def others_may_resume(self, open_ids: Container[int]) -> bool:
        """True when another thread has paused one of these requests, so this thread may wait for it to be resumed."""
        me = threading.current_thread()
        return any(i in open_ids and thread is not me for i, thread in self.pausers.items())

    def drive(self, request_ids: Callable[[], Collection[int]], step: bool) -> None:
        """Check that this thread may drive the engine by hand: add a request or, with `step`, make a pass.

        RuntimeError when something else has the engine to itself, when other threads wait for an LLM's calls, or when
        another thread drives the engine and has requests among `request_ids()`, the unfinished ones.
        """
        me = threading.current_thread()
        is_as_before = self._by_hand is me and not self.callers and self.taken_by is None
        if self._holder is not me and not is_as_before:
            self._check_driver(me, request_ids, step)
            self._by_hand = me

    @uninterrupted()  # if a handler raised in `Thread.is_alive`, Python would believe that the thread has ended
    def _check_driver(self, me: threading.Thread, request_ids: Callable[[], Collection[int]], step: bool) -> None:
        last = self._by_hand
        if self.taken_by is not None:
            raise RuntimeError(f"{self.taken_by} is using this engine: call its methods instead")
        if step and any(thread is not me and thread.is_alive() for thread in list(self.callers.values())):
            raise RuntimeError(f"other threads are waiting for an LLM's calls, which step this engine: {USE_INSTEAD}")
        if not (last is None or last is me) and last.is_alive() and any(i not in self.callers for i in request_ids()):
            raise RuntimeError(
                f"thread {last.name!r} drives this engine by hand, and its requests have not ended: only one thread may "
                f"do so. To share an engine between threads, {USE_INSTEAD}"
            )

    def _may_visit(self) -> bool:
        return (self._before_step > 0 or not self._steppers) and self._take()

    def _may_step(self) -> bool:
        return not self._before_step and self._take()

    def _take(self) -> bool:
        """Take the turn, unless another thread has it."""
        if self._holder is None:
            self._holder = threading.current_thread()
        return self.is_mine

    def _count_visitor(self, change: int) -> None:
        self._visitors += change
        self._before_step = min(self._before_step, self._visitors)

    def _count_stepper(self, change: int) -> None:
        self._steppers += change

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
        while self.later:
            with uninterrupted(), exit_gate:
                with self._changed:
                    if self.is_mine or not self._take():
                        return  # it will be done when that turn ends
                self._give_back()

    def _wait(self, ready: Callable[[], bool], count: Callable[[int], None], let_handlers_in: bool = True) -> None:
        """Wait until `ready()`, which is called while no turn can begin or end.

        `count(1)` is called when this thread begins to wait, and `count(-1)` when it stops. It does not count as waiting
        while it runs signal handlers, because a handler may need a turn itself.
        """
        let_handlers_in &= threading.current_thread() is threading.main_thread()  # no other thread runs them
        is_ready = False
        while not is_ready:
            with self._changed:
                count(1)
                while not (is_ready := ready()):
                    if not self._changed.wait(SECONDS_BETWEEN_HANDLERS if let_handlers_in else None):
                        break
                count(-1)
                if not self.is_mine:  # otherwise they are notified when the turn is given back
                    self._changed.notify_all()
            if let_handlers_in and not is_ready:
                self.let_handlers_in()

    def let_handlers_in(self, seconds: float = 0.0) -> None:
        """Wait `seconds` without the turn, then run the signal handlers that have had to wait."""
        if seconds:
            with self._changed:
                self._changed.wait(seconds)
        with interruptible():
            pass


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
        turns._steppers = turns._visitors = turns._before_step = 0
    _at_fork.pop().close()
    for turns in list(_all):
        if turns.after_fork is not None:
            turns.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
