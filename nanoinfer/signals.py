"""Signals: bookkeeping that no Python signal handler cuts in two.

Python runs a signal's handler between any two bytecodes. A handler that raises (Ctrl-C's KeyboardInterrupt, the usual
timeout by SIGALRM) between "the slot has left the request" and "the slot is in the tree" would lose that slot for good,
and the user of a notebook who stops a cell goes on with the same engine. So handlers wait while bookkeeping runs, and
get in where the time goes: in the model's pass and in sampling.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType, FrameType
from typing import Any

# The signals that programs put handlers on; a handler for anything else (a fault, a stopped child) has its own reasons.
_NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF", "SIGBREAK")
SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))

Handler = Callable[[int, FrameType | None], Any]


class _Shield:
    """Stands in for every Python handler, notes what arrives, and passes it on when it is taken down."""

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._held: dict[int, FrameType | None] = {}
        self.closed = False  # down for good

    def up(self) -> None:
        """Replace the handlers. One that raises meanwhile does not keep the others from being replaced."""
        error: BaseException | None = None
        for number in SIGNALS:
            try:
                handler = signal.getsignal(number)
                if callable(handler):  # else it is ignored, the system's, or not Python's business
                    self._handlers[number] = handler
                    signal.signal(number, self._hold)
            except BaseException as raised:
                error = raised
        if error is not None:
            raise error

    def down(self) -> None:
        """Restore the handlers, then run those whose signal has arrived. When several raise, Python chains the errors."""
        handlers = dict(self._handlers)
        try:
            self._restore()
        finally:
            self._run(handlers)

    def _restore(self) -> None:
        """All of them: one that is back already may raise while the others are being restored."""
        try:
            while self._handlers:
                number, handler = next(iter(self._handlers.items()))
                signal.signal(number, handler)
                del self._handlers[number]
        finally:
            if self._handlers:
                self._restore()

    def _run(self, handlers: dict[int, Handler]) -> None:
        while self._held:
            number, frame = self._held.popitem()
            try:
                handlers[number](number, frame)
            finally:
                self._run(handlers)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._held[number] = frame


_active: _Shield | None = None  # the one that is up: handlers belong to the process, so there is one at most


def _concerned() -> bool:
    return threading.current_thread() is threading.main_thread()  # Python runs handlers in this thread only


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Signal handlers wait until the block (or the decorated function) is done. May be nested; costs some microseconds."""
    global _active
    if _active is not None or not _concerned():
        yield
        return
    shield = _Shield()
    try:
        shield.up()
        _active = shield
        yield
    finally:
        _active = None
        shield.closed = True
        shield.down()


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside `uninterrupted`: handlers run in this block, and those whose signal has arrived before run first."""
    global _active
    shield = _active
    if shield is None or not _concerned():
        yield
        return
    try:
        _active = None
        shield.down()
        yield
    finally:
        # A handler that raises as the block is entered leaves this generator behind, to be closed at any later time.
        if not shield.closed:
            shield.up()
            _active = shield


def raised_by_handler(error: BaseException) -> bool:
    """Whether a signal handler raised this exception, as far as its traceback shows: then it is for the main thread,
    whatever was going on there. (That of Ctrl-C is written in C and leaves no frame, only its KeyboardInterrupt.)
    """
    if not _concerned():
        return False
    codes = {code for number in SIGNALS if (code := _code_of(signal.getsignal(number))) is not None}
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code not in codes:
        traceback = traceback.tb_next
    return traceback is not None or isinstance(error, KeyboardInterrupt)


def _code_of(handler: Any) -> CodeType | None:
    """The code that runs first when `handler` is called, if it is written in Python."""
    while isinstance(handler, partial):
        handler = handler.func
    if callable(handler) and not hasattr(handler, "__code__"):
        handler = getattr(handler, "__func__", type(handler).__call__)
    return getattr(handler, "__code__", None)
