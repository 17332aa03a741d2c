"""Streams of an LLM that nobody reads to their end: closed or collected in any thread, whatever it is doing."""

import gc
from typing import Any

import pytest

from nanoinfer import LLM
from tests.helpers.async_engines import Gate, between_passes, gated, llm_around
from tests.helpers.engines import assert_all_free, finish, greedy
from tests.helpers.waiting import Worker, until


def half_read(llm: LLM, gate: Gate, prompt: list[int]) -> Any:
    """A stream with one piece read; its second pass waits at the gate."""
    arrivals = gate.arrivals
    gate.let_one_through()
    stream = llm.stream(prompt, greedy(20))
    next(stream)
    until(lambda: gate.arrivals == arrivals + 2, "the second pass")
    return stream


def in_a_cycle(thing: Any) -> None:
    """Leave it to the garbage collector."""
    cycle = [thing]
    cycle.append(cycle)


def test_a_stream_dropped_in_another_thread_frees_its_slots() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    Worker(lambda: half_read(llm, gate, [5]).close()).result()
    gate.let_one_through()
    until(lambda: not llm._calls._calls, "the end of the first")
    Worker(lambda: half_read(llm, gate, [50]) and None).result()
    gate.let_one_through()
    until(lambda: not llm._calls._calls, "the end of the second")
    assert engine.stats().aborted == 2
    assert_all_free(engine)


@pytest.mark.usefixtures("_no_collections")
def test_closing_a_stream_does_not_wait_for_the_pass() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    stream = half_read(llm, gate, [5])
    Worker(stream.close).result()  # garbage collection could do this with locks held that the pass needs
    assert engine.turns.is_computing
    gate.open()
    until(lambda: not llm._calls._calls, "the end of the request")
    assert engine.stats().aborted == 1
    assert_all_free(engine)


@pytest.mark.parametrize("where", ["pass", "abort", "submit"])
@pytest.mark.usefixtures("_no_collections")
def test_streams_that_are_collected_in_the_middle_of_a_turn_are_closed_after_it(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """One has tokens to come, and one has ended without that its reader has seen it."""
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    ended = llm.stream([30], greedy(2))
    gate.let_one_through()
    gate.let_one_through()
    next(ended)
    until(lambda: not llm._calls._calls, "its end")
    going_on = half_read(llm, gate, [5])
    between_passes(engine, gate, engine.pause, next(iter(llm._calls._calls)))
    gate.open()
    rid = engine.add_request([50], greedy(3))
    in_a_cycle(ended)
    in_a_cycle(going_on)
    del ended, going_on
    owner, name = {
        "pass": (engine.model_runner, "forward_batch"),
        "abort": (engine.open_requests, "remove"),
        "submit": (engine.scheduler, "add"),
    }[where]
    original = getattr(owner, name)

    def collecting(*args: Any) -> Any:
        monkeypatch.undo()
        before = len(engine.open_requests.groups)
        gc.collect()
        assert len(engine.open_requests.groups) == before, "a request was taken away in the middle of bookkeeping"
        return original(*args)

    monkeypatch.setattr(owner, name, collecting)
    {"pass": engine.step, "abort": engine.abort_all, "submit": lambda: engine.add_request([70], greedy(1))}[where]()
    assert not llm._calls._calls
    outputs = finish(engine)
    assert where == "abort" or outputs[rid].token_ids == [51, 52, 53]
    assert_all_free(engine)
