"""An engine that one thread drives by hand while others call: what is refused, what waits, and whose outputs are whose."""

from collections.abc import Callable
from typing import Any

import pytest

from nanoinfer import Engine
from tests.helpers.async_engines import between_passes, following, gated, in_a_pass, llm_around
from tests.helpers.engines import assert_all_free, finish, greedy, make_engine, step
from tests.helpers.waiting import Worker, until


@pytest.mark.parametrize("call", ["step", "add_request"])
def test_a_second_thread_that_drives_an_engine_by_hand_is_told_what_to_use(call: str) -> None:
    engine = make_engine()
    rid = engine.add_request([5], greedy(2))
    with pytest.raises(RuntimeError, match=r"drives this engine by hand.*LLM\.generate, chat or stream.*AsyncEngine"):
        Worker(engine.step if call == "step" else lambda: engine.add_request([7], greedy(2))).result()
    assert finish(engine)[rid].token_ids == [6, 7]
    if call == "add_request":
        other = Worker(engine.add_request, [7], greedy(2)).result()  # now it may
        assert Worker(finish, engine).result()[other].token_ids == [8, 9]
    assert_all_free(engine)


def test_a_step_by_hand_is_refused_while_a_call_is_served_and_possible_again_afterwards() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    call = in_a_pass(llm, gate, [5], greedy(3))
    with pytest.raises(
        RuntimeError, match=r"own thread is serving requests of an LLM or an AsyncEngine.*LLM\.generate"
    ):
        between_passes(engine, gate, engine.step)
    gate.open()
    assert call.result()[0].token_ids == [6, 7, 8]
    assert step(engine) == {}
    assert_all_free(engine)


def test_requests_added_by_hand_are_served_with_calls_of_other_threads_and_their_outputs_are_kept() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    by_hand = engine.add_request([50], greedy(2))
    call = in_a_pass(llm, gate, [5], greedy(3))
    gate.open()
    assert call.result()[0].token_ids == [6, 7, 8]
    assert finish(engine)[by_hand].token_ids == [51, 52]
    assert_all_free(engine)


LOOKS: dict[str, Callable[[Engine, int], Any]] = {
    "stats": lambda engine, rid: engine.stats().running,
    "check_integrity": lambda engine, rid: engine.check_integrity(),
    "abort": lambda engine, rid: engine.abort(rid),
    "flush_cache": lambda engine, rid: engine.flush_cache(),
}


@pytest.mark.parametrize("call", LOOKS)
def test_what_other_threads_call_waits_for_the_pass_to_end(call: str) -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    caller = in_a_pass(llm, gate, [5], greedy(3))
    (rid,) = llm._calls._calls
    looker = Worker(LOOKS[call], engine, rid)
    until(lambda: engine.turns.waiting, "a visitor")
    assert looker.is_alive()
    gate.let_one_through()  # steps wait for the looker, who waits for this pass
    result = looker.result()
    gate.open()
    (output,) = caller.result()
    if call == "abort":
        assert (output.finish_reason, output.token_ids) == ("abort", [6])
        assert result.token_ids == [6]
    else:
        assert output.token_ids == [6, 7, 8]
    if call == "stats":
        assert result == 1
    assert_all_free(engine)


def test_a_step_by_hand_gives_nothing_of_a_paused_stream_which_still_gets_it_all() -> None:
    engine, gate = gated(open_at_once=False)
    llm = llm_around(engine)
    stream = llm.stream([5], greedy(5))
    gate.let_one_through()
    pieces = [next(stream)]
    between_passes(engine, gate, engine.pause, pieces[0].request_id)
    gate.open()
    rid = engine.add_request([70], greedy(2))
    outputs = [output for _ in range(4) for output in engine.step()]
    assert {output.request_id for output in outputs} == {rid}
    engine.resume(pieces[0].request_id)
    pieces += stream
    assert [token for piece in pieces for token in piece.token_ids] == following(5, 5)
    assert_all_free(engine)


def test_outputs_that_could_not_be_handed_out_do_not_replace_newer_ones() -> None:
    engine = make_engine()
    rid = engine.add_request([5], greedy(3))
    older, newer = engine.step(), engine.step()
    engine.deliver_later(newer)
    engine.open_requests.hold_again(older)
    assert engine.open_requests.withdraw(rid) == newer
