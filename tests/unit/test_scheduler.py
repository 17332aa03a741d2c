"""Scheduler, CacheManager and Batch with a fake model: who is admitted when, and who owns which slot."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from nanoinfer.batch import Batch
from nanoinfer.cache.cache_manager import CacheManager
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.model.input_metadata import ForwardMode
from nanoinfer.requests.req import FinishReason, Req
from nanoinfer.scheduling.policy import SCHEDULE_POLICIES
from tests.helpers.fakes import CountingPolicy, FakeServer, counted_calls, expected_output
from tests.helpers.traffic import serve_at_random

EXTEND, DECODE = ForwardMode.EXTEND, ForwardMode.DECODE
A, B, C = range(100, 120), range(200, 220), range(300, 320)  # tokens of prompts that share nothing


def passes(server: FakeServer) -> Iterator[tuple[ForwardMode, list[Req]]]:
    """(mode, requests) of every pass until all is done."""
    while (batch := server.step()) is not None:
        yield batch.forward_mode, list(batch.reqs)


def assert_as_expected(server: FakeServer, *reqs: Req) -> None:
    for req in reqs:
        assert (req.output_ids, req.finish_reason) == expected_output(req, server.vocab_size)


# --- a request's way ---------------------------------------------------------------------------------------------


def test_a_request_is_extended_once_and_decoded_for_every_further_token() -> None:
    server = FakeServer()
    req = server.add(A[:5], max_new_tokens=4)
    assert list(passes(server)) == [(EXTEND, [req]), (DECODE, [req]), (DECODE, [req]), (DECODE, [req])]
    assert_as_expected(server, req)
    assert req.finish_reason is FinishReason.LENGTH
    server.check_all_free()


def test_nothing_to_do_is_no_pass() -> None:
    assert FakeServer().step() is None


def test_the_last_token_never_gets_a_slot() -> None:
    server = FakeServer(max_total_tokens=8)
    req = server.serve(A[:5], max_new_tokens=4)  # 5 + 4 - 1 = 8 slots, all there are
    assert len(req.output_ids) == 4
    assert server.tree.total_size() == 8


def test_a_finished_request_leaves_its_tokens_in_the_tree_and_its_row_free() -> None:
    server = FakeServer()
    req = server.serve(A[:5], max_new_tokens=4)
    assert server.rows.available_size() == server.rows.size
    assert req.req_pool_idx is None
    assert (server.tree.total_size(), server.tree.protected_size()) == (8, 0)
    sequence = req.token_ids[: req.num_tokens].tolist()
    assert len(server.tree.match_prefix(sequence).indices) == 8
    assert len(list(server.tree.nodes())) == 1


def test_the_prompt_of_a_running_request_is_found_by_the_next_one() -> None:
    server = FakeServer()
    first = server.add(A[:6], max_new_tokens=8)
    server.step()
    second = server.add([*A[:6], 7], max_new_tokens=2)
    batch = server.step()
    assert batch is not None
    assert batch.reqs == [second]
    assert (second.cached_tokens, batch.input_ids.tolist()) == (6, [7])
    server.run()
    assert_as_expected(server, first, second)
    server.check_all_free()


def test_a_prompt_that_is_cached_to_the_end_still_computes_its_last_token() -> None:
    server = FakeServer()
    server.serve(A[:6])
    again = server.add(A[:6])
    batch = server.step()
    assert batch is not None
    assert again.cached_tokens == 5
    assert batch.input_ids.tolist() == [A[5]]
    server.run()
    assert_as_expected(server, again)


def test_requests_join_and_leave_between_steps() -> None:
    server = FakeServer()
    long, short = server.add(A[:3], max_new_tokens=6), server.add(B[:3], max_new_tokens=2)
    seen = [server.step(), server.step()]
    late = server.add(C[:3], max_new_tokens=2)
    modes = [(batch.forward_mode, list(batch.reqs)) for batch in seen if batch is not None]
    modes += list(passes(server))
    assert modes[:4] == [(EXTEND, [long, short]), (DECODE, [long, short]), (EXTEND, [late]), (DECODE, [long, late])]
    assert modes[4:] == [(DECODE, [long])] * 3
    assert_as_expected(server, long, short, late)


def test_a_stop_token_ends_a_request_and_on_the_last_allowed_token_it_is_the_reason() -> None:
    server = FakeServer()
    tokens = server.serve(A[:4], max_new_tokens=6).output_ids
    for stop_at in (1, 3, 6):
        req = server.serve(A[:4], max_new_tokens=6, stop_token_ids=[tokens[stop_at - 1]])
        assert (req.output_ids, req.finish_reason) == (tokens[:stop_at], "stop")
    held_on = server.serve(A[:4], max_new_tokens=6, stop_token_ids=tokens[:2], min_new_tokens=3)
    assert (held_on.output_ids, held_on.finish_reason) == (tokens, "length")
    server.check_all_free()


def test_a_single_new_token_needs_no_decode() -> None:
    server = FakeServer()
    req = server.add(A[:4], max_new_tokens=1)
    assert list(passes(server)) == [(EXTEND, [req])]
    assert server.tree.total_size() == 4
    server.check_all_free()


def test_log_probabilities_reach_the_requests_that_want_them() -> None:
    server = FakeServer()
    server.serve(A[:3])
    wanting = server.add(A[:5], max_new_tokens=2, prompt_logprobs=True)
    other = server.add(A[:5], max_new_tokens=2)
    batch = server.scheduler.schedule()
    assert batch is not None
    assert batch.wants_prompt_logprobs
    token_ids = server.model.forward(batch)
    server.scheduler.process_batch_result(batch, token_ids, [{token_ids[0]: -0.5}, None])
    server.check()
    assert (wanting.cached_tokens, other.cached_tokens) == (0, 3)
    assert wanting.prompt_logprobs == [None, 1.0, 2.0, 3.0, 4.0]  # the fake model's: the position of the token
    assert other.prompt_logprobs is None
    assert (batch.reqs[0].output_logprobs, batch.reqs[1].output_logprobs) == ([{token_ids[0]: -0.5}], [])
    server.run()
    server.check_all_free()


# --- the worked example of the design ----------------------------------------------------------------------------


@pytest.mark.parametrize(("outputs", "first_slot"), [(8, 14), (10, 16), (16, 22)])
def test_the_worked_example(outputs: int, first_slot: int) -> None:
    server = FakeServer(vocab_size=32000)
    prompt = [1, 29871, 29896, 29906, 29941, 29946, 29945]
    first = server.add(prompt, max_new_tokens=outputs)
    batches = [server.step() for _ in range(outputs)]
    slots = [batch.out_cache_loc.tolist() for batch in batches if batch is not None]
    assert slots == [list(range(7)), *([slot] for slot in range(7, first_slot))]
    assert first.finished
    assert (server.tree.total_size(), server.rows.available_size()) == (first_slot, server.rows.size)
    assert [len(node) for _, node in server.tree.nodes()] == [first_slot]

    server.add([*prompt, 29896, 29906, 29941, 29946, 29945])
    batch = server.step()
    assert batch is not None
    assert batch.forward_mode is EXTEND
    assert batch.req_pool_indices.tolist() == [0]
    assert batch.seq_lens.tolist() == [12]
    assert batch.prefix_lens is not None
    assert batch.prefix_lens.tolist() == [7]
    assert batch.input_ids.tolist() == [29896, 29906, 29941, 29946, 29945]
    assert batch.out_cache_loc.tolist() == list(range(first_slot, first_slot + 5))
    assert (batch.out_cache_cont_start, batch.out_cache_cont_end) == (first_slot, first_slot + 5)
    sizes = [(depth, len(node)) for depth, node in server.tree.nodes()]
    assert sizes == [(1, 7), (2, first_slot - 7), (2, 5)]


# --- admission ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_new_tokens", "fits"), [(5, True), (6, False)])
def test_admission_counts_what_running_requests_may_still_need(max_new_tokens: int, fits: bool) -> None:
    server = FakeServer(max_total_tokens=20)
    first = server.add(A[:6], max_new_tokens=5)  # 6 slots now, 10 in the end
    server.step()
    second = server.add(B[:6], max_new_tokens=max_new_tokens)  # 10 or 11 in the end, beside 14 free slots
    server.step()
    assert (second in server.scheduler.running) == fits
    server.run()
    assert_as_expected(server, first, second)
    server.check_all_free()


@pytest.mark.parametrize(("max_new_tokens", "fits"), [(5, True), (6, False)])
def test_admission_counts_the_others_of_the_same_pass(max_new_tokens: int, fits: bool) -> None:
    server = FakeServer(max_total_tokens=20)
    server.add(A[:6], max_new_tokens=5)
    server.add(B[:6], max_new_tokens=max_new_tokens)
    batch = server.step()
    assert batch is not None
    assert len(batch.reqs) == (2 if fits else 1)
    server.run()


def test_what_does_not_fit_waits_and_is_served_when_there_is_room() -> None:
    server = FakeServer(max_total_tokens=20)
    first, second = server.add(A[:6], max_new_tokens=5), server.add(B[:6], max_new_tokens=6)
    history = list(passes(server))
    assert history[:5] == [(EXTEND, [first]), *[(DECODE, [first])] * 4]
    assert history[5:] == [(EXTEND, [second]), *[(DECODE, [second])] * 5]
    assert_as_expected(server, first, second)
    server.check_all_free()


def test_cached_tokens_that_nobody_uses_count_as_room_and_are_evicted_when_it_is_needed() -> None:
    server = FakeServer(max_total_tokens=20)
    server.serve(A[:6], max_new_tokens=5)
    assert (server.pool.available_size(), server.tree.evictable_size()) == (10, 10)
    second = server.add(B[:15], max_new_tokens=2)
    batch = server.step()
    assert batch is not None
    assert batch.reqs == [second]
    assert server.tree.peek_prefix(A[:6])[0] == 0
    server.run()
    server.check_all_free()


def test_evicted_tokens_are_summed() -> None:
    server = FakeServer(max_total_tokens=20)
    for tokens in (A, B, C):
        server.serve(tokens[:15], max_new_tokens=1)
    assert server.cache.evicted_tokens == 30


@pytest.mark.parametrize(("page_size", "ratio", "slots"), [(1, 0.5, 10), (1, 0.001, 6), (1, 1.0, 14), (4, 0.3, 8)])
def test_what_a_request_may_ask_for_is_rounded_up(page_size: int, ratio: float, slots: int) -> None:
    """Of 14 slots at most, for 5 tokens that are there and a share of 9 others; in whole pages."""
    server = FakeServer(page_size=page_size)
    req = server.add(A[:5], max_new_tokens=10)
    assert server.cache.outstanding_size(req, ratio) == slots


def test_a_request_with_slots_for_later_tokens_asks_for_no_less_than_nothing() -> None:
    """Or the slots would count as room for others."""
    server = FakeServer()
    req = server.add(A[:5], max_new_tokens=10)
    req.allocated_len = 12
    assert [server.cache.outstanding_size(req, ratio) for ratio in (0.001, 0.5, 1.0)] == [0, 0, 2]


def test_nothing_is_evicted_while_there_is_room() -> None:
    server = FakeServer(max_total_tokens=20)
    server.serve(A[:6], max_new_tokens=5)
    server.serve(B[:6], max_new_tokens=5)
    assert (server.pool.available_size(), server.tree.total_size()) == (0, 20)
    server.serve(C[:3], max_new_tokens=1)
    assert server.tree.peek_prefix(A[:6])[0] == 0  # the least recently used one went
    assert server.tree.peek_prefix(B[:6])[0] == 6


def test_the_prefix_a_request_will_use_does_not_count_as_room() -> None:
    server = FakeServer(max_total_tokens=16)
    server.serve(A[:10], max_new_tokens=1)
    reuser = server.add(A[:11], max_new_tokens=6)  # 10 cached + 6 = all 16
    other = server.add(B[:1], max_new_tokens=1)
    batch = server.step()
    assert batch is not None
    assert batch.reqs == [reuser]
    assert reuser.cached_tokens == 10
    assert other in server.scheduler.waiting
    server.run()
    assert_as_expected(server, reuser, other)


def test_a_shared_prefix_is_paid_for_once() -> None:
    server = FakeServer(max_total_tokens=16)
    server.serve(A[:10], max_new_tokens=1)
    reqs = [server.add([*A[:10], 1 + i], max_new_tokens=2) for i in range(3)]  # 2 slots each beside the 10
    batch = server.step()
    assert batch is not None
    assert batch.reqs == reqs
    assert server.tree.evictable_size() + server.pool.available_size() == 3
    server.run()
    assert_as_expected(server, *reqs)


def test_none_is_overtaken_for_being_big() -> None:
    server = FakeServer(max_total_tokens=20, schedule_policy="fcfs")
    server.add(A[:6], max_new_tokens=5)
    server.step()
    big, small = server.add(B[:15], max_new_tokens=2), server.add(C[:2], max_new_tokens=2)
    server.step()
    assert list(server.scheduler.waiting) == [big, small]
    order = [req for mode, reqs in passes(server) if mode is EXTEND for req in reqs]
    assert order == [big, small]


@pytest.mark.parametrize("disable_radix_cache", [False, True])
@pytest.mark.parametrize("how", ["finish", "abort"])
def test_the_next_one_comes_in_as_soon_as_one_of_several_ends(how: str, disable_radix_cache: bool) -> None:
    server = FakeServer(max_total_tokens=30, disable_radix_cache=disable_radix_cache)
    ending, staying = server.add(A[:6], max_new_tokens=4), server.add(B[:2], max_new_tokens=14)
    server.step()
    late = server.add(C[:10], max_new_tokens=3)
    server.step()
    assert list(server.scheduler.waiting) == [late]
    if how == "abort":
        server.abort(ending)
    while not ending.finished:
        server.step()
    batch = server.step()
    assert batch is not None
    assert (batch.forward_mode, batch.reqs) == (EXTEND, [late])
    assert staying in server.scheduler.running
    server.run()
    assert_as_expected(server, staying, late)
    server.check_all_free()


def test_aborting_the_first_in_line_lets_the_second_in() -> None:
    server = FakeServer(max_total_tokens=20, schedule_policy="fcfs")
    server.add(A[:6], max_new_tokens=10)
    server.step()
    big, small = server.add(B[:15], max_new_tokens=2), server.add(C[:2], max_new_tokens=2)
    server.step()
    assert list(server.scheduler.waiting) == [big, small]
    server.abort(big)
    batch = server.step()
    assert batch is not None
    assert (batch.forward_mode, batch.reqs) == (EXTEND, [small])


def test_no_more_requests_run_than_there_are_rows() -> None:
    server = FakeServer(max_total_tokens=64, max_running_requests=2)
    reqs = [server.add([10 + i, 20 + i], max_new_tokens=1 + i) for i in range(5)]
    history = list(passes(server))
    assert max(len(batch) for _, batch in history) == 2
    assert history[0] == (EXTEND, reqs[:2])
    assert history[1] == (EXTEND, [reqs[2]])  # the first one is done after its only token
    assert_as_expected(server, *reqs)
    server.check_all_free()


@pytest.mark.parametrize("disable_radix_cache", [False, True])
def test_a_pass_extends_no_more_than_max_prefill_tokens(disable_radix_cache: bool) -> None:
    server = FakeServer(max_prefill_tokens=8, schedule_policy="fcfs", disable_radix_cache=disable_radix_cache)
    reqs = [server.add([100 * i + k for k in range(length)], 2) for i, length in enumerate((4, 4, 1, 5, 3, 1))]
    history = list(passes(server))
    assert history[:3] == [(EXTEND, reqs[:2]), (EXTEND, reqs[2:4]), (EXTEND, reqs[4:])]
    assert EXTEND not in [mode for mode, _ in history[3:]]


def test_a_prompt_longer_than_max_prefill_tokens_has_a_pass_to_itself() -> None:
    server = FakeServer(max_prefill_tokens=8, schedule_policy="fcfs")
    reqs = [server.add(A[:2], 2), server.add(B[:12], 2), server.add(C[:2], 2)]
    batches = [batch for mode, batch in passes(server) if mode is EXTEND]
    assert batches == [[req] for req in reqs]


def test_cached_tokens_do_not_count_towards_max_prefill_tokens() -> None:
    server = FakeServer(max_prefill_tokens=8)
    server.serve(A[:10], max_new_tokens=1)
    reqs = [server.add([*A[:10], 1 + i, 2], 2) for i in range(5)]
    batches = [batch for mode, batch in passes(server) if mode is EXTEND]
    assert batches == [reqs[:4], reqs[4:]]


# --- policy and order --------------------------------------------------------------------------------------------


def first_admitted(policy: str) -> int:
    """Which of two waiting requests, of which the second is cached, a server with one row takes first."""
    server = FakeServer(max_running_requests=1, schedule_policy=policy)
    server.serve(A[:6], max_new_tokens=1)
    server.add(B[:6])
    server.add([*A[:6], 1])
    batch = server.step()
    assert batch is not None
    return batch.reqs[0].request_id


def test_lpm_admits_the_cached_request_first_and_fcfs_the_first() -> None:
    assert first_admitted("lpm") == 2
    assert first_admitted("dfs-weight") == 2
    assert first_admitted("fcfs") == 1


def test_lpm_notices_what_became_cached_after_the_request_arrived() -> None:
    server = FakeServer(max_running_requests=1)
    server.add(A[:6], max_new_tokens=3)
    server.step()
    stranger, relative = server.add(B[:4]), server.add([*A[:6], 1])
    server.step()
    assert list(server.scheduler.waiting) == [stranger, relative]
    order = [reqs[0] for mode, reqs in passes(server) if mode is EXTEND]
    assert order == [relative, stranger]


def test_a_request_that_arrives_behind_a_blocked_one_is_ranked_at_once() -> None:
    server = FakeServer(max_total_tokens=30)
    server.add(A[:6], max_new_tokens=10)
    server.step()
    blocked = server.add(B[:12], max_new_tokens=6)
    server.step()
    relative = server.add([*A[:6], 1], max_new_tokens=2)
    batch = server.step()
    assert batch is not None
    assert batch.reqs == [relative]
    assert blocked in server.scheduler.waiting


def test_requests_that_wait_are_ranked_anew_when_the_tree_has_changed() -> None:
    server = FakeServer(max_total_tokens=50)
    first = server.add(A[:6], max_new_tokens=10)
    server.step()
    everything, _ = expected_output(first, server.vocab_size)
    sibling = server.add([*A[:6], *B[:10]], max_new_tokens=30)  # at first both have 6 tokens cached
    child = server.add([*A[:6], *everything], max_new_tokens=20)
    server.step()
    assert list(server.scheduler.waiting) == [sibling, child]
    order = [req for mode, reqs in passes(server) if mode is EXTEND for req in reqs]
    assert order == [child, sibling]
    assert_as_expected(server, first, sibling, child)


def test_those_beyond_the_window_have_their_turn_even_if_the_tree_never_changes() -> None:
    server = FakeServer(policy_window=2, disable_radix_cache=True)
    reqs = [server.add([10 + i], max_new_tokens=1) for i in range(5)]
    server.run()
    assert_as_expected(server, *reqs)


def test_the_random_policy_is_repeated_by_its_seed() -> None:
    orders = []
    for seed in (1, 1, 2):
        server = FakeServer(max_running_requests=1, schedule_policy="random", random_seed=seed)
        for i in range(12):
            server.add([100 + i], max_new_tokens=1)
        orders.append([reqs[0].request_id for _, reqs in passes(server)])
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(12))


def test_the_policy_looks_at_the_longest_waiting_only() -> None:
    server = FakeServer(max_running_requests=1, policy_window=2)
    server.serve(A[:6], max_new_tokens=1)
    reqs = [server.add(B[:2]), server.add(C[:2]), server.add([*A[:6], 1])]
    order = [batch[0] for mode, batch in passes(server) if mode is EXTEND]
    assert order[0] is reqs[0]
    assert set(order) == set(reqs)


# --- duplicates --------------------------------------------------------------------------------------------------


def test_a_long_prefix_is_computed_by_one_request_while_the_others_wait_a_step() -> None:
    server = FakeServer(max_total_tokens=512, max_context_len=128)
    long = range(1000, 1040)
    first, equal = server.add(long), server.add(long)
    branching, other = server.add([*long[:35], *B[:5]]), server.add([*long[:20], *C])
    batch = server.step()
    assert batch is not None
    assert batch.reqs == [first, other], "the last one shares too little to wait for it"
    batch = server.step()
    assert batch is not None
    assert set(batch.reqs) == {equal, branching}
    assert batch.forward_mode is EXTEND
    assert (equal.cached_tokens, branching.cached_tokens, other.cached_tokens) == (39, 35, 0)
    server.run()
    assert_as_expected(server, first, equal, branching, other)
    server.check_all_free()


@pytest.mark.parametrize("page_size", [1, 4])
def test_each_of_several_prefixes_that_begin_with_the_same_tokens_is_computed_once(page_size: int) -> None:
    """As prompts do: with a token that says where they begin, or with the first words of every system prompt."""
    server = FakeServer(max_total_tokens=512, page_size=page_size, max_context_len=128, schedule_policy="fcfs")
    one, two = [*A[:8], *range(1000, 1032)], [*A[:8], *range(2000, 2032)]
    firsts, others = [server.add(one), server.add(two)], [server.add(tokens) for tokens in (two, one, two, one)]
    batch = server.step()
    assert batch is not None
    assert batch.reqs == firsts
    server.run()
    assert [req.cached_tokens for req in others] == [40 - page_size] * 4
    assert_as_expected(server, *firsts, *others)


def test_the_same_tokens_at_another_place_of_the_tree_are_not_waited_for() -> None:
    server = FakeServer(max_total_tokens=512, max_context_len=128)
    server.serve(A[:4], max_new_tokens=1)
    long = range(1000, 1040)
    reqs = [server.add([*A[:4], *long]), server.add(long)]
    batch = server.step()
    assert batch is not None
    assert batch.reqs == reqs
    server.run()
    assert_as_expected(server, *reqs)


@pytest.mark.parametrize(("shared", "waits"), [(35, False), (36, True), (39, True)])
def test_only_whole_pages_are_worth_waiting_for(shared: int, waits: bool) -> None:
    server = FakeServer(max_total_tokens=252, page_size=12, max_context_len=128)
    long = range(1000, 1040)
    first, second = server.add(long), server.add([*long[:shared], *B[: 45 - shared]])
    batch = server.step()
    assert batch is not None
    assert batch.reqs == ([first] if waits else [first, second])
    server.run()
    assert second.cached_tokens == (36 if waits else 0)
    assert_as_expected(server, first, second)


@pytest.mark.parametrize("fields", [{"disable_radix_cache": True}, {}])
def test_nobody_waits_where_nothing_can_be_shared(fields: dict[str, Any]) -> None:
    server = FakeServer(max_total_tokens=512, max_context_len=128, **fields)
    long = range(1000, 1040)
    keys = (None, None) if fields else ("lora-a", "lora-b")
    reqs = [server.add(long, extra_key=key) for key in keys]
    batch = server.step()
    assert batch is not None
    assert batch.reqs == reqs
    server.run()
    server.check_all_free()


def test_a_pool_held_from_outside_is_an_error_not_an_endless_loop() -> None:
    server = FakeServer(max_total_tokens=20)
    held = server.pool.alloc(15)
    assert held is not None
    req = server.add(A[:6], max_new_tokens=5)
    with pytest.raises(RuntimeError, match="5 of 20 slots"):
        server.scheduler.schedule()
    server.pool.free(held)
    server.run()
    assert_as_expected(server, req)


@pytest.mark.parametrize("page_size", [1, 4, 12])
def test_two_equal_prompts_in_one_pass_end_up_in_the_same_slots(page_size: int) -> None:
    server = FakeServer(max_total_tokens=16 * page_size, page_size=page_size, max_context_len=256)
    prompt = range(1000, 1000 + 2 * page_size + page_size // 2)  # two pages, and a half where there are halves
    reqs = [server.add(prompt, max_new_tokens=3) for _ in range(3)]
    batch = server.step()
    assert batch is not None
    assert batch.reqs == reqs
    assert all(req.cached_tokens == 0 for req in reqs)  # all three computed everything
    shared = 2 * page_size
    rows = [server.cache.rows[req.req_pool_idx, : len(prompt)].tolist() for req in reqs]
    assert rows[0][:shared] == rows[1][:shared] == rows[2][:shared]
    assert len({slot for row in rows for slot in row}) == shared + 3 * (len(prompt) - shared)
    assert server.tree.total_size() == shared
    server.run()
    assert_as_expected(server, *reqs)
    server.check_all_free()


def test_equal_outputs_of_requests_side_by_side_are_kept_once() -> None:
    server = FakeServer()
    for _ in range(3):
        server.add(A[:5], max_new_tokens=6)
    server.run()
    assert server.tree.total_size() == 5 + 6 - 1
    assert server.pool.available_size() == 64 - 10


def test_requests_of_different_namespaces_share_nothing() -> None:
    server = FakeServer()
    reqs = [server.add(A[:5], max_new_tokens=2, extra_key=key) for key in (None, "lora-a", "lora-b", "lora-a")]
    server.run()
    assert [req.cached_tokens for req in reqs] == [0, 0, 0, 0]
    again = [server.serve(A[:5], max_new_tokens=2, extra_key=key) for key in ("lora-b", "lora-c")]
    assert [req.cached_tokens for req in again] == [4, 0]
    assert_as_expected(server, *reqs, *again)
    assert server.tree.total_size() == 4 * 6
    server.check_all_free()


# --- abort -------------------------------------------------------------------------------------------------------


def test_an_aborted_waiting_request_never_runs() -> None:
    server = FakeServer(max_running_requests=1)
    running, waiting, last = server.add(A[:4]), server.add(B[:4]), server.add(C[:4])
    server.step()
    server.abort(waiting)
    assert (waiting.finish_reason, waiting.output_ids) == (FinishReason.ABORT, [])
    assert all(waiting not in reqs for _, reqs in passes(server))
    assert_as_expected(server, running, last)
    server.check_all_free()


@pytest.mark.parametrize("page_size", [1, 4])
def test_an_aborted_running_request_leaves_what_it_computed_in_the_tree(page_size: int) -> None:
    server = FakeServer(page_size=page_size)
    req, other = server.add(A[:6], max_new_tokens=9), server.add(B[:6], max_new_tokens=9)
    for _ in range(4):
        server.step()
    server.abort(req)  # 6 prompt tokens and 3 of the 4 outputs have K/V
    assert req.finish_reason is FinishReason.ABORT
    assert len(req.output_ids) == 4
    assert req not in server.scheduler.running
    assert server.rows.available_size() == server.rows.size - 1
    sequence = req.token_ids[: req.num_tokens].tolist()
    assert server.tree.peek_prefix(sequence)[0] == 9 - 9 % page_size
    server.run()
    assert_as_expected(server, other)
    server.check_all_free()


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


def test_aborting_what_has_ended_changes_nothing() -> None:
    server = FakeServer()
    req = server.serve(A[:4])
    server.abort(req)
    assert req.finish_reason is FinishReason.LENGTH
    waiting = server.add(A[:4])
    server.abort(waiting)
    server.abort(waiting)
    assert waiting.finish_reason is FinishReason.ABORT
    assert server.step() is None


def test_an_abort_makes_room_for_who_waits() -> None:
    server = FakeServer(max_total_tokens=20)
    first, second = server.add(A[:6], max_new_tokens=10), server.add(B[:6], max_new_tokens=10)
    server.step()
    server.step()
    assert second in server.scheduler.waiting
    server.abort(first)
    batch = server.step()
    assert batch is not None
    assert (batch.forward_mode, batch.reqs) == (EXTEND, [second])
    server.run()
    assert_as_expected(server, second)


# --- without a cache, with pages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_with_the_cache_disabled_everything_is_freed_and_nothing_is_found(page_size: int) -> None:
    server = FakeServer(page_size=page_size, disable_radix_cache=True)
    for _ in range(2):
        req = server.serve(A[:6], max_new_tokens=15)
        assert req.cached_tokens == 0
        assert server.pool.available_size() == 64
        assert_as_expected(server, req)
    assert server.tree.total_size() == 0
    together = [server.add(A[:6]) for _ in range(3)]
    server.run()
    assert_as_expected(server, *together)
    server.check_all_free()


@pytest.mark.parametrize(
    ("prompt_len", "max_new_tokens", "cached"), [(3, 1, 0), (4, 1, 4), (4, 2, 4), (5, 3, 4), (5, 4, 8), (8, 1, 8)]
)
def test_a_finished_request_leaves_whole_pages_only(prompt_len: int, max_new_tokens: int, cached: int) -> None:
    server = FakeServer(page_size=4)
    server.serve(A[:prompt_len], max_new_tokens)
    assert server.tree.total_size() == cached
    assert server.pool.available_size() == 64 - cached


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


@pytest.mark.parametrize("page_size", [4, 16])
def test_a_prefix_is_reused_in_whole_pages(page_size: int) -> None:
    server = FakeServer(max_total_tokens=16 * page_size, page_size=page_size, max_context_len=256)
    prompt = list(range(1000, 1000 + 2 * page_size))
    server.serve(prompt, max_new_tokens=1)
    exact = server.serve(prompt, max_new_tokens=1)
    longer = server.serve([*prompt, 1], max_new_tokens=1)
    shorter = server.serve(prompt[:-1], max_new_tokens=1)
    assert [req.cached_tokens for req in (exact, longer, shorter)] == [page_size, 2 * page_size, page_size]
    assert_as_expected(server, exact, longer, shorter)


# --- cost --------------------------------------------------------------------------------------------------------


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> CountingPolicy:
    """`lpm`, registered under the name `counting`."""
    policy = CountingPolicy("lpm")
    monkeypatch.setitem(SCHEDULE_POLICIES, "counting", policy)
    return policy


def blocked_server(policy: CountingPolicy, num_waiting: int, **fields: Any) -> FakeServer:
    """One long request runs, `num_waiting` wait, none of which fits beside it; nothing has been counted yet."""
    server = FakeServer(max_total_tokens=40, schedule_policy="counting", **fields)
    server.add(A[:5], max_new_tokens=30)
    server.step()
    for i in range(num_waiting):
        server.add([1000 + i] * 5, max_new_tokens=10)
    policy.ranked.clear()
    server.tree.look_ups = 0
    return server


def bare_step(server: FakeServer) -> None:
    """A DECODE step without the checks, which go through everything."""
    batch = server.scheduler.schedule()
    assert batch is not None
    assert batch.forward_mode is DECODE
    server.scheduler.process_batch_result(batch, [1] * len(batch.reqs), [None] * len(batch.reqs))


def test_a_request_that_does_not_fit_is_not_looked_up_again_until_something_ends() -> None:
    server = FakeServer(max_total_tokens=20)
    running = server.add(A[:6], max_new_tokens=10)
    server.step()
    waiting = server.add(B[:6], max_new_tokens=5)
    server.step()
    before = server.tree.look_ups
    while not running.finished:
        assert server.tree.look_ups == before
        server.step()
    server.run()
    assert server.tree.look_ups > before
    assert_as_expected(server, running, waiting)
    server.check_all_free()


def test_a_step_in_which_nothing_changes_looks_nothing_up_and_ranks_nothing(policy: CountingPolicy) -> None:
    server = blocked_server(policy, 1000)
    bare_step(server)
    window = server.config.policy_window
    assert policy.ranked == [window]
    assert server.tree.look_ups <= window + 1, "each in the window once, and one was tried"
    before = server.tree.look_ups
    for _ in range(5):
        bare_step(server)
    assert policy.ranked == [window]
    assert server.tree.look_ups == before, "not even the first in line: nothing has ended since it did not fit"


def test_an_arrival_costs_at_most_the_policy_window(policy: CountingPolicy) -> None:
    server = blocked_server(policy, 1000, policy_window=16)
    bare_step(server)
    before = server.tree.look_ups
    server.add([5], max_new_tokens=38)
    bare_step(server)
    assert policy.ranked == [16, 16]
    assert server.tree.look_ups - before <= 16 + 1


def test_the_waiting_are_ranked_anew_after_an_arrival_or_an_insertion_and_only_then(policy: CountingPolicy) -> None:
    server = FakeServer(max_running_requests=2, schedule_policy="counting")
    first, second = server.add(A[:4], max_new_tokens=4), server.add(B[:4], max_new_tokens=8)
    server.step()
    ranked = 1
    assert policy.ranked == [2], "those of one arrival are ranked together"
    server.add(C[:4], max_new_tokens=2)
    while not first.finished:
        server.step()
        assert len(policy.ranked) == ranked, "no row is free: no request can be admitted"
    server.step()  # its tokens went to the tree, so what waits may have become cached
    assert policy.ranked == [2, 1]
    server.run()
    assert policy.ranked == [2, 1]
    assert second.finished


@pytest.mark.parametrize("policy", SCHEDULE_POLICIES)
def test_a_step_does_the_same_work_however_many_wait(policy: str) -> None:
    counts = []
    for num_waiting in (200, 800):
        server = FakeServer(max_total_tokens=40, schedule_policy=policy, random_seed=0)
        server.add(A[:5], max_new_tokens=30)
        server.step()
        for i in range(num_waiting):
            server.add([1000 + i] * 5, max_new_tokens=10)
        with counted_calls() as calls:
            bare_step(server)
            bare_step(server)
        counts.append(calls)
    assert counts[0] == counts[1]


# --- at random (many more of these are in tests/property) --------------------------------------------------------------


@pytest.mark.parametrize(
    "configuration",
    [
        {"max_total_tokens": 40, "schedule_conservativeness": 0.001},
        {"max_total_tokens": 70, "schedule_policy": "dfs-weight", "chunked_prefill_size": 3, "eviction_policy": "fifo"},
        {"max_total_tokens": 64, "page_size": 4, "chunked_prefill_size": 4, "schedule_conservativeness": 0.001},
        {"max_total_tokens": 64, "page_size": 4, "schedule_policy": "random", "disable_radix_cache": True},
    ],
    ids=lambda configuration: "-".join(map(str, configuration.values())),
)
def test_a_few_random_requests_have_their_tokens_and_lose_no_slot(configuration: dict[str, Any]) -> None:
    serve_at_random(configuration, seed=0, num_requests=40)


# --- check_integrity ---------------------------------------------------------------------------------------------


def lose_a_slot(server: FakeServer, req: Req) -> None:
    req.allocated_len -= 1


def share_a_slot(server: FakeServer, req: Req) -> None:
    server.cache.rows[req.req_pool_idx, req.tree_len] = server.cache.rows[req.req_pool_idx, 0]


def free_a_slot(server: FakeServer, req: Req) -> None:
    server.pool.free(server.cache.rows[req.req_pool_idx, req.tree_len : req.tree_len + 1])


def free_the_row(server: FakeServer, req: Req) -> None:
    server.rows.free([req.req_pool_idx or 0])


def let_go(server: FakeServer, req: Req) -> None:
    assert req.last_node is not None
    server.tree.dec_lock_ref(req.last_node)


def lock_for_nobody(server: FakeServer, req: Req) -> None:
    assert req.last_node is not None
    server.tree.inc_lock_ref(req.last_node)


@pytest.mark.parametrize("corrupt", [lose_a_slot, share_a_slot, free_a_slot, free_the_row, let_go, lock_for_nobody])
def test_check_integrity_notices(corrupt: Any) -> None:
    server = FakeServer()
    req = server.add(A[:4], max_new_tokens=6)
    for _ in range(3):
        server.step()
    server.cache.check_integrity(server.scheduler.running)
    corrupt(server, req)
    with pytest.raises(RuntimeError, match=r"owners|rows|lock_ref"):
        server.cache.check_integrity(server.scheduler.running)


def test_check_integrity_notices_a_slot_that_nothing_owns() -> None:
    server = FakeServer()
    server.serve(A[:4], max_new_tokens=1)
    assert server.pool.alloc(1) is not None
    with pytest.raises(RuntimeError, match=r"slot 4 has 0 owners, must have 1 \(1 such slots\)"):
        server.cache.check_integrity([])


@pytest.mark.parametrize(("slot", "message"), [(-1, "slot -1 has 1 owners, must have 0"), (4, "slot 3 has 0 owners")])
def test_a_slot_outside_the_pool_stands_for_none_inside(slot: int, message: str) -> None:
    """-1 is no other way to write 3, the last slot of the pool."""
    server = FakeServer(max_total_tokens=4)
    server.serve(A[:4], max_new_tokens=1)
    node = server.tree.match_prefix(A[:4]).last_node
    assert node.value.tolist() == [0, 1, 2, 3]
    server.cache.check_integrity([])
    node.value[3] = slot
    with pytest.raises(RuntimeError, match=message):
        server.cache.check_integrity([])


def test_check_integrity_notices_a_running_request_that_nobody_counts() -> None:
    server = FakeServer()
    server.add(A[:4], max_new_tokens=6)
    server.step()
    with pytest.raises(RuntimeError, match=r"owners|rows|lock_ref"):
        server.cache.check_integrity([])


def test_rows_that_the_bookkeeping_cannot_reach_are_refused() -> None:
    rows, pool = ReqToTokenPool(2, 4, device="meta"), TokenToKVPool(4, torch.float32, 1, 1, 1)
    with pytest.raises(ValueError, match=r"req_to_token_pool: is on meta.*host"):
        CacheManager(rows, pool, RadixCache(rows, pool))


def test_a_tree_with_larger_pages_than_the_pool_cannot_be_managed() -> None:
    rows, pool = ReqToTokenPool(2, 16), TokenToKVPool(16, torch.float32, 1, 1, 1, page_size=4)
    with pytest.raises(ValueError, match=r"radix_cache: page_size=8, must be the pool's 4"):
        CacheManager(rows, pool, RadixCache(rows, pool, page_size=8))


# --- Batch -------------------------------------------------------------------------------------------------------


def test_scattered_slots_are_no_range() -> None:
    server = FakeServer(max_total_tokens=20, disable_radix_cache=True)
    reqs = [server.add(A[:3], max_new_tokens=2), server.add(B[:4], max_new_tokens=7)]
    server.step()  # slots 0-2 and 3-6
    server.step()  # slots 7 and 8; the first request ends and frees 0-2 and 7
    late = server.add(C[:5], max_new_tokens=3)
    batch = server.step()
    assert batch is not None
    assert batch.reqs == [late]
    assert batch.out_cache_loc.tolist() == [0, 1, 2, 7, 9]
    assert (batch.out_cache_cont_start, batch.out_cache_cont_end) == (None, None)
    server.run()
    assert_as_expected(server, *reqs, late)


def test_a_batch_does_not_change_when_its_requests_go_on() -> None:
    server = FakeServer()
    server.add(A[:3], max_new_tokens=4)
    batches = [server.step() for _ in range(3)]
    fields = [(b.input_ids.tolist(), b.seq_lens.tolist(), b.out_cache_loc.tolist()) for b in batches if b is not None]
    server.run()
    assert [f[1] for f in fields] == [[3], [4], [5]]
    assert [(b.input_ids.tolist(), b.seq_lens.tolist(), b.out_cache_loc.tolist()) for b in batches if b] == fields
    assert all(isinstance(b, Batch) and torch.is_tensor(b.req_pool_indices) for b in batches)


# --- what counts as a use of the cache -------------------------------------------------------------------------------


def test_a_prefix_is_hit_when_its_request_is_admitted_not_whenever_it_is_considered() -> None:
    server = FakeServer(max_total_tokens=40, eviction_policy="lfu")
    server.serve(A[:6], max_new_tokens=1)
    (node,) = (node for _, node in server.tree.nodes())
    assert node.hit_count == 0, "whoever computes it does not hit it"
    server.add(B[:6], max_new_tokens=20)
    server.step()
    blocked = server.add([*A[:6], 1], max_new_tokens=20)
    for i in range(5):
        server.add([i], max_new_tokens=20)  # an arrival makes admission look again
        server.step()
    assert blocked in server.scheduler.waiting
    assert node.hit_count == 0
    server.run()
    assert node.hit_count == 1


def test_where_the_tree_never_changes_the_waiting_are_ranked_once(policy: CountingPolicy) -> None:
    server = FakeServer(max_running_requests=1, schedule_policy="counting", disable_radix_cache=True)
    reqs = [server.add([10 + i], max_new_tokens=2) for i in range(5)]
    server.run()
    assert policy.ranked == [5]
    assert_as_expected(server, *reqs)


def test_an_eviction_does_not_make_the_waiting_be_ranked_anew(policy: CountingPolicy) -> None:
    server = FakeServer(max_total_tokens=40, schedule_policy="counting")
    server.serve(C[:10], max_new_tokens=1)
    server.add(A[:5], max_new_tokens=34)
    server.step()
    blocked = server.add(B[:5], max_new_tokens=30)
    server.add(C[10:15], max_new_tokens=30)
    bare_step(server)
    ranked = len(policy.ranked)
    while server.tree.total_size() > 5:  # until the first's decode has evicted what no request uses
        bare_step(server)
    assert server.cache.evicted_tokens == 10
    server.abort(blocked)  # the other is considered now
    bare_step(server)
    assert len(policy.ranked) == ranked


# --- a blocked request and what others keep locked -------------------------------------------------------------------


def sharing_server(max_total_tokens: int) -> tuple[FakeServer, Req]:
    """One request runs with its 20 prompt tokens locked; another, which begins with them, does not fit beside it."""
    server = FakeServer(max_total_tokens, schedule_conservativeness=1.0, max_context_len=128)
    server.add(A, max_new_tokens=60)
    server.step()
    late = server.add([*A, *B[:5]], max_new_tokens=40)
    server.step()
    assert list(server.scheduler.waiting) == [late]
    return server, late


def test_a_blocked_request_is_admitted_as_the_ratio_falls_without_counting_what_others_keep_locked() -> None:
    """59 slots can be had. At 0.4, 24 are set aside for the one that runs; the other needs 21 beside the 20 they share."""
    server, late = sharing_server(80)
    server.scheduler.new_token_ratio.value = 0.4
    batch = server.step()
    assert batch is not None
    assert batch.reqs == [late]
    assert late.cached_tokens == 20
    server.run()
    assert_as_expected(server, late)
    server.check_all_free()


def test_a_blocked_request_is_not_looked_up_again_while_the_ratio_falls_too_little() -> None:
    server, late = sharing_server(80)
    before = server.tree.look_ups
    server.scheduler.new_token_ratio.value = 0.6  # 36 are set aside, and 29 needed
    server.step()
    assert late in server.scheduler.waiting
    assert server.tree.look_ups == before


def test_a_cached_prefix_that_nobody_keeps_locked_is_room_that_a_blocked_request_cannot_count_twice() -> None:
    """It would lock its 20 cached tokens, which are part of what can be had: they make nothing cheaper."""
    server = FakeServer(90, schedule_conservativeness=1.0, max_context_len=128)
    server.serve(A, max_new_tokens=1)
    server.add(B[:10], max_new_tokens=60)
    server.step()
    late = server.add([*A, *C[:5]], max_new_tokens=40)  # 42 are set aside, 33 needed; 60 are left once A is locked
    server.step()
    before = server.tree.look_ups
    for _ in range(3):
        server.step()
        assert late in server.scheduler.waiting
        assert server.tree.look_ups == before
