"""Pausing and resuming a request: it holds nothing meanwhile, and its tokens are what they would have been."""

import pytest

from nanoinfer import AsyncEngine, SamplingParams
from tests.helpers.async_engines import run
from tests.helpers.engines import Clock, assert_all_free, finish, greedy, make_engine, step
from tests.helpers.fakes import A, B, C, FakeServer


@pytest.mark.parametrize("disable_radix_cache", [False, True])
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_paused_request_holds_nothing_and_goes_on_where_it_was(page_size: int, disable_radix_cache: bool) -> None:
    engine = make_engine(page_size=page_size, disable_radix_cache=disable_radix_cache)
    paused, other = engine.add_request([10, 11], greedy(9)), engine.add_request([50], greedy(9))
    step(engine)
    step(engine)
    engine.pause(paused)
    engine.check_integrity()
    stats = engine.stats()
    assert (stats.running, stats.paused) == (1, 1)
    for _ in range(3):
        assert step(engine).keys() == {other}
    engine.resume(paused)
    assert engine.stats().paused == 0
    outputs = step(engine)
    assert outputs.keys() == {paused}, "an EXTEND over what it had"
    assert outputs[paused].token_ids == [12, 13, 14]
    last = finish(engine)
    assert last[paused].token_ids == list(range(12, 21))
    assert last[other].token_ids == list(range(51, 60))
    assert engine.stats().retractions == 0
    assert_all_free(engine)


def test_a_step_in_which_all_are_paused_does_nothing() -> None:
    engine = make_engine(rows=1)
    rids = [engine.add_request([base], greedy(3)) for base in (10, 20)]
    step(engine)
    for rid in rids:
        engine.pause(rid)
        engine.pause(rid)  # once more changes nothing
    assert not engine.has_unfinished()
    assert all(map(engine.is_unfinished, rids))
    assert engine.step() == []
    engine.check_integrity()
    stats = engine.stats()
    assert (stats.waiting, stats.running, stats.paused, stats.request_slots) == (0, 0, 2, 0)
    for rid in rids:
        engine.resume(rid)
        engine.resume(rid)
    last = finish(engine)
    assert [last[rid].token_ids for rid in rids] == [[11, 12, 13], [21, 22, 23]]
    assert_all_free(engine)


def test_all_completions_that_have_not_ended_are_paused() -> None:
    engine = make_engine(eos=[7], rows=1)
    rid = engine.add_request([5], SamplingParams(max_new_tokens=6, n=3, top_k=1))
    for _ in range(3):
        step(engine)
    engine.pause(rid)
    assert engine.stats().paused == 2, "one has ended"
    assert engine.step() == []
    engine.resume(rid)
    assert [one.token_ids for one in finish(engine)[rid].outputs] == [[6, 7]] * 3


def test_a_paused_request_ends_by_an_abort() -> None:
    engine = make_engine()
    rid = engine.add_request([20], greedy(9))
    step(engine)
    engine.pause(rid)
    output = engine.abort(rid)
    assert (output.finish_reason, output.token_ids) == ("abort", [21])
    assert (engine.stats().paused, engine.is_unfinished(rid)) == (0, False)
    assert_all_free(engine)


@pytest.mark.parametrize("call", ["pause", "resume"])
def test_a_request_that_has_ended_or_never_was_can_be_neither_paused_nor_resumed(call: str) -> None:
    engine = make_engine()
    rid = engine.add_request([10], greedy(1))
    finish(engine)
    for unknown in (rid, 99):
        with pytest.raises(ValueError, match=f"request_id={unknown}"):
            getattr(engine, call)(unknown)


# --- in the queue ----------------------------------------------------------------------------------------------------


def test_a_resumed_request_goes_ahead_of_those_never_admitted_and_one_never_admitted_behind_them() -> None:
    server = FakeServer(max_running_requests=1, schedule_policy="fcfs")
    admitted, waiting = server.add(A[:4], max_new_tokens=3), server.add(B[:4], max_new_tokens=3)
    server.step()
    for req in (admitted, waiting):
        server.scheduler.pause(req)
    newcomer = server.add(C[:4], max_new_tokens=3)
    for req in (waiting, admitted):
        server.scheduler.resume(req)
    assert list(server.scheduler.waiting) == [admitted, newcomer, waiting]
    server.run()
    server.check_all_free()


# --- waiting for what is paused ----------------------------------------------------------------------------------


def test_a_paused_request_ends_at_its_deadline_though_nothing_else_is_left() -> None:
    clock = Clock()
    engine = make_engine(clock=clock)
    rid = engine.add_request([5], greedy(9), timeout_s=10.0)
    step(engine)
    engine.pause(rid)
    assert (engine.has_unfinished(), engine.has_work()) == (False, False)
    assert engine.seconds_to_deadline() == 10.0
    clock.now += 10.0
    assert (engine.has_unfinished(), engine.has_work()) == (True, True)
    output = finish(engine)[rid]
    assert (output.finish_reason, output.token_ids) == ("timeout", [6])
    assert engine.seconds_to_deadline() is None
    assert_all_free(engine)


def test_an_async_engine_is_made_of_an_engine_with_paused_requests() -> None:
    engine = make_engine()
    paused = engine.add_request([5], greedy(2))
    engine.pause(paused)

    async def serve() -> None:
        async with AsyncEngine(engine) as front:
            assert (await front.generate([50], greedy(2))).token_ids == [51, 52]

    run(serve)
    engine.resume(paused)
    assert finish(engine)[paused].token_ids == [6, 7]
    assert_all_free(engine)
