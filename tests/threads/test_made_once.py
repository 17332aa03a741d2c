"""MadeOnce: what several threads want is made by one of them, while the others wait."""

import threading

import pytest

from nanoinfer.grammars.making import MadeOnce
from tests.helpers.waiting import HANG_S, Worker


def test_threads_that_want_the_same_value_wait_for_one_thread_that_makes_it() -> None:
    goes_on, made = threading.Event(), list[int]()

    def make() -> int:
        assert goes_on.wait(HANG_S)
        made.append(5)
        return 7

    once = MadeOnce(make)
    workers = [Worker(once.get, HANG_S) for _ in range(8)]
    goes_on.set()
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
