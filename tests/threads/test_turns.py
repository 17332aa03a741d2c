"""Turns: who waits keeps its place."""

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nanoinfer.threads import turns as turns_module
from nanoinfer.threads.turns import Turns
from tests.helpers.waiting import Worker, until

MAIN = threading.main_thread()


class Watched(threading.Condition):
    """Notes who waits for a turn, whenever the main thread has looked whether a handler waits."""

    def __init__(self, turns: Turns):
        super().__init__()
        self.turns, self.seen = turns, list[list[threading.Thread]]()

    def wait(self, timeout: float | None = None) -> bool:
        woken = super().wait(timeout)
        if timeout is not None:
            self.seen.append(list(self.turns.waiting))
        return woken


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    monkeypatch.setattr(turns_module, "SECONDS_BETWEEN_HANDLERS", 0.001)
    turns = Turns()
    turns._changed = Watched(turns)
    yield turns
    assert not turns.waiting


def hold(turns: Turns, until_then: Any) -> Worker:
    """A thread that has the turn until something is true."""
    has_it = threading.Event()

    def visit() -> None:
        with turns.visit():
            has_it.set()
            until(until_then)

    holder = Worker(visit)
    has_it.wait()
    return holder


def test_the_main_thread_keeps_its_place_however_often_it_looks_for_handlers(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns_module, "interruptible", lambda: pytest.fail("it left the queue"))
    seen: list[list[threading.Thread]] = turns._changed.seen  # type: ignore[attr-defined]
    holder = hold(turns, lambda: len(seen) > 20)
    with turns.visit():
        pass
    holder.result()
    assert all(waiting[0] is MAIN for waiting in seen)


def test_it_has_its_turn_before_those_that_came_after_it_also_when_a_handler_has_run(turns: Turns) -> None:
    order: list[str] = []
    seen: list[list[threading.Thread]] = turns._changed.seen  # type: ignore[attr-defined]

    def come_later() -> None:
        until(lambda: MAIN in turns.waiting, "the main thread")
        with turns.visit():
            order.append("later")

    def strike() -> None:
        until(lambda: later in turns.waiting, "the later one")
        signal.pthread_kill(MAIN.ident, signal.SIGALRM)  # type: ignore[arg-type]

    def handler(number: int, frame: Any) -> None:
        assert MAIN not in turns.waiting, "it may need a turn itself"
        order.append("handler")
        seen.clear()

    before = signal.signal(signal.SIGALRM, handler)
    try:
        holder = hold(turns, lambda: order and len(seen) > 3)
        later = Worker(come_later)
        striker = Worker(strike)
        with turns.visit():
            order.append("main")
        for thread in (holder, later, striker):
            thread.result()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert order == ["handler", "main", "later"]
