"""Chunked prefill: long prompts in pieces between decode passes, and what must not depend on the pieces."""

from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.forward_batch import ForwardMode
from tests.helpers.fakes import FakeServer, assert_as_expected

EXTEND, DECODE = ForwardMode.EXTEND, ForwardMode.DECODE
A, B, C = range(100, 200), range(200, 300), range(300, 400)  # tokens of prompts that share nothing


def server(**fields: Any) -> FakeServer:
    return FakeServer(**{"max_total_tokens": 512, "max_context_len": 256, "schedule_policy": "fcfs", **fields})


def passes(server: FakeServer, limit: int = 1000) -> list[tuple[str, list[int]]]:
    """("EXTEND" or "DECODE", new tokens of each request) of every pass until all is done."""
    history = []
    while len(history) < limit and (batch := server.step()) is not None:
        prefix_lens = batch.seq_lens - 1 if batch.prefix_lens is None else batch.prefix_lens
        history.append((batch.forward_mode.name, (batch.seq_lens - prefix_lens).tolist()))
    return history


# --- which pass comes when -------------------------------------------------------------------------------------------


def test_a_long_prompt_is_extended_in_pieces_between_decode_passes_of_the_others() -> None:
    s = server(chunked_prefill_size=10)
    short = s.add(A[:4], max_new_tokens=8)
    s.step()
    long = s.add(B[:25], max_new_tokens=2)
    assert passes(s) == [
        ("EXTEND", [6]),  # four of the ten were spent on the short one
        ("DECODE", [1]),
        ("EXTEND", [10]),
        ("DECODE", [1]),
        ("EXTEND", [9]),
        ("DECODE", [1, 1]),
        *[("DECODE", [1])] * 4,
    ]
    assert_as_expected(s, short, long)
    s.check_all_free()


@pytest.mark.parametrize(
    ("fields", "prompts", "first_passes"),
    [  # prompts that come together, which get two tokens each; the new tokens of each request in the first passes
        ({"chunked_prefill_size": 10}, [B[:25]], [[10], [10], [5]]),
        ({"chunked_prefill_size": 10}, [A[:14], B[:3], C[:9]], [[10], [4, 3, 3], [1, 1]]),
        # Of the 8 tokens a pass may extend, the long prompt's last 4 leave 4: for three of the newcomers' five.
        ({"chunked_prefill_size": 10, "max_prefill_tokens": 8}, [A[:14], B[:3], C[:2]], [[10], [4, 3], [2]]),
        ({"page_size": 4, "chunked_prefill_size": 4}, [A[:13]], [[4], [4], [4], [1]]),  # it is cut at page borders
        ({"page_size": 4, "chunked_prefill_size": 7}, [A[:13]], [[4], [4], [5]]),
        ({"page_size": 4, "chunked_prefill_size": 9}, [A[:13]], [[8], [5]]),
        # Whole pages leave 3 of the 7 tokens, which the second prompt would fit into: but the first is the last.
        ({"page_size": 4, "chunked_prefill_size": 7}, [A[:9], B[:2]], [[4], [5, 2]]),
        ({"chunked_prefill_size": None}, [A], [[100], [1]]),
    ],
    ids=str,
)
def test_what_each_pass_extends(fields: dict[str, Any], prompts: list[range], first_passes: list[list[int]]) -> None:
    s = server(**fields)
    reqs = [s.add(prompt, max_new_tokens=2) for prompt in prompts]
    assert [new for _, new in passes(s)][: len(first_passes)] == first_passes
    assert_as_expected(s, *reqs)
    s.check_all_free()


def test_between_two_tokens_of_a_running_request_no_more_prompt_tokens_are_computed_than_allowed() -> None:
    s = server(chunked_prefill_size=12, max_running_requests=8)
    s.add(A[:3], max_new_tokens=30)
    for i, length in enumerate((5, 30, 1, 1, 1, 12, 13, 40)):
        s.add([1000 * (i + 1) + k for k in range(length)], max_new_tokens=2)
    since_decode = []
    spent = 0
    for mode, new in passes(s):
        spent += sum(new) if mode == "EXTEND" else 0
        if mode == "DECODE":
            since_decode.append(spent)
            spent = 0
    assert max(since_decode) == 12
    assert sum(since_decode) == 3 + 103


