"""A handler of signals that raises, and a model in which one does, for tests of what that leaves behind."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


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


class InterruptedModel:
    """The model, until its pass number `at`: then Ctrl-C."""

    def __init__(self, model: Any, at: int):
        self.model, self.left = model, at

    def __call__(self, *args: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return self.model(*args)
