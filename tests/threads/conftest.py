"""What tests of threads share: none leaves one of an AsyncEngine behind, and who collects garbage."""

import gc
import threading
from collections.abc import Iterator

import pytest


def _engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "nanoinfer-engine"}


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Other tests of the session may still have theirs."""
    before = _engine_threads()
    yield
    assert not _engine_threads() - before


@pytest.fixture
def _no_collections() -> Iterator[None]:
    """Garbage is collected when a test says so, and only what is newer than this."""
    gc.collect()
    gc.disable()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.enable()
