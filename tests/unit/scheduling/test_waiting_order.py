"""In which order the waiting are considered, and when they are ranked anew."""

from nanoinfer.model.forward_batch import ForwardMode
from tests.helpers.fakes import A, B, C, FakeServer, assert_as_expected, expected_output, passes

EXTEND = ForwardMode.EXTEND


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
