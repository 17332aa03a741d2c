"""Passes without a cache, and with slots in pages."""

import pytest

from tests.helpers.fakes import A, B, FakeServer, assert_as_expected


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
