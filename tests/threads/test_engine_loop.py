"""EngineLoop where something goes wrong around it: its thread cannot start, and others change what it serves."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nanoinfer import AsyncEngine, Engine, StreamPiece
from nanoinfer.engine import engine_loop
from nanoinfer.requests.stream_pieces import PieceReader
from nanoinfer.trace import Recorder
from tests.helpers.async_engines import arrival, between_passes, following, gated, in_a_pass, llm_around
from tests.helpers.engines import Clock, assert_all_free, finish, greedy, make_engine
from tests.helpers.own_names import NoThread, module_with
from tests.helpers.waiting import Worker, run, until, until_async


def test_a_thread_that_cannot_start_leaves_nothing_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    llm = llm_around(engine)

    with monkeypatch.context() as patch:
        patch.setattr(engine_loop, "threading", module_with(threading, Thread=NoThread))
        with pytest.raises(RuntimeError, match="can't start new thread"):
            llm.generate([5], greedy(2))
    assert (engine.open_requests.ids(), engine.loop.request_ids(), llm._calls._calls) == (set(), set(), {})
    assert llm.generate([5], greedy(2))[0].token_ids == [6, 7]
    assert_all_free(engine)


def test_a_step_by_hand_that_waits_for_a_turn_is_refused_if_a_call_comes_before_it() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    with engine.turns.visit():
        call = Worker(llm.generate, [5], greedy(2))
        until(lambda: engine.turns.waiting, "the call")
        step = Worker(engine.step)
        until(lambda: len(engine.turns.waiting) == 2, "the step")
    with pytest.raises(RuntimeError, match="own thread is serving"):
        step.result()
    gate.open()
    assert call.result()[0].token_ids == [6, 7]
    assert_all_free(engine)


def test_a_call_whose_deadline_passes_in_a_step_by_hand_that_fails_ends_all_the_same() -> None:
    clock = Clock()
    engine, gate = gated(clock=clock)
    llm = llm_around(engine)
    by_hand = engine.add_request([50], greedy(3))
    gate.close()
    call = Worker(lambda: llm.generate([5], greedy(3), timeout_s=10.0))
    until(lambda: gate.arrivals == 1, "a pass")
    pausing = Worker(engine.pause, next(iter(llm._calls._calls)))
    until(lambda: engine.turns.waiting, "who pauses")
    gate.open()
    pausing.result()
    schedule = engine.scheduler.schedule

    def overdue_and_broken() -> Any:
        engine.scheduler.schedule = schedule  # type: ignore[method-assign]
        raise ZeroDivisionError

    with engine.turns.visit():  # or the engine's thread may still be looking whether there is work
        engine.scheduler.schedule = overdue_and_broken  # type: ignore[method-assign]
        has_work, engine.loop.has_work = engine.loop.has_work, lambda: False  # type: ignore[method-assign]
        clock.now += 10.0  # as if it passed between the check and the pass
        with pytest.raises(ZeroDivisionError):
            engine.step()
    engine.loop.has_work = has_work  # type: ignore[method-assign]
    engine.loop.wake()
    assert call.result()[0].finish_reason == "timeout"
    assert finish(engine)[by_hand].error is not None  # it was to be in that pass
    assert_all_free(engine)


def test_a_reader_that_falls_behind_and_reads_on_during_one_pass_is_not_left_paused() -> None:
    async def test() -> None:
        engine, gate = gated(open_at_once=False)
        async with AsyncEngine(engine) as front:
            stream = await front.add([5], greedy(3))
            await arrival(gate, 1)
            delivery = stream._delivery
            for is_held in (True, False):
                delivery.is_held = is_held
                front._door.hold(delivery, is_held)
            gate.open()
            assert (await stream.output()).token_ids == [6, 7, 8]
        assert_all_free(engine)

    run(test)


def test_an_async_engine_that_has_ended_looks_no_more() -> None:
    async def test() -> None:
        engine, looks = make_engine(), list[int]()
        llm = llm_around(engine)
        async with AsyncEngine(llm) as front:
            front.after_step = lambda core: looks.append(1)
            await front.generate([5], greedy(2))
        seen = len(looks)
        assert seen == 2
        assert (await asyncio.to_thread(llm.generate, [5], greedy(2)))[0].token_ids == [6, 7]
        assert len(looks) == seen
        await until_async(lambda: not engine.loop.request_ids())

    run(test)


def test_pieces_that_cannot_be_made_end_their_call_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    other = in_a_pass(llm, gate, [50], greedy(5))
    read = PieceReader.read

    def broken(reader: PieceReader) -> Iterator[StreamPiece]:
        if reader._group.reqs[0].num_output_tokens >= 2:
            raise ZeroDivisionError("no piece")
        return read(reader)

    monkeypatch.setattr(PieceReader, "read", broken)
    gate.open()
    with pytest.raises(ZeroDivisionError, match="no piece"):
        list(llm.stream([5], greedy(50)))
    assert other.result()[0].token_ids == following(50, 5)
    assert_all_free(engine)


def test_a_deadline_further_away_than_threads_can_wait_keeps_the_thread_alive() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    call = Worker(lambda: llm.generate([5], greedy(3), timeout_s=1e10))
    until(lambda: gate.arrivals == 1, "a pass")
    (rid,) = llm._calls._calls
    between_passes(engine, gate, engine.pause, rid)
    gate.open()
    until(lambda: not engine.turns.waiting, "the sleep")
    engine.resume(rid)
    assert call.result()[0].token_ids == [6, 7, 8]
    assert_all_free(engine)


def test_who_is_in_the_engine_may_shut_it_down_but_not_wait_for_it() -> None:
    async def test() -> None:
        engine, _ = gated()
        llm = llm_around(engine)
        async with AsyncEngine(llm) as front:

            def ask(core: Engine) -> None:
                asyncio.run(front.generate([5], greedy(2)))

            with pytest.raises(RuntimeError, match="this thread is in the engine"):
                await front.visit(ask)
            assert (await front.generate([5], greedy(2))).token_ids == [6, 7]
        with engine.turns.visit():
            llm.shutdown()

    run(test)


def test_a_step_by_hand_that_is_refused_is_no_part_of_a_trace() -> None:
    engine, gate = gated(open_at_once=False)
    llm, trace = llm_around(engine), Recorder(engine).trace
    call = in_a_pass(llm, gate, [5], greedy(3))
    with pytest.raises(RuntimeError, match="own thread is serving"):
        between_passes(engine, gate, engine.step)
    gate.open()
    assert call.result()[0].token_ids == [6, 7, 8]
    assert [event.mode for event in trace.events if event.is_step] == ["EXTEND", "DECODE", "DECODE"]
    assert [event.error for event in trace.events if event.error] == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_call_goes_on_in_a_process_that_a_signal_handler_forks_while_it_waits() -> None:
    engine, gate = gated(open_at_once=False)
    llm, children = llm_around(engine), list[int]()

    def fork(number: int, frame: Any) -> None:
        opener = Worker(lambda: (until(lambda: engine.turns.waiting, "the fork"), gate.open()))
        children.append(os.fork())
        if children[0]:
            opener.result()

    def strike() -> None:
        until(lambda: gate.arrivals == 1, "a pass")
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)  # type: ignore[arg-type]

    before = signal.signal(signal.SIGALRM, fork)
    try:
        striker = Worker(strike)
        tokens = llm.generate([5], greedy(3))[0].token_ids
        if children == [0]:
            os._exit(0 if tokens == [6, 7, 8] else 2)
        striker.result()
    finally:
        signal.signal(signal.SIGALRM, before)
        if children == [0]:
            os._exit(1)
    assert tokens == [6, 7, 8]
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    assert_all_free(engine)
