"""Calls of an LLM from several threads: they are served together, and what one gets does not depend on the others."""

import threading
from functools import partial
from typing import Any

import pytest
import torch

from nanoinfer import Engine, StepFailedError
from nanoinfer.frontends.calls import Calls
from tests.helpers.async_engines import following, gated, in_a_pass, llm_around
from tests.helpers.engines import Clock, assert_all_free, greedy
from tests.helpers.waiting import HANG_S, Worker, until


def test_calls_of_two_threads_are_in_one_pass() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    first = in_a_pass(llm, gate, [5], greedy(4))
    second = Worker(llm.generate, [[50], [70]], greedy(3))
    until(lambda: engine.turns.waiting, "a visitor")  # it comes in before the next pass
    gate.let_one_through()
    until(lambda: len(llm._calls._calls) == 3)
    gate.open()
    assert first.result()[0].token_ids == following(5, 4)
    assert [output.token_ids for output in second.result()] == [following(50, 3), following(70, 3)]
    assert gate.passes <= 6  # 1 + 1 to extend the second thread's, and the rest together; apart it would be 7
    assert not llm._calls._calls
    assert_all_free(engine)


def failing(token_ids: Any, logits: torch.Tensor) -> torch.Tensor:
    raise LookupError("a bad processor")


def test_a_failing_logits_processor_of_one_thread_does_not_fail_the_call_of_another() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    good = in_a_pass(llm, gate, [5], greedy(6))
    bad = Worker(llm.generate, [50], greedy(6, logits_processors=[failing]))
    until(lambda: engine.turns.waiting, "a visitor")  # its prompt is the next pass, of which the good one is no part
    gate.open()
    with pytest.raises((LookupError, StepFailedError)) as raised:
        bad.result()
    assert isinstance(raised.value, LookupError) or isinstance(raised.value.__cause__, LookupError)
    assert good.result()[0].token_ids == following(5, 6)
    assert not llm._calls._calls
    assert_all_free(engine)


def test_the_other_requests_of_a_failing_pass_get_a_step_failed_error_with_the_cause() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    first = in_a_pass(llm, gate, [5], greedy(8))
    second = Worker(llm.generate, [50], greedy(8))
    until(lambda: engine.turns.waiting, "a visitor")
    gate.error, gate.error_at = LookupError("a broken model"), 3  # both decode in it
    gate.open()
    errors: list[BaseException] = []
    for thread in (first, second):
        with pytest.raises((StepFailedError, LookupError)) as raised:
            thread.result()
        errors.append(raised.value)
    causes = [error.__cause__ if isinstance(error, StepFailedError) else error for error in errors]
    assert causes == [gate.error, gate.error]
    assert any(isinstance(error, StepFailedError) for error in errors)
    assert llm.generate([5], greedy(2))[0].token_ids == [6, 7]
    assert_all_free(engine)


def test_who_comes_to_look_during_a_turn_waits_for_the_next_step_if_one_waits_too() -> None:
    """Threads come in in their order: lookers keep no call waiting."""
    engine, gate = gated(open_at_once=False)
    llm, goes_on = llm_around(engine), threading.Event()
    call = in_a_pass(llm, gate, [5], greedy(3))

    def look_for_long() -> None:
        with engine.turns.visit():
            assert goes_on.wait(HANG_S)

    first = Worker(look_for_long)
    until(lambda: engine.turns.waiting, "a visitor")
    gate.let_one_through()
    until(lambda: [thread.name for thread in engine.turns.waiting] == ["nanoinfer-engine"], "the visit")
    second = Worker(engine.stats)
    until(lambda: len(engine.turns.waiting) == 2, "a visitor")
    goes_on.set()
    first.result()
    until(lambda: gate.arrivals == 2, "the second pass")
    assert len(engine.turns.waiting) == 1
    gate.open()
    assert second.result().running == 1
    assert call.result()[0].token_ids == [6, 7, 8]
    assert_all_free(engine)


def test_a_call_from_inside_the_engine_is_refused() -> None:
    engine, _ = gated()
    llm, answers = llm_around(engine), list[BaseException]()

    def calling(token_ids: Any, logits: torch.Tensor) -> torch.Tensor:
        with pytest.raises(RuntimeError, match="computing a pass") as refused:
            llm.generate([70], greedy(2))
        answers.append(refused.value)
        return logits

    assert llm.generate([5], greedy(2, logits_processors=[calling]))[0].token_ids == [6, 7]
    assert len(answers) == 2
    with engine.turns.visit(), pytest.raises(RuntimeError, match="this thread is in the engine"):
        llm.generate([70], greedy(2))
    assert_all_free(engine)


# --- calls whose requests are paused ---------------------------------------------------------------------------------


def paused_by_another(timeout_s: float | None = None, **options: Any) -> tuple[Engine, int, Worker]:
    """A call that another thread paused after its first pass."""
    engine, gate = gated(open_at_once=False, **options)
    before = gate.arrivals
    call = Worker(partial(llm_around(engine).generate, [5], greedy(3), timeout_s=timeout_s))
    until(lambda: gate.arrivals > before, "a pass")
    (rid,) = engine.open_requests.groups
    pause = Worker(engine.pause, rid)
    until(lambda: engine.turns.waiting, "a visitor")
    gate.open()
    pause.result()
    assert engine.stats().paused == 1
    return engine, rid, call


def test_a_call_waits_until_another_thread_resumes_what_it_has_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, check = [], Calls._check_paused
    monkeypatch.setattr("nanoinfer.frontends.calls.SECONDS_BETWEEN_LOOKS", 0.001)
    monkeypatch.setattr(Calls, "_check_paused", lambda *args: looks.append(1) or check(*args))
    engine, rid, call = paused_by_another()
    before = len(looks)
    until(lambda: len(looks) > before + 2, "a look")
    engine.resume(rid)
    assert call.result()[0].token_ids == [6, 7, 8]
    assert_all_free(engine)


def test_a_call_whose_request_is_paused_ends_by_its_deadline() -> None:
    clock = Clock()
    engine, _, call = paused_by_another(10.0, clock=clock)
    clock.now += 10.0
    engine.loop.wake()  # it sleeps until the real time has passed
    (output,) = call.result()
    assert (output.finish_reason, output.token_ids) == ("timeout", [6])
    assert_all_free(engine)
