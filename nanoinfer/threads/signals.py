"""Signals: keeps Python's signal handlers from interrupting bookkeeping.

Python may run a signal's handler between any two bytecodes. Suppose a handler raises (Ctrl-C's KeyboardInterrupt, or the
usual timeout by SIGALRM) between "the slot has left the request" and "the slot is in the tree". Then that slot is lost for
good, although someone who stops a notebook cell keeps using the same engine. So handlers wait while bookkeeping runs, and
run where most of the time is spent: while a call waits for its outputs or, in a step by hand, in the model's pass and in
sampling.
"""

import _signal  # type: ignore[import-not-found]  # its functions take a tenth of the time of those in `signal`
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# The signals that programs usually have handlers for. Handlers for others (faults, stopped children) are left alone.
_NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF", "SIGBREAK")
SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))

Handler = Callable[[int, FrameType | None], Any]


class _Shield:
    """Replaces every Python handler for a while. It notes signals that arrive, and passes them on when down or open."""

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._replaced: list[int] = []  # signals whose handler this shield replaces now
        self._held: dict[int, FrameType | None] = {}
        self.is_open = False  # True: handlers run as soon as their signals arrive
        self._is_down = False  # True: it is down for good

    def up(self) -> None:
        """Replace the handlers."""
        for number in SIGNALS:
            handler = _signal.getsignal(number)
            while isinstance(other := getattr(handler, "__self__", None), _Shield):
                handler = other._handlers[number]  # that shield is down; a handler raised before this one was restored
            if callable(handler):  # otherwise the signal is ignored, or handled by the system or outside Python
                self._handlers[number] = handler
                self._replaced.append(number)
                _signal.signal(number, self._arrived)

    def down(self) -> None:
        """Restore the handlers, then run those whose signal has arrived. When several raise, Python chains the errors.

        A restored handler may raise anywhere in here. Calling this method again completes what was cut short.
        """
        try:
            self._restore()
        finally:
            self._is_down = True
            self._run()

    def open(self) -> None:
        """Run the handlers whose signal has arrived. From now on, handlers run as soon as their signal arrives."""
        self._run()
        self.is_open = True

    @property
    def holds_any(self) -> bool:
        """True when a handler has to wait."""
        return bool(self._held)

    def _restore(self) -> None:
        """Restore all of them, even if one that is restored already raises in the meantime."""
        try:
            while self._replaced:
                number = self._replaced[-1]
                if _signal.getsignal(number) == self._arrived:  # otherwise a new handler was installed meanwhile
                    _signal.signal(number, self._handlers[number])
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
        if self._is_down:  # or nearly: a handler raised before this one was restored
            self._call(number, frame)
        elif self.is_open:
            self.is_open = False  # what it raises passes through bookkeeping, which no other handler may interrupt
            self._call(number, frame)
            self.open()
        else:
            self._held[number] = frame


_active: _Shield | None = None  # the shield that is up; there is one at most, since handlers belong to the process


def _concerned() -> bool:
    return threading.current_thread() is threading.main_thread()  # Python runs handlers only in this thread


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Make signal handlers wait until the block (or the decorated function) ends. May be nested; costs microseconds."""
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
            shield.down()  # again, because a handler may raise before the first call has begun


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside `uninterrupted`, let handlers run in this block; those whose signal has already arrived run first. When one
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


def handlers_wait() -> bool:
    """True in the main thread when a signal has arrived whose handler has to wait."""
    shield = _active
    return shield is not None and _concerned() and shield.holds_any


def raised_by_handler(error: BaseException) -> bool:
    """True when this exception was raised by a signal handler that had to wait or was let in. Then it is meant for the main
    thread, whatever that thread was doing.
    """
    traceback = error.__traceback__ if _concerned() else None
    while traceback is not None and traceback.tb_frame.f_code is not _Shield._call.__code__:
        traceback = traceback.tb_next
    return traceback is not None
