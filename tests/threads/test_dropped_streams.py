"""Streams of an LLM that nobody reads to their end: closed or collected in any thread, whatever it is doing."""

import gc
from typing import Any

import pytest

from nanoinfer import LLM
from tests.helpers.async_engines import following, gated, in_a_pass, llm_around
from tests.helpers.engines import assert_all_free, finish, greedy, make_engine, step
from tests.helpers.waiting import Worker


def half_read(llm: LLM, prompt: list[int]) -> Any:
    """A stream with one piece read."""
    stream = llm.stream(prompt, greedy(20))
    next(stream)
    return stream


def in_a_cycle(thing: Any) -> None:
    """Leave it to the garbage collector."""
    cycle = [thing]
    cycle.append(cycle)


def test_a_stream_dropped_in_another_thread_frees_its_slots() -> None:
    engine = make_engine()
    llm = llm_around(engine)
    Worker(lambda: half_read(llm, [5]).close()).result()
    Worker(lambda: half_read(llm, [50]) and None).result()
    assert not engine.turns.callers
    assert engine.stats().aborted == 2
    assert_all_free(engine)


@pytest.mark.usefixtures("_no_collections")
def test_closing_a_stream_does_not_wait_for_the_pass_of_another_thread() -> None:
    engine, gate = gated()
    llm = llm_around(engine)
    stream = half_read(llm, [5])
    gate.close()
    call = in_a_pass(llm, gate, [50], greedy(2))
    Worker(stream.close).result()  # garbage collection could do this with locks held that the pass needs
    gate.open()
    assert call.result()[0].token_ids == [51, 52]
    assert engine.stats().aborted == 1
    assert not engine.turns.callers
    assert_all_free(engine)


@pytest.mark.parametrize("where", ["pass", "abort", "submit"])
@pytest.mark.usefixtures("_no_collections")
def test_streams_that_are_collected_in_the_middle_of_a_turn_are_closed_after_it(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """One has tokens to come, and one has ended without that its reader has seen it."""
    engine = make_engine()
    llm = llm_around(engine)
    ended, going_on = llm.stream([30], greedy(2)), half_read(llm, [5])
    next(ended)
    rid = engine.add_request([50], greedy(3))
    step(engine)  # the last token of the one
    in_a_cycle(ended)
    in_a_cycle(going_on)
    del ended, going_on
    owner, name = {
        "pass": (engine.model_runner, "forward"),
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
    assert not engine.turns.callers
    assert not llm._calls._calls
    outputs = finish(engine)
    assert where == "abort" or outputs[rid].token_ids == [51, 52, 53]
    assert_all_free(engine)


def test_pieces_are_read_without_a_lock_that_a_step_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage collection may close another stream while pieces are being read: nothing may wait for that."""
    engine = make_engine()
    llm = llm_around(engine)
    first, second = half_read(llm, [5]), half_read(llm, [50])
    assert not [name for name, value in vars(first.gi_frame.f_locals["call"]).items() if hasattr(value, "acquire")]
    assert [piece.token_ids for piece in second] == [[52], *([token] for token in following(52, 18))]
    first.close()
    assert_all_free(engine)
