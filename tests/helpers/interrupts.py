"""A handler of signals that raises, for tests of what that leaves behind."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """What the handler raises: no Exception, as KeyboardInterrupt and the panics of Rust are none."""


@contextmanager
def raising(number: int, kind: type[BaseException] = Interrupted) -> Iterator[None]:
    """While the block runs, signal `number` raises `kind` (with the signal's name) in the main thread."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise kind(signal.Signals(number).name)

    before = signal.signal(number, handler)
    try:
        yield
        assert signal.getsignal(number) is handler, "a handler is left"
    finally:
        signal.signal(number, before)
