"""uninterrupted: bookkeeping that Ctrl-C does not cut in two."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold SIGINT back until the block (or the decorated function) is done; then it does what it would have done.

    Python raises KeyboardInterrupt between any two bytecodes. Between "the slot has left the request" and "the slot is in
    the tree" that would lose the slot for ever, and a notebook's user who stops a cell goes on with the same engine. The
    forward pass, where the time goes, stays interruptible. Only the main thread is ever interrupted; elsewhere this does
    nothing. May be nested. Costs a microsecond or two.
    """
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(handler):  # ignored, or not Python's business
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(*held[0])