def test_at_most_one_request_is_half_prefilled_and_it_is_the_last_in_its_pass() -> None:
    s = server(chunked_prefill_size=10)
    for tokens in (A[:25], B[:25], C[:25]):
        s.add(tokens, max_new_tokens=3)
    cut = 0
    while (batch := s.step()) is not None:
        unfinished = [req for req in batch.reqs if batch.forward_mode is EXTEND and req.chunk_end < req.num_tokens - 1]
        assert unfinished in ([], [batch.reqs[-1]])
        assert (s.scheduler.prefilling is not None) == bool(unfinished) or batch.forward_mode is DECODE
        cut += bool(unfinished)
    assert cut > 5


def test_a_chunk_whose_slots_cannot_be_had_waits_and_its_request_gives_way() -> None:
    """Chunk by chunk it takes what the running one needs to go on; for its last one no slot is left."""
    s = server(max_total_tokens=21, chunked_prefill_size=2, schedule_conservativeness=0.001)
    running = s.add(A[:2], max_new_tokens=14)
    s.step()
    filling = s.add(B[:14], max_new_tokens=2)
    history = passes(s)
    assert history[:14] == [("DECODE", [1]), ("EXTEND", [2])] * 6 + [("DECODE", [1])] * 2
    assert (running.num_retractions, filling.num_retractions) == (0, 1)
    assert_as_expected(s, running, filling)
    s.check_all_free()


def test_an_equal_prompt_waits_for_the_last_chunk_too() -> None:
    """35 tokens are in the last chunk, so 5 of the 40 are left, and the second prompt needs those 35 and one more."""
    s = server(chunked_prefill_size=40)
    first = s.add(range(75), max_new_tokens=2)
    s.step()
    second = s.add([*range(75), 9], max_new_tokens=2)
    assert passes(s)[:2] == [("EXTEND", [35]), ("EXTEND", [1])]
    assert second.cached_tokens == 75
    assert first.finished


# --- what others see of it -------------------------------------------------------------------------------------------


def test_finished_pieces_are_in_the_tree_at_once() -> None:
    s = server(chunked_prefill_size=40)
    s.add(C[:2], max_new_tokens=20)
    s.step()
    s.add(A, max_new_tokens=2)
    s.step()
    assert s.tree.peek_prefix(list(A))[0] == 38
    assert s.scheduler.prefilling is not None
    s.run()
    s.check_all_free()


def test_an_equal_prompt_waits_for_the_pieces_and_computes_its_last_token_only() -> None:
    s = server(chunked_prefill_size=40)
    first, second = s.add(A, max_new_tokens=2), s.add(A, max_new_tokens=2)
    assert passes(s)[:4] == [("EXTEND", [40]), ("EXTEND", [40]), ("EXTEND", [20, 20]), ("DECODE", [1, 1])]
    assert second.cached_tokens == 80, "20 are too few to wait for"
    s = server(chunked_prefill_size=50)
    first, second = s.add(A, max_new_tokens=2), s.add(A, max_new_tokens=2)
    assert passes(s)[:4] == [("EXTEND", [50]), ("EXTEND", [50]), ("DECODE", [1]), ("EXTEND", [1])]
    assert (first.cached_tokens, second.cached_tokens) == (0, 99)
    s.check_all_free()


@pytest.mark.parametrize("disable_radix_cache", [False, True])
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_half_prefilled_request_can_be_aborted(page_size: int, disable_radix_cache: bool) -> None:
    s = server(chunked_prefill_size=12, page_size=page_size, disable_radix_cache=disable_radix_cache)
    other = s.add(B[:4], max_new_tokens=6)
    s.step()
    req = s.add(A[:30])
    s.step()
    assert s.scheduler.prefilling is req
    s.abort(req)
    assert s.scheduler.prefilling is None
    assert (req.output_ids, req.finish_reason) == ([], "abort")
    assert s.tree.peek_prefix(list(A))[0] == (0 if disable_radix_cache else 8)
    s.run()
    assert_as_expected(s, other)
    s.check_all_free()


def test_a_step_over_a_piece_tells_nothing_of_its_request() -> None:
    llm = LLM("story", chunked_prefill_size=4)
    rid = llm.engine.add_request(list(range(10, 20)), SamplingParams(max_new_tokens=2, temperature=0))
    assert llm.engine.step() == []
    assert llm.engine.step() == []
    (output,) = llm.engine.step()
    assert (output.request_id, len(output.token_ids)) == (rid, 1)
    assert llm.engine.stats().output_tokens == 1


def test_a_chunk_must_hold_a_page() -> None:
    with pytest.raises(ValueError, match="chunked_prefill_size=15"):
        LLM("no/such/model", chunked_prefill_size=15, page_size=16)
