"""What it takes a drafter to catch up on a request that it has not seen."""

import pytest

from nanoinfer.drafting.draft_lengths import DraftLengths
from nanoinfer.drafting.pass_costs import ENOUGH
from tests.helpers.draft_lengths import Silent, accept, long_req, make_lengths, make_req, plan_of, settled_plan_of


def test_what_it_takes_to_catch_up_on_requests_is_measured_by_itself() -> None:
    lengths = DraftLengths([Silent()], 3, True)
    for _ in range(ENOUGH):
        lengths.count_proposal(0, [make_req(), make_req(), make_req()], 3, 1.0)
    late = [long_req(50), long_req(70)]
    for _ in range(ENOUGH):
        lengths.count_proposal(0, [make_req(), long_req(50), long_req(70)], 3, 7.0)
    lengths.count_proposal(0, [make_req(), *late], 3, 7.0)
    assert lengths._proposal_seconds(0, 3, 3) == 1.0, "that is what is usual"
    assert lengths._catch_up[0].seconds(long_req(120)) == 7.0 - 1.0
    assert lengths._catch_up[0].seconds(long_req(12)) == pytest.approx((7 - 1) * 12 / 128), "a share of it"
    assert lengths._catch_up[0].seconds(long_req(1200)) < 2 * (7 - 1), "many tokens at once are hoped to cost little"
    assert lengths._catch_up[0].seconds(long_req(4)) == 0, "one pass may bring so many"
    assert [lengths._catch_up[0].missing(req) for req in late] == [0, 0], "by now, it has seen them"
    late[0].num_admissions += 1  # retracted, and admitted again
    assert [lengths._catch_up[0].missing(req) for req in late] == [50, 0]
    for _ in range(ENOUGH):
        lengths.count_proposal(0, [make_req(), make_req(), long_req(50)], 3, 0.0)  # all of it was still cached
    assert 0 == lengths._catch_up[0].seconds(long_req(50)) < lengths._catch_up[0].seconds(long_req(70)) < 7 - 1


def test_as_long_as_nothing_usual_is_known_what_includes_catching_up_counts_as_usual() -> None:
    lengths = DraftLengths([Silent()], 3, True)
    for seconds in (9.0, 8.0, 7.0):
        lengths.count_proposal(0, [long_req(50)], 3, seconds)
    assert lengths._proposal_seconds(0, 1, 3) == 7.0


def test_drafts_must_pay_for_catching_up_in_the_passes_that_are_left() -> None:
    lengths = make_lengths(lambda rows: 1 + 0.1 * rows)
    for _ in range(ENOUGH):
        lengths.count_proposal(0, [long_req(50)], 7, 20.0)
    assert plan_of(lengths, accept(lengths, long_req(50, 1000), 0.9))[0] >= 5
    assert plan_of(lengths, accept(lengths, long_req(50, 20), 0.9)) == [0], "20 tokens take 22 without drafts"
    seen = accept(lengths, long_req(50, 20), 0.9)
    lengths.count_proposal(0, [seen], 7, 20.0)
    assert settled_plan_of(lengths, seen)[0] >= 5


def test_catching_up_breaks_no_promise() -> None:
    lengths, req = make_lengths(lambda rows: 1 + 0.1 * rows), long_req(50)
    accept(lengths, req, 0.9)
    lengths.rests([req], 0.0, 0)
    (turn,) = lengths.choose([req], True)
    lengths.count_proposal(0, [req], turn.most[0], 100.0)
    brought = 3 * turn.promise
    lengths.rests([req], 100.0 + 3.0, round(brought))
    lengths.interrupt()
    assert lengths._promises.trust(1) > 0.97
