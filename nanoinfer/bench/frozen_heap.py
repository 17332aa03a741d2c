"""Keeps Python's garbage collector away from what was loaded before a measurement."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Within the block, collections look only at objects made in it, so that they take little time in all engines."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
