"""Who is admitted when: what others may still need, what is cached, and what one that does not fit waits for."""

import pytest

from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.requests.req import Req
from tests.helpers.fakes import A, B, C, FakeServer, assert_as_expected, passes

EXTEND, DECODE = ForwardMode.EXTEND, ForwardMode.DECODE


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
    assert len(server.step().reqs) == (2 if fits else 1)
    server.run()


def test_cached_tokens_that_nobody_uses_count_as_room_and_are_evicted_when_it_is_needed() -> None:
    server = FakeServer(max_total_tokens=20)
    server.serve(A[:6], max_new_tokens=5)
    assert (server.pool.available_size(), server.tree.evictable_size()) == (10, 10)
    second = server.add(B[:15], max_new_tokens=2)
    assert server.step().reqs == [second]
    assert server.tree.peek_prefix(A[:6])[0] == 0
    server.run()
    server.check_all_free()


@pytest.mark.parametrize(("page_size", "ratio", "slots"), [(1, 0.5, 10), (1, 0.001, 6), (1, 1.0, 14), (4, 0.3, 8)])
def test_what_a_request_may_ask_for_is_rounded_up(page_size: int, ratio: float, slots: int) -> None:
    """Of 14 slots at most, for 5 tokens that are there and a share of 9 others; in whole pages."""
    server = FakeServer(page_size=page_size)
    req = server.add(A[:5], max_new_tokens=10)
    assert server.cache.outstanding_size(req, ratio) == slots


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
    assert server.step().reqs == [reuser]
    assert reuser.cached_tokens == 10
    assert other in server.scheduler.waiting
    server.run()
    assert_as_expected(server, reuser, other)


def test_a_shared_prefix_is_paid_for_once() -> None:
    server = FakeServer(max_total_tokens=16)
    server.serve(A[:10], max_new_tokens=1)
    reqs = [server.add([*A[:10], 1 + i], max_new_tokens=2) for i in range(3)]  # 2 slots each beside the 10
    assert server.step().reqs == reqs
    assert server.tree.evictable_size() + server.pool.available_size() == 3
    server.run()
    assert_as_expected(server, *reqs)


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
    assert (batch.forward_mode, batch.reqs) == (EXTEND, [late])
    assert staying in server.scheduler.running
    server.run()
    assert_as_expected(server, staying, late)
    server.check_all_free()


@pytest.mark.parametrize("how", ["abort", "pause"])
def test_without_the_first_in_line_the_second_comes_in(how: str) -> None:
    server = FakeServer(max_total_tokens=20, schedule_policy="fcfs")
    server.add(A[:6], max_new_tokens=10)
    server.step()
    big, small = server.add(B[:15], max_new_tokens=2), server.add(C[:2], max_new_tokens=2)
    server.step()
    assert list(server.scheduler.waiting) == [big, small]
    server.abort(big) if how == "abort" else server.scheduler.pause(big)
    batch = server.step()
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
    assert server.step().reqs == [late]
    assert late.cached_tokens == 20
    server.run()
    assert_as_expected(server, late)
    server.check_all_free()


def test_a_blocked_request_waits_while_the_ratio_falls_too_little() -> None:
    server, late = sharing_server(80)
    server.scheduler.new_token_ratio.value = 0.6  # 36 are set aside, and 29 needed
    server.step()
    assert late in server.scheduler.waiting


def test_a_cached_prefix_that_nobody_keeps_locked_is_room_that_a_blocked_request_cannot_count_twice() -> None:
    """It would lock its 20 cached tokens, which are part of what can be had: they make nothing cheaper."""
    server = FakeServer(90, schedule_conservativeness=1.0, max_context_len=128)
    server.serve(A, max_new_tokens=1)
    server.add(B[:10], max_new_tokens=60)
    server.step()
    late = server.add([*A, *C[:5]], max_new_tokens=40)  # 42 are set aside, 33 needed; 60 are left once A is locked
    for _ in range(4):
        server.step()
        assert late in server.scheduler.waiting
