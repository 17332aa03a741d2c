"""One engine and several threads: calls of an LLM, manual steps, streams that are dropped; and whose outputs are whose."""

import asyncio
import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from nanoinfer import LLM, Engine, StepFailedError
from tests.helpers.async_engines import (
    PassBarrier,
    between_passes,
    following,
    in_a_pass,
    llm_around,
    llm_behind_barrier,
    with_barrier,
    with_front,
)
from tests.helpers.engines import Clock, assert_all_free, finish, greedy, step
from tests.helpers.waiting import Worker, someone_waits, until


def test_calls_of_two_threads_are_in_one_pass() -> None:
    with llm_behind_barrier() as (llm, barrier):
        first = in_a_pass(llm, barrier, [5], greedy(4))
        second = Worker(llm.generate, [[50], [70]], greedy(3))
        until(lambda: someone_waits(llm.engine), "a visitor")  # it comes in before the next pass
        barrier.let_one_through()
        until(lambda: len(llm._calls._calls) == 3)
        barrier.open()
        assert first.result()[0].token_ids == following(5, 4)
        assert [output.token_ids for output in second.result()] == [following(50, 3), following(70, 3)]
        assert barrier.passes <= 6  # 1 + 1 to extend the second thread's, and the rest together; apart it would be 7


def failing(token_ids: Any, logits: torch.Tensor) -> torch.Tensor:
    raise LookupError("a bad processor")


def test_a_failing_logits_processor_of_one_thread_does_not_fail_the_call_of_another() -> None:
    with llm_behind_barrier() as (llm, barrier):
        good = in_a_pass(llm, barrier, [5], greedy(6))
        bad = Worker(llm.generate, [50], greedy(6, logits_processors=[failing]))
        until(
            lambda: someone_waits(llm.engine), "a visitor"
        )  # its prompt is the next pass, of which the good one is no part
        barrier.open()
        with pytest.raises((LookupError, StepFailedError)) as raised:
            bad.result()
        assert isinstance(raised.value, LookupError) or isinstance(raised.value.__cause__, LookupError)
        assert good.result()[0].token_ids == following(5, 6)


def test_the_other_requests_of_a_failing_step_get_a_step_failed_error_with_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with llm_behind_barrier() as (llm, barrier):
        error, scheduler = LookupError("a bug"), llm.engine.scheduler
        calls = [in_a_pass(llm, barrier, [5], greedy(8)), Worker(llm.generate, [50], greedy(8))]
        until(lambda: someone_waits(llm.engine), "a visitor")
        processed = scheduler.process_batch_result

        def broken(*args: Any) -> Any:
            if len(llm.engine.open_requests.groups) == 2:
                monkeypatch.undo()
                raise error
            return processed(*args)

        monkeypatch.setattr(scheduler, "process_batch_result", broken)
        barrier.open()
        errors: list[BaseException] = []
        for call in calls:
            with pytest.raises((StepFailedError, LookupError)) as raised:
                call.result()
            errors.append(raised.value)
        causes = [error.__cause__ if isinstance(error, StepFailedError) else error for error in errors]
        assert causes == [error, error]
        assert any(isinstance(error, StepFailedError) for error in errors)
        assert llm.generate([5], greedy(2))[0].token_ids == [6, 7]


def test_a_call_from_inside_the_engine_is_refused() -> None:
    engine, _ = with_barrier()
    llm, answers = llm_around(engine), list[BaseException]()

    def calling(token_ids: Any, logits: torch.Tensor) -> torch.Tensor:
        with pytest.raises(RuntimeError) as refused:
            llm.generate([70], greedy(2))
        answers.append(refused.value)
        return logits

    assert llm.generate([5], greedy(2, logits_processors=[calling]))[0].token_ids == [6, 7]
    assert len(answers) == 2
    with engine.visit(), pytest.raises(RuntimeError):
        llm.generate([70], greedy(2))
    assert_all_free(engine)


# --- calls whose requests are paused ---------------------------------------------------------------------------------


def paused_by_another(timeout_s: float | None = None, **options: Any) -> tuple[Engine, int, Worker]:
    """A call that another thread paused after its first pass."""
    engine, barrier = with_barrier(open_at_once=False, **options)
    before = barrier.arrivals
    call = Worker(partial(llm_around(engine).generate, [5], greedy(3), timeout_s=timeout_s))
    until(lambda: barrier.arrivals > before, "a pass")
    (rid,) = engine.open_requests.groups
    pause = Worker(engine.pause, rid)
    until(lambda: someone_waits(engine), "a visitor")
    barrier.open()
    pause.result()
    assert engine.stats().paused == 1
    return engine, rid, call


@pytest.mark.parametrize("timeout_s", [None, 1e10])  # threads cannot wait so long
def test_a_call_waits_until_another_thread_resumes_what_it_has_paused(timeout_s: float | None) -> None:
    engine, rid, call = paused_by_another(timeout_s)
    until(lambda: not someone_waits(engine), "the sleep")
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


def test_a_manual_step_is_refused_while_a_call_is_served_and_possible_again_afterwards() -> None:
    with llm_behind_barrier() as (llm, barrier):
        call = in_a_pass(llm, barrier, [5], greedy(3))
        with pytest.raises(RuntimeError, match="LLM"):
            llm.engine.step()
        barrier.open()
        assert call.result()[0].token_ids == [6, 7, 8]
        assert step(llm.engine) == {}


def test_requests_added_to_the_engine_are_served_with_calls_of_other_threads_and_their_outputs_are_kept() -> None:
    with llm_behind_barrier() as (llm, barrier):
        own = llm.engine.add_request([50], greedy(2))
        call = in_a_pass(llm, barrier, [5], greedy(3))
        barrier.open()
        assert call.result()[0].token_ids == [6, 7, 8]
        assert finish(llm.engine)[own].token_ids == [51, 52]


LOOKS: dict[str, Callable[[Engine, int], Any]] = {
    "stats": lambda engine, rid: engine.stats().running,
    "check_integrity": lambda engine, rid: engine.check_integrity(),
    "abort": lambda engine, rid: engine.abort(rid),
    "flush_cache": lambda engine, rid: engine.flush_cache(),
}


@pytest.mark.parametrize("call", LOOKS)
def test_what_other_threads_call_waits_for_the_pass_to_end(call: str) -> None:
    with llm_behind_barrier() as (llm, barrier):
        caller = in_a_pass(llm, barrier, [5], greedy(3))
        (rid,) = llm._calls._calls
        looker = Worker(LOOKS[call], llm.engine, rid)
        until(lambda: someone_waits(llm.engine), "a visitor")
        assert looker.is_alive()
        barrier.let_one_through()  # steps wait for the looker, who waits for this pass
        result = looker.result()
        barrier.open()
        (output,) = caller.result()
        if call == "abort":
            assert (output.finish_reason, output.token_ids) == ("abort", [6])
            assert result.token_ids == [6]
        else:
            assert output.token_ids == [6, 7, 8]
        if call == "stats":
            assert result == 1


def test_a_manual_step_gives_nothing_of_a_paused_stream_which_still_gets_it_all() -> None:
    with llm_behind_barrier() as (llm, barrier):
        stream = llm.stream([5], greedy(5))
        barrier.let_one_through()
        pieces = [next(stream)]
        between_passes(llm.engine, barrier, llm.engine.pause, pieces[0].request_id)
        barrier.open()
        rid = llm.engine.add_request([70], greedy(2))
        outputs = [output for _ in range(4) for output in llm.engine.step()]
        assert {output.request_id for output in outputs} == {rid}
        llm.engine.resume(pieces[0].request_id)
        pieces += stream
        assert [token for piece in pieces for token in piece.token_ids] == following(5, 5)


async def test_who_is_in_the_engine_may_shut_it_down_but_not_wait_for_it() -> None:
    async with with_front() as (front, _):
        with pytest.raises(RuntimeError):
            await front.visit(lambda core: asyncio.run(front.generate([5], greedy(2))))
        assert (await front.generate([5], greedy(2))).token_ids == [6, 7]
        with front.engine.visit():
            front.engine.shutdown()


def half_read(llm: LLM, barrier: PassBarrier, prompt: list[int]) -> Any:
    """A stream with one piece read; its second pass waits at the barrier."""
    arrivals = barrier.arrivals
    barrier.let_one_through()
    stream = llm.stream(prompt, greedy(20))
    next(stream)
    until(lambda: barrier.arrivals == arrivals + 2, "the second pass")
    return stream


def in_a_cycle(thing: Any) -> None:
    """Leave it to the garbage collector."""
    cycle = [thing]
    cycle.append(cycle)


def test_a_stream_dropped_in_another_thread_frees_its_slots() -> None:
    with llm_behind_barrier() as (llm, barrier):
        Worker(lambda: half_read(llm, barrier, [5]).close()).result()
        barrier.let_one_through()
        until(lambda: not llm._calls._calls, "the end of the first")
        Worker(lambda: half_read(llm, barrier, [50]) and None).result()
        barrier.let_one_through()
        until(lambda: not llm._calls._calls, "the end of the second")
        assert llm.engine.stats().aborted == 2


@pytest.mark.usefixtures("_no_collections")
def test_closing_a_stream_does_not_wait_for_the_pass() -> None:
    with llm_behind_barrier() as (llm, barrier):
        stream = half_read(llm, barrier, [5])
        Worker(stream.close).result()  # garbage collection could do this with locks held that the pass needs
        assert llm.engine._is_changing
        barrier.open()
        until(lambda: not llm._calls._calls, "the end of the request")
        assert llm.engine.stats().aborted == 1


@pytest.mark.parametrize("where", ["pass", "abort", "submit"])
@pytest.mark.usefixtures("_no_collections")
def test_streams_that_are_collected_in_the_middle_of_a_turn_are_closed_after_it(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """One has tokens to come, and one has ended without that its reader has seen it."""
    with llm_behind_barrier() as (llm, barrier):
        ended = llm.stream([30], greedy(2))
        barrier.let_one_through()
        barrier.let_one_through()
        next(ended)
        until(lambda: not llm._calls._calls, "its end")
        going_on = half_read(llm, barrier, [5])
        between_passes(llm.engine, barrier, llm.engine.pause, next(iter(llm._calls._calls)))
        barrier.open()
        rid = llm.engine.add_request([50], greedy(3))
        in_a_cycle(ended)
        in_a_cycle(going_on)
        del ended, going_on
        owner, name = {
            "pass": (llm.engine.model_runner, "forward_batch"),
            "abort": (llm.engine.open_requests, "remove"),
            "submit": (llm.engine.scheduler, "add"),
        }[where]
        original = getattr(owner, name)

        def collecting(*args: Any) -> Any:
            monkeypatch.undo()
            before = len(llm.engine.open_requests.groups)
            gc.collect()
            assert len(llm.engine.open_requests.groups) == before, (
                "a request was taken away in the middle of bookkeeping"
            )
            return original(*args)

        monkeypatch.setattr(owner, name, collecting)
        {
            "pass": llm.engine.step,
            "abort": llm.engine.abort_all,
            "submit": lambda: llm.engine.add_request([70], greedy(1)),
        }[where]()
        until(lambda: not llm._calls._calls, "the end of the other")
        outputs = finish(llm.engine)
        assert where == "abort" or outputs[rid].token_ids == [51, 52, 53]
