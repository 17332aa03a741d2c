"""Retraction: who gives way when a decode step cannot have its slots or pages, and that the outputs do not show it."""

from typing import Any

import numpy as np
import pytest

from nanoinfer import SamplingParams
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.requests.req import Req
from nanoinfer.scheduler.retraction import NewTokenRatio, first_to_retract
from tests.helpers.engines import assert_all_free, finish, greedy, make_engine
from tests.helpers.fakes import FakeServer, assert_as_expected

EXTEND, DECODE = ForwardMode.EXTEND, ForwardMode.DECODE
GAMBLE = 0.001  # schedule_conservativeness that sets (next to) nothing aside
A, B, C = range(100, 200), range(200, 300), range(300, 400)  # tokens of prompts that share nothing


def server(max_total_tokens: int, **fields: Any) -> FakeServer:
    return FakeServer(max_total_tokens, **{"schedule_conservativeness": GAMBLE, "schedule_policy": "fcfs", **fields})


# --- who, when -------------------------------------------------------------------------------------------------------


def test_more_requests_run_than_could_all_reach_their_longest_and_one_gives_way_when_they_do() -> None:
    s = server(20)
    first, second = s.add(A[:6], max_new_tokens=10), s.add(B[:6], max_new_tokens=10)  # 15 slots each in the end
    s.step()
    assert s.scheduler.running == [first, second]
    for _ in range(4):
        s.step()
    assert (s.scheduler.retractions, first.num_output_tokens, second.num_output_tokens) == (0, 5, 5)
    batch = s.step()  # 20 slots are full: an eleventh token of each does not fit
    assert (batch.forward_mode, batch.reqs) == (DECODE, [first])
    assert (s.scheduler.retractions, list(s.scheduler.waiting)) == (1, [second])
    assert second.num_output_tokens == 5
    s.run()
    assert_as_expected(s, first, second)
    assert (first.num_retractions, second.num_retractions) == (0, 1)
    s.check_all_free()


def test_eviction_comes_before_retraction() -> None:
    s = server(30)
    s.serve(C[:9], max_new_tokens=1)
    reqs = [s.add(A[:6], max_new_tokens=6), s.add(B[:6], max_new_tokens=6)]  # 22 slots in the end, 21 free
    s.run()
    assert s.scheduler.retractions == 0
    assert s.cache.evicted_tokens == 9
    assert_as_expected(s, *reqs)


def test_the_one_with_the_fewest_output_tokens_gives_way_and_among_equals_the_last_to_arrive() -> None:
    def req(ticket: int, outputs: int) -> Req:
        made = Req(ticket, np.array([1]), SamplingParams())
        made.ticket, made.num_tokens = ticket, 1 + outputs
        return made

    reqs = [req(0, 5), req(1, 3), req(2, 4), req(3, 3)]
    order = []
    while reqs:
        order.append(first_to_retract(reqs))
        reqs.remove(order[-1])
    assert [one.ticket for one in order] == [3, 1, 2, 0]


def test_a_half_prefilled_request_gives_way_first_and_keeps_its_pieces_in_the_tree() -> None:
    s = server(40, chunked_prefill_size=2)
    running = s.add(A[:4], max_new_tokens=24)
    s.step()
    filling = s.add(B[:30], max_new_tokens=2)
    for _ in range(60):
        if filling.num_retractions:
            break
        s.step()
    assert (filling.num_retractions, running.num_retractions) == (1, 0)
    assert s.scheduler.prefilling is None
    assert s.tree.peek_prefix(list(B))[0] >= 16
    s.run()
    assert_as_expected(s, running, filling)
    assert filling.cached_tokens == 0, "its own chunks were not there when it came"
    s.check_all_free()


def test_retracted_requests_come_before_all_others_and_the_last_retracted_first() -> None:
    s = server(24, max_running_requests=4)
    first, second, third = (s.add(tokens[:6], max_new_tokens=12) for tokens in (A, B, C))
    while s.scheduler.retractions < 2:
        s.step()
    newcomer = s.add(range(400, 403), max_new_tokens=1)
    assert list(s.scheduler.waiting) == [second, third, newcomer]
    order = []
    while (batch := s.step()) is not None:
        order += [req for req in batch.reqs if batch.forward_mode is EXTEND]
    assert order.index(newcomer) > max(order.index(second), order.index(third))
    assert_as_expected(s, first, second, third, newcomer)
    s.check_all_free()


# --- why it always goes on -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [None, 1, 3])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("disable_radix_cache", [False, True])
def test_two_requests_never_retract_each_other_for_ever(
    page_size: int, chunk: int | None, disable_radix_cache: bool
) -> None:
    """Each needs the whole pool in the end, and admission always gambles: every retraction is paid for with a token."""
    chunk = chunk and max(chunk, page_size)
    s = server(32, page_size=page_size, chunked_prefill_size=chunk, disable_radix_cache=disable_radix_cache)
    reqs = [s.add(tokens[:12], max_new_tokens=21) for tokens in (A, B, C)]
    produced = 0
    while s.scheduler.waiting or s.scheduler.running:
        before = s.scheduler.retractions
        s.scheduler.new_token_ratio.value = 0.0
        batch = s.step()
        if s.scheduler.retractions > before:
            assert batch.forward_mode is DECODE
            assert len(batch.sampled_reqs) >= 1
        produced += len(batch.sampled_reqs)
    assert produced == 3 * 21
    assert 0 < s.scheduler.retractions <= produced
    assert_as_expected(s, *reqs)
    s.check_all_free()


