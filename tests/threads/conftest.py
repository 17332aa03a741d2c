"""What tests of threads share: none leaves an engine's thread behind, and who collects garbage."""

import gc
import threading
from collections.abc import Iterator

import pytest

from tests.helpers.waiting import until


def _engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "nanoinfer-engine"}


@pytest.fixture(autouse=True, scope="module")
def _collections_are_quick() -> None:
    """They look only at what is newer than this, not at all that the tests of the session have loaded."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_thread_is_left(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Other tests of the session may still have theirs."""
    before = _engine_threads()
    yield
    caplog.get_records("call").clear()  # a logged exception keeps the engine in which it was raised

    def none_is_left() -> bool:
        gc.collect()
        return not _engine_threads() - before

    until(none_is_left, "the end of the threads of engines that nothing refers to any more")


@pytest.fixture
def _no_collections() -> Iterator[None]:
    """Garbage is collected when a test says so."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
