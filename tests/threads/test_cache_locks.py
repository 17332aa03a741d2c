"""Locks of caches at a fork."""

import os
import signal
import threading
from collections.abc import Callable
from functools import cached_property

import pytest

from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.threads.cache_locks import kept, new_cache_lock
from tests.helpers.waiting import HANG_S, Worker, until

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def in_a_fork(check: Callable[[], bool]) -> bool:
    """What `check` says in a forked process; False if it hangs or raises."""
    child = os.fork()
    if child == 0:
        signal.alarm(int(HANG_S))
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@forks
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_fork_waits_for_the_locks_of_caches_and_leaves_them_free() -> None:
    lock, held, release = new_cache_lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            assert release.wait(HANG_S)

    worker = Worker(hold)
    assert held.wait(HANG_S)
    forking = Worker(in_a_fork, lambda: lock.acquire(blocking=False))
    until(lambda: forking.ident is not None)
    release.set()
    assert forking.result()
    worker.result()
    assert in_a_fork(lambda: lock.acquire(blocking=False))
    with lock:  # held by the thread that forks itself
        assert in_a_fork(lambda: lock.acquire(blocking=False))


def test_no_cache_that_threads_share_holds_a_lock_while_it_computes() -> None:
    assert not any(isinstance(value, cached_property) for value in vars(Tokenizer).values())
    assert any(isinstance(value, kept) for value in vars(Tokenizer).values())
