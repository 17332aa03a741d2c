"""ExitGate, as Python closes it when it exits: whom it waits for, and whom it lets in."""

import signal
import threading
from typing import Any

import pytest

from nanoinfer.threads.exit_gate import ExitGate
from tests.helpers.interrupts import Interrupted, raising
from tests.helpers.waiting import HANG_S, Worker, until


def pass_through(gate: ExitGate) -> None:
    with gate:
        pass


def test_closing_waits_for_the_threads_inside_and_calls_what_was_given_before_and_after() -> None:
    gate, said = ExitGate(), []

    class Told:
        def before(self) -> None:
            assert not gate.is_closed
            said.append("before")

        def after(self) -> None:
            assert not gate._inside
            said.append("after")

    def stay() -> None:
        with gate:
            until(lambda: gate.is_closed, "a closed gate")
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


def test_a_thread_that_comes_late_ends_and_the_main_thread_goes_in() -> None:
    gate = ExitGate()
    gate.close()
    late = Worker(pass_through, gate)
    with pytest.raises(SystemExit, match="Python is exiting"):
        late.result()
    pass_through(gate)
    assert gate.lets_in()
    assert not Worker(gate.lets_in).result()
    assert not gate._inside


def test_no_thread_is_let_in_while_closing_waits_for_another() -> None:
    gate, lates = ExitGate(), list[Worker]()

    def come_late() -> None:
        until(lambda: gate.is_closed, "a closed gate")
        pass_through(gate)

    def stay() -> None:
        with gate:
            lates.append(Worker(come_late))
            until(lambda: not lates[0].is_alive(), "the end of the one that comes late")
            assert threading.current_thread() in gate._inside

    inside = Worker(stay)
    until(lambda: lates, "a thread inside")
    gate.close()
    inside.result()
    with pytest.raises(SystemExit):
        lates[0].result()


def test_a_thread_that_one_inside_has_admitted_comes_in_although_the_gate_is_closed() -> None:
    gate, inside = ExitGate(), threading.Event()

    def help() -> None:
        until(lambda: gate.is_closed, "a closed gate")
        pass_through(gate)
        gate.__exit__()

    helper = threading.Thread(target=help)

    def stay() -> None:
        with gate:
            gate.admit(helper)
            helper.start()
            inside.set()

    worker = Worker(stay)
    assert inside.wait(HANG_S)
    gate.close()
    assert not gate._inside
    worker.result()
    helper.join(HANG_S)
    assert not helper.is_alive()


@pytest.mark.parametrize("method", ["__enter__", "__exit__"])
def test_a_handler_that_raises_at_the_gate_leaves_its_lock_free(method: str) -> None:
    """The main thread passes it to tokenize; a lock that is left taken would stop every other thread for ever."""
    gate = ExitGate()
    original = getattr(threading.Condition, method)

    def strike(condition: threading.Condition, *args: Any) -> Any:
        is_meant = threading.current_thread() is threading.main_thread()
        if is_meant and method == "__exit__":
            signal.raise_signal(signal.SIGALRM)
        result = original(condition, *args)
        if is_meant and method == "__enter__":
            signal.raise_signal(signal.SIGALRM)
        return result

    gate._changed = type("Changed", (threading.Condition,), {method: strike})()
    with raising(signal.SIGALRM), pytest.raises(Interrupted):
        pass_through(gate)
    Worker(pass_through, gate).result()


def test_after_a_fork_nobody_waits_for_threads_that_are_left_behind() -> None:
    gate, leaves = ExitGate(), threading.Event()

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