def test_newcomers_do_not_keep_a_retracted_request_out() -> None:
    s = server(32, schedule_policy="lpm", max_running_requests=8)
    s.serve(C[:8], max_new_tokens=1)
    first, second = s.add(A[:8], max_new_tokens=20), s.add(B[:8], max_new_tokens=20)
    steps = 0
    newcomers = []
    while not (first.finished and second.finished):
        newcomers.append(s.add([*C[:8], steps], max_new_tokens=3))  # cached, small: lpm loves them
        s.step()
        steps += 1
        if second.num_retractions and not second.finished and second in s.scheduler.waiting:
            assert not any(req.ticket > second.ticket for req in s.scheduler.planned if not req.num_output_tokens)
    assert second.num_retractions
    assert steps < 150
    s.run()
    assert_as_expected(s, first, second, *newcomers)


# --- the ratio -------------------------------------------------------------------------------------------------------


def test_a_retraction_raises_the_ratio_to_what_those_left_have_come_to_need() -> None:
    def req(outputs: int) -> Req:
        made = Req(0, np.array([1]), SamplingParams(max_new_tokens=100))
        made.num_tokens += outputs
        return made

    ratio = NewTokenRatio(0.1)
    ratio.rise([req(10), req(30)])
    assert ratio.value == pytest.approx((10 + 30 + 2 * 20) / 200)
    ratio.rise([req(5)])
    assert ratio.value == pytest.approx(0.4), "it never falls by a retraction"
    ratio.rise([req(90)])
    assert ratio.value == 1.0


def test_the_engine_moves_the_ratio() -> None:
    s = server(64, schedule_conservativeness=1.0)
    ratio = s.scheduler.new_token_ratio
    s.add(A[:4], max_new_tokens=4)
    s.step()
    assert ratio.value == 0.7, "an EXTEND pass says nothing"
    s.step()
    assert ratio.value == pytest.approx(0.7 - 0.602 / 600)
    s.run()
    assert ratio.value == 0.7
    s = server(20)
    s.add(A[:6], max_new_tokens=10)
    s.add(B[:6], max_new_tokens=10)
    while not s.scheduler.retractions:
        s.step()
    assert s.scheduler.new_token_ratio.value == 1.0  # (5 + 20) / 10 and no more


def test_all_that_decode_may_give_way_to_a_prompt_that_is_computed_in_chunks() -> None:
    """It has more output than they, from before it was paused, so they are retracted first."""
    options: dict[str, Any] = {"chunked_prefill_size": 4, "schedule_conservativeness": GAMBLE}
    engine = make_engine(slots=23, disable_radix_cache=True, **options)
    long = engine.add_request(list(range(10)), greedy(10))
    for _ in range(9):
        engine.step()
    engine.pause(long)
    short = engine.add_request([50, 51], greedy(15))
    engine.step()
    engine.step()
    engine.resume(long)
    outputs = finish(engine)
    assert outputs[long].token_ids == list(range(10, 20))
    assert outputs[short].token_ids == list(range(52, 67))
    assert engine.stats().retractions >= 1
    assert_all_free(engine)


# --- pages, and passes that fail -----------------------------------------------------------------------------------


@pytest.mark.parametrize("disable_radix_cache", [False, True])
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_pass_that_failed_is_undone_by_abort(page_size: int, disable_radix_cache: bool) -> None:
    server = FakeServer(page_size=page_size, disable_radix_cache=disable_radix_cache)
    server.serve(A[:8], max_new_tokens=1)
    cached = server.tree.total_size()
    failing = [server.add(A[:9]), server.add(B[:9])]
    assert server.scheduler.schedule() is not None  # no model runs: nothing of what is new has K/V
    server.abort(*failing)
    assert server.tree.total_size() == cached
    running = server.add(C[:4], max_new_tokens=5)
    server.step()
    assert server.scheduler.schedule() is not None  # and the same for a decode
    server.abort(running)
    assert server.tree.peek_prefix(running.token_ids[:5])[0] == (0 if disable_radix_cache else 4)
    server.check_all_free()


def test_a_decode_takes_a_new_page_only_where_the_last_one_is_full() -> None:
    server = FakeServer(page_size=4)
    req = server.add(A[:3], max_new_tokens=8)
    free = []
    while (batch := server.step()) is not None and not req.finished:
        free.append((batch.seq_lens.tolist()[0], server.pool.available_size()))
    assert free == [(3, 60), (4, 60), (5, 56), (6, 56), (7, 56), (8, 56), (9, 52)]


def test_a_decode_in_pages_that_have_room_needs_no_slot_and_nobody_gives_way() -> None:
    """All four pages are taken, and two tokens of each request still fit into them."""
    server = FakeServer(max_total_tokens=16, page_size=4, schedule_conservativeness=0.001)
    reqs = [server.add(A[:5], max_new_tokens=4), server.add(B[:5], max_new_tokens=4)]
    server.run()
    assert server.scheduler.retractions == 0
    assert_as_expected(server, *reqs)


def test_a_decode_needs_a_page_for_each_full_one_and_for_no_other() -> None:
    """One page is left: enough when one of two requests fills its last page, and not when both do."""
    for second, max_new_tokens, retractions in (B[:5], 3, 0), (B[:6], 7, 1):
        server = FakeServer(max_total_tokens=20, page_size=4, schedule_conservativeness=0.001)
        reqs = [server.add(A[:6], max_new_tokens=7), server.add(second, max_new_tokens)]
        server.run()
        assert server.scheduler.retractions == retractions
        assert_as_expected(server, *reqs)
        server.check_all_free()
