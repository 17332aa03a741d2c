"""Aborts between the passes of a scheduler: what stays in the tree, and who comes in."""

import pytest

from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.requests.req import FinishReason
from tests.helpers.fakes import A, B, C, FakeServer, assert_as_expected, passes

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
    assert batch is not None
    assert (batch.forward_mode, batch.reqs) == (EXTEND, [second])
    server.run()
    assert_as_expected(server, second)
