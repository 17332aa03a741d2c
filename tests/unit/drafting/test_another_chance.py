"""DraftLengths in the long run: what did not pay is tried again, later each time."""

from itertools import pairwise

from nanoinfer.drafting.draft_lengths import (
    FIRST_DOUBT,
    HOPE_AGAIN,
    LAST_DOUBT,
    LONGEST_PLAN,
    MEASURED,
    MOST_SILENT,
    SAME_PLAN,
    STALE,
    DraftLengths,
)
from nanoinfer.drafting.pass_costs import ENOUGH, HOPE_AFTER
from nanoinfer.requests.req import Req
from tests.helpers.draft_lengths import (
    Silent,
    accept,
    flat,
    make_lengths,
    make_req,
    measured,
    plan_of,
    settled_plan_of,
    steep,
)


def rests(lengths: DraftLengths, req: Req) -> int:
    """How many passes without drafts there are until the next one with."""
    for count in range(2 * LAST_DOUBT):
        if any(plan_of(lengths, req)):
            return count
    raise AssertionError("never")


def test_a_request_whose_drafts_were_wrong_gets_another_chance_each_time_later() -> None:
    """When those of all others were wrong, too, it takes longer: only then is more hoped for than they had."""
    lengths, req = make_lengths(flat), make_req()
    waits = []
    for _ in range(5):
        accept(lengths, req, 0.0)
        while any(plan_of(lengths, req)):
            pass  # the old plan holds
        waits.append(1 + rests(lengths, req))
    doubts = [FIRST_DOUBT, 2 * FIRST_DOUBT, HOPE_AGAIN]
    assert sum(doubts) <= waits[0] <= sum(doubts) + 3 * LONGEST_PLAN
    for wait, doubt in zip(waits[1:], [2 * HOPE_AGAIN, 4 * HOPE_AGAIN, LAST_DOUBT, LAST_DOUBT], strict=True):
        assert doubt <= wait <= doubt + LONGEST_PLAN


def test_a_request_that_began_badly_soon_gets_another_chance_if_others_do_well() -> None:
    lengths, req = make_lengths(flat), make_req()
    accept(lengths, make_req(), 1.0, passes=400)
    accept(lengths, req, 0.0, passes=4)
    waits = []
    for _ in range(2):
        while any(plan_of(lengths, req)):
            accept(lengths, req, 0.0, passes=1)
        waits.append(1 + rests(lengths, req))
    assert FIRST_DOUBT <= waits[0] <= FIRST_DOUBT + LONGEST_PLAN
    assert 2 * FIRST_DOUBT <= waits[1] <= 2 * FIRST_DOUBT + LONGEST_PLAN


def test_another_requests_chance_is_its_own() -> None:
    lengths, wrong, right = make_lengths(lambda rows: 1 + 0.05 * rows, most=6), make_req(), make_req()
    accept(lengths, wrong, 0.0)
    accept(lengths, right, 1.0)
    for _ in range(FIRST_DOUBT):
        first, second = plan_of(lengths, wrong, right)
        assert (first, second) == (0, 6), "sizes of passes are coarse: 8 rows, and then 10"
    first, second = plan_of(lengths, wrong, right)
    assert first > 0
    assert second >= 6


def test_costs_that_made_drafting_stop_are_measured_again_after_long() -> None:
    """Eight rows cost a little too much for drafts. When that is long ago, they are hoped to cost less, and tried again."""

    def costs(rows: int) -> float:
        return 1.0 if rows == 1 else 7.4

    lengths, req = make_lengths(costs), make_req(10**6)
    accept(lengths, req, 1.0, passes=400)
    assert settled_plan_of(lengths, req) == [0]
    for _ in range(2 * HOPE_AFTER):
        lengths.count_pass(1, True, costs(1))
    assert settled_plan_of(lengths, req) == [7], "hopeful again"
    measured(lengths, costs, [8])
    assert settled_plan_of(lengths, req) == [0]


def test_a_plan_without_drafts_rests_but_its_first_passes_are_measured() -> None:
    lengths, reqs = make_lengths(steep), [make_req(), make_req()]
    for plan in range(5):
        resting, length = [], min(SAME_PLAN * 2**plan, LONGEST_PLAN)
        for _ in range(length):
            resting.append(lengths.rests(reqs, 0.0, 0))
            if not resting[-1]:
                assert lengths.choose(reqs, True) == []
        assert resting == [False] * (1 + MEASURED) + [True] * (length - 1 - MEASURED)
    assert not lengths.rests(reqs[:1], 0.0, 0), "half as many requests need another plan"


def test_a_plan_without_drafts_is_kept_for_some_passes_as_requests_come_and_go() -> None:
    lengths = make_lengths(steep)
    batches = [[make_req() for _ in range(8 - i % 3)] for i in range(100)]  # others in every pass
    planned = []
    for i, reqs in enumerate(batches):
        if not lengths.rests(reqs, 0.0, 0):
            assert lengths.choose(reqs, True) == []
            if lengths._planned == reqs:
                planned.append(i)
    assert planned == [0, SAME_PLAN, 3 * SAME_PLAN, 5 * SAME_PLAN, 7 * SAME_PLAN, 11 * SAME_PLAN]


def test_with_long_rests_what_was_measured_grows_old_all_the_same() -> None:
    lengths, reqs = make_lengths(steep), [make_req()]
    before = lengths._passes
    for _ in range(3 * LONGEST_PLAN):
        if not lengths.rests(reqs, 0.0, 0):
            lengths.choose(reqs, True)
            lengths.count_pass(1, True, steep(1))
    assert lengths._passes - before == 3 * LONGEST_PLAN


def test_what_a_pass_takes_without_drafts_is_measured_again_while_drafts_pay() -> None:
    lengths, req = make_lengths(flat), make_req(10**6)
    accept(lengths, req, 1.0)
    without = []
    for i in range(4 * STALE):
        rests = lengths.rests([req], 0.0, 0)
        drafts = 0 if rests else plan_of(lengths, req)[0]
        if not rests:
            lengths.count_pass(1 + drafts, True, flat(1 + drafts))
        without += [] if drafts else [i]
    assert 2 * SAME_PLAN <= len(without) <= 4 * SAME_PLAN


def test_drafters_without_an_idea_are_asked_less_and_less_often() -> None:
    lengths, req = make_lengths(flat), make_req(10**6)
    asked_at = []
    for i in range(100):
        if not lengths.rests([req], 0.0, 0) and lengths.choose([req], True):
            asked_at.append(i)
            lengths.count_ideas(0)
    gaps = [later - earlier for earlier, later in pairwise(asked_at)]
    assert gaps[:2] == [2, 4]
    assert set(gaps[2:]) <= {1 + MOST_SILENT, 2, 4}
    assert len(asked_at) < 40


def test_a_drafter_that_seldom_has_an_idea_still_pays_where_only_its_ideas_cost() -> None:
    lengths, req = make_lengths(lambda rows: 1 + 0.02 * rows), make_req()
    accept(lengths, req, 0.97)
    for _ in range(200):
        for had_one in (True, False, False):
            lengths.count_idea(req, 0, had_one)
    assert plan_of(lengths, req)[0] >= 5


def test_passes_behind_a_prompt_are_not_measured() -> None:
    lengths = DraftLengths([Silent()], 3, True)
    for _ in range(2 * ENOUGH):
        lengths.interrupt()
        lengths.count_pass(1, True, 1.0)
    assert not lengths._costs[True].largest
