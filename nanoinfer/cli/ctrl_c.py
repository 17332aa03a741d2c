"""What Ctrl-C does in a conversation: it stops what takes long, and nothing else."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType


class CtrlC:
    """While this is open (`with CtrlC() as ctrl_c`), Ctrl-C raises KeyboardInterrupt inside `ctrl_c.stops()`, once per
    block, and does nothing elsewhere. A second Ctrl-C therefore does not interrupt the cleanup after an answer.

    Like all signal handlers, it is for the main thread only. If Python does not handle SIGINT (the process ignores it),
    nothing changes.
    """

    def __init__(self) -> None:
        self._armed = False

    def __enter__(self) -> "CtrlC":
        self._before = signal.getsignal(signal.SIGINT)
        if callable(self._before):
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if callable(self._before):
            signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def stops(self) -> Iterator[None]:
        """A block that Ctrl-C ends with KeyboardInterrupt."""
        try:
            self._armed = True
            yield
        finally:
            self._armed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt
