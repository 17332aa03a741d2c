"""MadeOnce: what several threads want is made by one of them, while the others wait."""

import threading

import pytest

from nanoinfer.grammars.making import MadeOnce, Making
from tests.helpers.waiting import HANG_S, Worker, until


def test_threads_that_want_the_same_value_wait_for_one_thread_that_makes_it() -> None:
    goes_on, made = threading.Event(), list[int]()

    def make(making: Making[int]) -> int:
        assert goes_on.wait(HANG_S)
        made.append(5)
        return 7

    once = MadeOnce(make)
    workers = [Worker(once.get, HANG_S) for _ in range(8)]
    until(lambda: once._making is not None and once._making.waiting == 8)
    goes_on.set()
    assert [worker.result() for worker in workers] == [7] * 8
    assert once.get(0) == 7
    assert made == [5]


def test_what_raises_is_made_again_by_the_next_that_wants_it() -> None:
    errors: list[BaseException] = [KeyboardInterrupt(), ValueError("no")]

    def make(making: Making[int]) -> int:
        if errors:
            raise errors.pop()
        return 7

    once = MadeOnce(make)
    for kind in (ValueError, KeyboardInterrupt):
        with pytest.raises(kind):
            once.get(HANG_S)
    assert once.get(HANG_S) == 7


def test_an_attempt_is_given_up_when_nobody_waits_and_made_again_for_who_comes_then() -> None:
    class Attempt:
        def __init__(self) -> None:
            self.begun, self.stopped = threading.Event(), threading.Event()

        def run(self) -> None:
            self.begun.set()
            if self is attempts[0]:
                assert self.stopped.wait(HANG_S)

        def stop(self) -> None:
            self.stopped.set()

    attempts: list[Attempt] = []

    def make(making: Making[int]) -> int:
        attempts.append(Attempt())
        making.attempt(attempts[-1])
        return len(attempts)

    now = [0.0]

    def clock() -> float:
        now[0] += bool(attempts and attempts[0].begun.is_set())
        return now[0]

    once = MadeOnce(make, clock)
    with pytest.raises(TimeoutError):
        once.get(3)
    assert attempts[0].stopped.is_set()
    assert once.get(1e9) == 2
