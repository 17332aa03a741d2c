"""The passes of a request from its arrival to its end or an abort, without a cache and in pages; with a fake model."""

import pytest
import torch

from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.requests.req import FinishReason
from nanoinfer.scheduling.batch import Batch
from tests.helpers.fakes import A, B, C, FakeServer, assert_as_expected, passes

EXTEND, DECODE = ForwardMode.EXTEND, ForwardMode.DECODE


# --- a request's way ---------------------------------------------------------------------------------------------


def test_a_request_is_extended_once_and_decoded_for_every_further_token() -> None:
    server = FakeServer()
    req = server.add(A[:5], max_new_tokens=4)
    assert list(passes(server)) == [(EXTEND, [req]), (DECODE, [req]), (DECODE, [req]), (DECODE, [req])]
    assert_as_expected(server, req)
    assert req.finish_reason is FinishReason.LENGTH
    server.check_all_free()


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


# --- Batch -------------------------------------------------------------------------------------------------------


def test_a_batch_does_not_change_when_its_requests_go_on() -> None:
    server = FakeServer()
    server.add(A[:3], max_new_tokens=4)
    batches = [server.step() for _ in range(3)]
    fields = [(b.input_ids.tolist(), b.seq_lens.tolist(), b.out_cache_loc.tolist()) for b in batches if b is not None]
    server.run()
    assert [f[1] for f in fields] == [[3], [4], [5]]
    assert [(b.input_ids.tolist(), b.seq_lens.tolist(), b.out_cache_loc.tolist()) for b in batches if b] == fields
    assert all(isinstance(b, Batch) and torch.is_tensor(b.req_pool_indices) for b in batches)


# --- aborts, no cache, pages ----------------------------------------------------------------------------------------


EXTEND = ForwardMode.EXTEND


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
    assert (batch.forward_mode, batch.reqs) == (EXTEND, [second])
    server.run()
    assert_as_expected(server, second)


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
