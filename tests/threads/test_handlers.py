"""Handlers of signals that raise, or call, while several threads use an engine: who is interrupted, and what is left."""

import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nanoinfer.frontends.calls import Calls
from tests.helpers.async_engines import following, gated, in_a_pass, llm_around
from tests.helpers.engines import assert_all_free, finish, greedy, make_engine, step
from tests.helpers.interrupts import Interrupted, raising
from tests.helpers.waiting import HANG_S, Worker, until


@pytest.fixture
def _alarm() -> Iterator[None]:
    """SIGALRM interrupts."""
    with raising(signal.SIGALRM):
        yield


@pytest.mark.usefixtures("_alarm")
def test_a_request_that_another_threads_pass_has_begun_is_ended_when_add_request_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler raises when the turn has been given back, and another thread may be quicker than what takes it back."""
    engine = make_engine()
    llm = llm_around(engine)
    give_back = engine.turns._give_back

    def given_back() -> None:
        give_back()
        if engine.scheduler.waiting and threading.current_thread() is threading.main_thread():
            monkeypatch.undo()
            Worker(llm.generate, [80], greedy(2)).result()
            signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(engine.turns, "_give_back", given_back)
    with pytest.raises(Interrupted):
        engine.add_request([5], greedy(10))
    assert not engine.open_requests.ids()
    assert step(engine) == {}
    assert_all_free(engine)


def strike_main_thread() -> None:
    """SIGALRM, whose handler then runs in the main thread, even where that waits for a lock."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_alarm")
@pytest.mark.parametrize("where", ["submit", "wait"])
def test_a_handler_that_raises_ends_the_main_threads_call_and_no_other(where: str) -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    other = in_a_pass(llm, gate, [5], greedy(30))

    def strike() -> None:
        until(lambda: engine.turns.waiting, "the main thread's call")
        if where == "wait":
            gate.let_one_through()
            until(lambda: gate.arrivals == 2 and len(engine.open_requests.groups) == 2, "a pass with its request")
        strike_main_thread()

    striker = Worker(strike)
    with pytest.raises(Interrupted):
        llm.generate([50], greedy(2))
    striker.result()
    gate.open()
    assert other.result()[0].token_ids == following(5, 30)
    assert (engine.stats().aborted, engine.stats().finished) == (int(where == "wait"), 1)
    assert_all_free(engine)


def test_a_handler_may_call_while_its_thread_waits_for_the_pass_of_another() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    call = in_a_pass(llm, gate, [5], greedy(3))
    answers = []

    def handler(*_: object) -> None:
        gate.open()
        answers.append(llm.generate([70], greedy(2))[0].token_ids)

    def strike() -> None:
        until(lambda: engine.turns.waiting, "the main thread's visit")
        signal.raise_signal(signal.SIGALRM)  # its handler runs in the main thread

    before = signal.signal(signal.SIGALRM, handler)
    try:
        striker = Worker(strike)
        engine.stats()  # waits for the pass, which waits for the handler
        striker.result()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert answers == [[71, 72]]
    assert call.result()[0].token_ids == [6, 7, 8]
    assert_all_free(engine)


@pytest.mark.usefixtures("_alarm")
def test_a_stream_whose_opening_is_interrupted_leaves_nothing_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine()
    llm, add = llm_around(engine), engine.scheduler.add

    def interrupted(req: Any) -> None:
        signal.raise_signal(signal.SIGALRM)
        add(req)

    monkeypatch.setattr(engine.scheduler, "add", interrupted)
    with pytest.raises(Interrupted) as caught:
        next(llm.stream([5], greedy(2)))
    assert caught.tb is not None  # and with it all frames: nothing is left to garbage collection
    assert (len(engine.scheduler.waiting), llm._calls._calls, engine.loop.request_ids()) == (0, {}, set())
    assert_all_free(engine)


@pytest.mark.usefixtures("_alarm")
def test_a_call_that_was_interrupted_twice_is_closed_whoever_keeps_the_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)

    def close(call: Any) -> None:
        if sys._getframe(1).f_code.co_name == "_stream":  # the second alarm, before it can do anything
            raise Interrupted
        Calls.close(llm._calls, call)

    stream = llm.stream([5], greedy(5))
    gate.let_one_through()
    next(stream)
    monkeypatch.setattr(llm._calls, "close", close)
    with pytest.raises(Interrupted) as caught:
        interrupted_read(stream)
    assert caught.tb is not None  # and with it the call
    gate.open()
    until(lambda: not llm._calls._calls, "the end of the call")
    assert_all_free(engine)


def interrupted_read(stream: Any) -> None:
    Worker(strike_main_thread)
    next(stream)


@pytest.mark.usefixtures("_alarm")
def test_a_handler_that_raises_while_a_step_by_hand_is_refused_leaves_other_threads_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`Thread.is_alive` marks a thread as ended when it is interrupted."""
    engine, is_over = make_engine(), threading.Event()

    def drive() -> None:
        engine.add_request([5], greedy(3))
        assert is_over.wait(HANG_S)

    driver = Worker(drive)
    until(lambda: engine.open_requests.groups, "its request")

    def asked() -> bool:
        signal.raise_signal(signal.SIGALRM)
        return threading.Thread.is_alive(driver)

    with monkeypatch.context() as patch:
        patch.setattr(driver, "is_alive", asked)
        with pytest.raises(Interrupted) as caught:
            engine.step()
    assert isinstance(caught.value.__context__, RuntimeError)  # the refusal came before the handler ran
    assert driver.is_alive()
    is_over.set()
    driver.result()
    (output,) = finish(engine).values()
    assert output.token_ids == [6, 7, 8]
    assert_all_free(engine)
