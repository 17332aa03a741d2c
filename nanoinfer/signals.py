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
from types import FrameType
from typing import Any

# The signals that programs put handlers on; a handler for anything else (a fault, a stopped child) has its own reasons.
_NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF", "SIGBREAK")
SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))

Handler = Callable[[int, FrameType | None], Any]


class _Shield:
    """Stands in for every Python handler. What arrives is noted, and passed on when the shield is taken down, or opened."""

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._replaced: list[int] = []  # signals whose handler this shield stands in for now
        self._held: dict[int, FrameType | None] = {}
        self.is_open = False  # handlers run as their signals arrive
        self._is_down = False  # for good

    def up(self) -> None:
        """Replace the handlers."""
        for number in SIGNALS:
            handler = signal.getsignal(number)
            while isinstance(other := getattr(handler, "__self__", None), _Shield):
                handler = other._handlers[number]  # that shield is down; handlers raised before this one was back
            if callable(handler):  # else it is ignored, the system's, or not Python's business
                self._handlers[number] = handler
                self._replaced.append(number)
                signal.signal(number, self._arrived)

    def down(self) -> None:
        """Restore the handlers, then run those whose signal has arrived. When several raise, Python chains the errors.

        A handler that is back may raise anywhere in here; to call this again completes what it has cut short.
        """
        try:
            self._restore()
        finally:
            self._is_down = True
            self._run()

    def open(self) -> None:
        """Run the handlers whose signal has arrived, and from now on the others at once."""
        self._run()
        self.is_open = True

    def _restore(self) -> None:
        """All of them: one that is back already may raise while the others are being restored."""
        try:
            while self._replaced:
                number = self._replaced[-1]
                if signal.getsignal(number) == self._arrived:  # else a new one was installed meanwhile
                    signal.signal(number, self._handlers[number])
                self._replaced.pop()
        finally:
            if self._replaced:
                self._restore()

    def _run(self) -> None:
        while self._held:
            try:
                self._call(*self._held.popitem())
            finally:
                self._run()

    def _call(self, number: int, frame: FrameType | None) -> None:
        self._handlers[number](number, frame)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self._is_down:  # or nearly: a handler has raised before this one was back
            self._call(number, frame)
        elif self.is_open:
            self.is_open = False  # what it raises goes through bookkeeping, and no other handler may cut that in two
            self._call(number, frame)
            self.open()
        else:
            self._held[number] = frame


_active: _Shield | None = None  # the one that is up: handlers belong to the process, so there is one at most


def _concerned() -> bool:
    return threading.current_thread() is threading.main_thread()  # Python runs handlers in this thread only


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Signal handlers wait until the block (or the decorated function) is done. May be nested; costs some microseconds."""
    global _active
    if not _concerned():
        yield
        return
    shield = _active
    if shield is not None:
        was_open, shield.is_open = shield.is_open, False
        try:
            yield
        finally:
            if was_open:
                shield.open()
        return
    shield = _Shield()
    try:
        shield.up()
        _active = shield
        yield
    finally:
        _active = None
        try:
            shield.down()
        finally:
            shield.down()  # a handler may raise before the first call has begun


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside `uninterrupted`: handlers run in this block, and those whose signal has arrived before run first. When one
    raises, the others wait again.
    """
    shield = _active
    if shield is None or not _concerned():
        yield
        return
    try:
        shield.open()
        yield
    finally:
        shield.is_open = False


def raised_by_handler(error: BaseException) -> bool:
    """Whether a signal handler that had to wait, or was let in, raised this exception: then it is for the main thread,
    whatever was going on there.
    """
    traceback = error.__traceback__ if _concerned() else None
    while traceback is not None and traceback.tb_frame.f_code is not _Shield._call.__code__:
        traceback = traceback.tb_next
    return traceback is not None
