"""The passes of a request from its arrival to its end, and the batches that they are made of; with a fake model."""

from typing import Any

import pytest
import torch

from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.requests.req import FinishReason
from nanoinfer.scheduling.batch import Batch
from tests.helpers.fakes import A, B, C, FakeServer, assert_as_expected, passes
from tests.helpers.traffic import serve_at_random

EXTEND, DECODE = ForwardMode.EXTEND, ForwardMode.DECODE


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
    sizes = [(depth, len(node)) for depth, node in server.tree.nodes()]
    assert sizes == [(1, 7), (2, first_slot - 7), (2, 5)]


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
