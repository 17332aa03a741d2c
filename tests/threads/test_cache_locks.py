"""Locks of caches at a fork, and what a forked process finds of what other threads were making."""

import os
import signal
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

import pytest

from nanoinfer.grammars import compiler as compiler_module
from nanoinfer.grammars.making import MadeOnce
from nanoinfer.grammars.vocabulary import Vocabulary
from nanoinfer.requests.tokenizer import Tokenizer
from nanoinfer.threads.cache_locks import kept, new_cache_lock
from tests.helpers.engines import LetterTokenizer, finish, greedy, make_engine
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


class Gate:
    """Keeps a function from going on, in one process only."""

    def __init__(self) -> None:
        self.reached, self._open, self._process = threading.Event(), threading.Event(), os.getpid()

    def __call__(self) -> None:
        if os.getpid() == self._process:
            self.reached.set()
            assert self._open.wait(HANG_S)

    def open(self) -> None:
        self._open.set()


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


@forks
@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("where", ["vocabulary", "grammar"])
def test_a_process_forked_while_a_grammar_is_prepared_prepares_it_anew(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    target: Any = Vocabulary if where == "vocabulary" else compiler_module
    name = "__init__" if where == "vocabulary" else "_compile"
    original = getattr(target, name)

    def slow(*args: Any) -> Any:
        gate()
        return original(*args)

    monkeypatch.setattr(target, name, slow)
    engine = make_engine(eos=[3])

    def text() -> str:
        request_id = engine.add_request([97], greedy(20, regex="bcd"))
        return finish(engine)[request_id].text

    worker = Worker(text)
    assert gate.reached.wait(HANG_S)
    assert in_a_fork(lambda: text() == "bcd")
    gate.open()
    assert worker.result() == "bcd"


def test_threads_that_want_the_same_value_wait_for_one_thread_that_makes_it() -> None:
    gate, made = Gate(), list[int]()

    def make() -> int:
        gate()
        made.append(5)
        return 7

    once, asking = MadeOnce(make), list[int]()

    def ask(number: int) -> int:
        asking.append(number)
        return once.get(HANG_S)

    workers = [Worker(ask, number) for number in range(8)]
    until(lambda: len(asking) == 8)
    gate.open()
    assert [worker.result() for worker in workers] == [7] * 8
    assert once.get(0) == 7
    assert made == [5]


def test_what_raises_is_made_again_by_the_next_that_wants_it() -> None:
    errors: list[BaseException] = [KeyboardInterrupt(), ValueError("no")]

    def make() -> int:
        if errors:
            raise errors.pop()
        return 7

    once = MadeOnce(make)
    for kind in (ValueError, KeyboardInterrupt):
        with pytest.raises(kind):
            once.get(HANG_S)
    assert once.get(HANG_S) == 7


def test_no_cache_that_threads_share_holds_a_lock_while_it_computes() -> None:
    for kind in (Vocabulary, Tokenizer):
        assert not any(isinstance(value, cached_property) for value in vars(kind).values())
        assert any(isinstance(value, kept) for value in vars(kind).values())
    vocabulary = Vocabulary(LetterTokenizer(), 128)
    assert vocabulary.compiled is vocabulary.compiled
