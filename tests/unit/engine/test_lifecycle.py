"""Deadlines, a bounded queue and shutdown: how requests end before their time, or are not taken."""

import math
from typing import Any

import pytest

from nanoinfer import (
    LLM,
    Engine,
    EngineClosedError,
    FinishReason,
    InvalidRequestError,
    QueueFullError,
    SamplingParams,
)
from tests.helpers.engines import Clock, assert_all_free, finish, greedy, make_engine, step
from tests.helpers.waiting import Paced, Worker, someone_waits, until


def with_clock(**options: Any) -> tuple[Engine, Clock]:
    clock = Clock()
    return make_engine(clock=clock, **options), clock


# --- deadlines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_running_request_ends_with_the_first_step_after_its_deadline_and_keeps_its_tokens(page_size: int) -> None:
    engine, clock = with_clock(page_size=page_size)
    late, other = engine.add_request([5], greedy(9), timeout_s=3), engine.add_request([50], greedy(6))
    seen = []
    for _ in range(3):
        seen.append(step(engine))
        clock.now += 1
    assert [len(outputs[late].token_ids) for outputs in seen] == [1, 2, 3]
    outputs = step(engine)
    assert (outputs[late].finish_reason, outputs[late].token_ids) == (FinishReason.TIMEOUT, [6, 7, 8])
    assert (outputs[late].finished, outputs[late].latency) == (True, 3.0)
    assert outputs[late].error is None
    assert finish(engine)[other].token_ids == [51, 52, 53, 54, 55, 56]
    assert engine.stats().timed_out == 1
    assert_all_free(engine)


def test_a_waiting_request_ends_at_its_deadline_without_having_run() -> None:
    engine, clock = with_clock(rows=1)
    first, late = engine.add_request([5], greedy(9)), engine.add_request([50], greedy(6), timeout_s=0.5)
    step(engine)
    clock.now += 0.5
    outputs = step(engine)
    assert (outputs[late].finish_reason, outputs[late].token_ids, outputs[late].ttft) == ("timeout", [], None)
    assert len(finish(engine)[first].token_ids) == 9


def test_of_n_completions_those_end_that_have_not_yet() -> None:
    engine, clock = with_clock(eos=[7], rows=1)
    rid = engine.add_request([5], SamplingParams(max_new_tokens=6, n=3, top_k=1), timeout_s=5)
    last = {}
    for _ in range(12):
        last |= step(engine)
        clock.now += 1
    assert [one.finish_reason for one in last[rid].outputs] == ["stop", "stop", "timeout"]
    assert [one.token_ids for one in last[rid].outputs] == [[6, 7], [6, 7], [6]]
    assert not engine.has_unfinished()


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan, math.inf, True, "5"])
def test_a_timeout_that_is_none_is_refused_by_name(timeout_s: Any) -> None:
    engine = make_engine()
    with pytest.raises(InvalidRequestError, match=r"^prompt: timeout_s=.*above 0"):
        engine.add_request([5], greedy(), timeout_s=timeout_s)
    assert not engine.has_unfinished()


# --- a bounded queue -------------------------------------------------------------------------------------------------


def test_one_more_than_max_queue_is_refused_and_nothing_has_changed() -> None:
    engine = make_engine(rows=1, max_queue=3, random_seed=1)
    twin = make_engine(rows=1, max_queue=3, random_seed=1)
    for one in (engine, twin):
        one.add_request([1], greedy())
        step(one)
        for i in range(3):
            one.add_request([10 + i], greedy())
    before = engine.stats()
    with pytest.raises(QueueFullError, match="max_queue=3"):
        engine.add_request([20], SamplingParams(max_new_tokens=4, temperature=30.0))
    assert engine.stats() == before
    finish(engine)
    finish(twin)
    params = SamplingParams(max_new_tokens=4, temperature=30.0)
    outputs = []
    for one in (engine, twin):
        rid = one.add_request([20], params)
        outputs.append((rid, finish(one)[rid].token_ids))
    assert outputs[0] == outputs[1], "the same request id and the same random numbers"


def test_each_completion_counts_and_running_ones_do_not() -> None:
    engine = make_engine(rows=2, max_queue=3)
    with pytest.raises(QueueFullError):
        engine.add_request([1], SamplingParams(n=4, max_new_tokens=2))
    engine.add_request([1], SamplingParams(n=3, max_new_tokens=2))
    step(engine)
    engine.add_request([2], SamplingParams(n=2, max_new_tokens=2))
    with pytest.raises(QueueFullError):
        engine.add_request([2], greedy())
    finish(engine)
    assert_all_free(engine)


def test_generate_queues_all_its_prompts_or_none() -> None:
    llm = LLM("story", max_queue=3, max_running_requests=1)
    with pytest.raises(QueueFullError):
        llm.generate(["a", "b", "c", "d"], greedy(), use_tqdm=False)
    assert not llm.engine.has_unfinished()
    assert len(llm.generate(["a", "b", "c"], greedy(), use_tqdm=False)) == 3


# --- shutdown --------------------------------------------------------------------------------------------------------


def test_shutdown_ends_everybody_gives_all_slots_back_and_refuses_newcomers() -> None:
    engine = make_engine(rows=2, chunked_prefill_size=4)
    done = engine.add_request([30], greedy(1))
    engine.deliver_later(engine.step())
    rids = [engine.add_request([base] * 5, greedy(9)) for base in (1, 2, 3)]
    step_outputs = engine.step()
    engine.deliver_later(step_outputs)
    outputs = {output.request_id: output for output in engine.shutdown()}
    assert outputs.keys() == {done, *rids}
    assert outputs[done].finish_reason == "length"
    assert {outputs[rid].finish_reason for rid in rids} == {"abort"}
    stats = engine.stats()
    assert (stats.free_slots, stats.running, stats.waiting, stats.aborted) == (stats.total_slots, 0, 0, 3)
    engine.check_integrity()
    assert not engine.has_unfinished()
    assert engine.step() == engine.shutdown() == []
    with pytest.raises(EngineClosedError):
        engine.add_request([1], greedy())
    assert not engine.has_unfinished()


def test_streams_that_are_being_read_end_with_a_shutdown() -> None:
    llm = LLM("story")
    paced = Paced(1)
    stream = llm.stream("Once upon a time", SamplingParams(max_new_tokens=50, logits_processors=[paced]))
    next(stream)
    paced.arrival()
    ending = Worker(llm.shutdown)
    until(lambda: someone_waits(llm.engine), "the shutdown")
    paced.open()
    ending.result()
    assert list(stream)[-1].finish_reason == "abort"
    with pytest.raises(EngineClosedError):
        llm.generate("a")
