"""Prompts that begin alike: a long prefix is computed once, and what is equal ends up in the same slots."""

from typing import Any

import pytest

from nanoinfer.model.forward_batch import ForwardMode
from tests.helpers.fakes import A, B, C, FakeServer, assert_as_expected

EXTEND = ForwardMode.EXTEND


def test_a_long_prefix_is_computed_by_one_request_while_the_others_wait_a_step() -> None:
    server = FakeServer(max_total_tokens=512, max_context_len=128)
    long = range(1000, 1040)
    first, equal = server.add(long), server.add(long)
    branching, other = server.add([*long[:35], *B[:5]]), server.add([*long[:20], *C])
    assert server.step().reqs == [first, other], "the last one shares too little to wait for it"
    batch = server.step()
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
    assert server.step().reqs == firsts
    server.run()
    assert [req.cached_tokens for req in others] == [40 - page_size] * 4
    assert_as_expected(server, *firsts, *others)


def test_the_same_tokens_at_another_place_of_the_tree_are_not_waited_for() -> None:
    server = FakeServer(max_total_tokens=512, max_context_len=128)
    server.serve(A[:4], max_new_tokens=1)
    long = range(1000, 1040)
    reqs = [server.add([*A[:4], *long]), server.add(long)]
    assert server.step().reqs == reqs
    server.run()
    assert_as_expected(server, *reqs)


@pytest.mark.parametrize(("shared", "waits"), [(35, False), (36, True), (39, True)])
def test_only_whole_pages_are_worth_waiting_for(shared: int, waits: bool) -> None:
    server = FakeServer(max_total_tokens=252, page_size=12, max_context_len=128)
    long = range(1000, 1040)
    first, second = server.add(long), server.add([*long[:shared], *B[: 45 - shared]])
    assert server.step().reqs == ([first] if waits else [first, second])
    server.run()
    assert second.cached_tokens == (36 if waits else 0)
    assert_as_expected(server, first, second)


@pytest.mark.parametrize("fields", [{"disable_radix_cache": True}, {}])
def test_nobody_waits_where_nothing_can_be_shared(fields: dict[str, Any]) -> None:
    server = FakeServer(max_total_tokens=512, max_context_len=128, **fields)
    long = range(1000, 1040)
    keys = (None, None) if fields else ("lora-a", "lora-b")
    reqs = [server.add(long, extra_key=key) for key in keys]
    assert server.step().reqs == reqs
    server.run()
    server.check_all_free()


def test_a_pool_held_from_outside_is_an_error_not_an_endless_loop() -> None:
    server = FakeServer(max_total_tokens=20)
    held = server.pool.alloc(15)
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
    assert server.step().reqs == reqs
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
