"""ExitGate, as Python closes it when it exits: whom it waits for, whom it lets in. Here the test's clock is its clock."""

import signal
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from nanoinfer.threads import exit_gate as module
from nanoinfer.threads.exit_gate import SECONDS_IN_ONE_WAIT, ExitGate
from tests.helpers.engines import Clock
from tests.helpers.interrupts import Interrupted, raising
from tests.helpers.waiting import HANG_S, Worker, until


class Watched(ExitGate):
    """A gate that notes whether threads that look at it would be let in, and before each look calls `before_look`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.looks: list[bool] = []
        self.before_look: Callable[[], object] = lambda: None

    def _exit_function_waits(self) -> bool:
        self.before_look()
        self.looks.append(super()._exit_function_waits())
        return self.looks[-1]

    def let_pass(self, seconds: float) -> None:
        self.clock.now += seconds


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LOOKS", 0.001)
    gate = Watched(clock)
    yield gate
    gate._is_closed = False  # no thread is left waiting


def pass_through(gate: ExitGate) -> None:
    with gate:
        pass


def test_closing_waits_for_the_threads_inside_and_calls_what_was_given_before_and_after(gate: Watched) -> None:
    said = []

    class Told:
        def before(self) -> None:
            said.append("before")

        def after(self) -> None:
            said.append("after")

    def stay() -> None:
        with gate:
            until(lambda: gate._is_closed, "a closed gate")
            pass_through(gate)  # who is inside may go in again
            said.append("left")

    told, forgotten = Told(), Told()
    for each in (told, forgotten):
        gate.before_closing(each.before)
        gate.after_closing(each.after)
    del each, forgotten
    thread = Worker(stay)
    until(lambda: gate._inside, "a thread inside")
    gate.close()
    assert said == ["before", "left", "after"]
    thread.result()


def test_a_thread_that_comes_late_waits_however_long_the_exit_takes_and_the_main_thread_goes_in(gate: Watched) -> None:
    gate.close()
    late = Worker(pass_through, gate)
    for _ in range(3):
        before = len(gate.looks)
        until(lambda: len(gate.looks) > before, "a look")  # noqa: B023
        gate.let_pass(100 * SECONDS_IN_ONE_WAIT)
        pass_through(gate)
    assert not any(gate.looks)
    assert late.is_alive()


def test_no_thread_is_let_in_while_closing_waits_for_another(gate: Watched) -> None:
    """The main thread is in a wait, but no exit function of the user's is."""

    def pass_time() -> None:
        if not gate._is_empty:
            gate.let_pass(100 * SECONDS_IN_ONE_WAIT)

    def come_late() -> None:
        until(lambda: gate._is_closed, "a closed gate")
        pass_through(gate)

    def stay() -> None:
        with gate:
            until(lambda: len(gate.looks) > 3, "looks of the one outside")

    gate.before_look = pass_time
    late, inside = Worker(come_late), Worker(stay)
    until(lambda: gate._inside, "a thread inside")
    gate.close()
    assert not any(gate.looks)
    assert late.is_alive()
    inside.result()


@pytest.mark.parametrize("how", ["join", "event", "condition"])
def test_a_thread_is_let_in_when_an_exit_function_has_waited_for_a_second(gate: Watched, how: str) -> None:
    ended, changed = threading.Event(), threading.Condition()

    def come_late() -> None:
        pass_through(gate)
        ended.set()
        with changed:
            changed.notify_all()

    gate.close()
    late = Worker(come_late)
    gate.before_look = lambda: gate.let_pass(0.4 * SECONDS_IN_ONE_WAIT)
    if how == "join":
        late.join(HANG_S)
    elif how == "event":
        ended.wait(HANG_S)
    else:
        with changed:
            changed.wait_for(ended.is_set, HANG_S)
    *before, last = gate.looks
    assert (any(before), last) == (False, True)
    assert len(before) >= 3  # one that sees the wait, and two that find it too short
    late.result()


@pytest.mark.parametrize("method", ["__enter__", "__exit__"])
def test_a_handler_that_raises_at_the_gate_leaves_its_lock_free(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """The main thread passes it to tokenize; a lock that is left taken would stop every other thread for ever."""
    gate = ExitGate()
    original = getattr(threading.Condition, method)

    def strike(condition: threading.Condition, *args: Any) -> Any:
        if method == "__exit__":
            signal.raise_signal(signal.SIGALRM)
        result = original(condition, *args)
        if method == "__enter__":
            signal.raise_signal(signal.SIGALRM)
        return result

    with raising(signal.SIGALRM), monkeypatch.context() as patch:
        patch.setattr(threading.Condition, method, strike)
        with pytest.raises(Interrupted):
            pass_through(gate)
    Worker(pass_through, gate).result()


def test_after_a_fork_nobody_waits_for_threads_that_are_left_behind(gate: Watched) -> None:
    leaves = threading.Event()

    def stay() -> None:
        with gate._changed:
            gate._inside[threading.current_thread()] = 1
        leaves.wait(HANG_S)

    other = Worker(stay)
    until(lambda: gate._inside, "a thread inside")
    gate.after_fork()
    gate.close()
    assert not gate._inside
    leaves.set()
    other.result()
