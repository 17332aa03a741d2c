"""DraftLengths: drafts where they pay by the costs that were measured; what did not pay is tried again, later each time."""

from itertools import pairwise

import pytest

from nanoinfer.drafting.draft_lengths import (
    FIRST_DOUBT,
    HOPE_AGAIN,
    LAST_DOUBT,
    LONGEST_PLAN,
    MOST_SILENT,
    SAME_PLAN,
    DraftLengths,
    Turn,
)
from nanoinfer.drafting.measurements import (
    OUTLIER,
    PassCosts,
)
from nanoinfer.requests.req import Req
from tests.helpers.draft_lengths import (
    ENOUGH_PASSES,
    Silent,
    accept,
    asked,
    flat,
    make_lengths,
    make_req,
    measured,
    most_of,
    plan_of,
    settled_plan_of,
    steep,
)

# --- how many drafts -------------------------------------------------------------------------------------------------


def test_drafts_grow_with_acceptance() -> None:
    def costs(rows: int) -> float:
        return 1 + 0.25 * rows

    counts = []
    for rate in (0.0, 0.3, 0.5, 0.7, 0.9, 1.0):
        lengths = make_lengths(costs)
        counts.append(*plan_of(lengths, accept(lengths, make_req(), rate)))
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 7)
    assert len(set(counts)) >= 4, "not all or nothing"


def test_drafts_that_are_never_right_are_left_out_even_if_rows_are_free() -> None:
    lengths = make_lengths(flat)
    assert plan_of(lengths, accept(lengths, make_req(), 0.0)) == [0]
    assert settled_plan_of(lengths, accept(lengths, make_req(), 1.0)) == [7]


def test_drafts_stop_as_the_batch_grows_where_rows_begin_to_cost() -> None:
    def costs(rows: int) -> float:
        return 8 + max(rows - 8, 0)  # eight rows are free

    per_request = []
    for batch in (1, 4, 8, 16, 32):
        lengths = make_lengths(costs)
        reqs = [accept(lengths, make_req(), 0.8) for _ in range(batch)]
        per_request.append(sum(plan_of(lengths, *reqs)) / batch)
    assert per_request == sorted(per_request, reverse=True)
    assert per_request[0] >= 4
    assert per_request[-1] == 0


def test_rows_that_cost_as_much_as_a_pass_are_never_worth_it() -> None:
    lengths = make_lengths(steep)
    for batch in (1, 2, 8):
        assert not any(plan_of(lengths, *(accept(lengths, make_req(), 1.0) for _ in range(batch))))


def test_the_time_of_the_drafter_counts() -> None:
    for step_seconds, drafts in ((0.0, 7), (0.3, 7), (1.0, 0)):
        lengths = make_lengths(flat, step_seconds=step_seconds)
        assert plan_of(lengths, accept(lengths, make_req(), 1.0)) == [drafts]


def test_requests_that_accept_more_get_more_of_a_pass() -> None:
    def costs(rows: int) -> float:
        return 1 + 0.1 * rows

    lengths = make_lengths(costs)
    rates = (0.9, 0.1, 0.5, 0.7)
    counts = plan_of(lengths, *(accept(lengths, make_req(), rate) for rate in rates))
    assert counts[0] > counts[3] >= counts[2] > counts[1] == 0


def test_greedy_passes_and_others_have_costs_of_their_own() -> None:
    lengths = make_lengths(flat)
    for rows in (1, 2, 4, 8):
        for _ in range(ENOUGH_PASSES):
            lengths.count_pass(rows, False, steep(rows))
    req = accept(lengths, make_req(), 0.9)
    assert most_of(lengths.choose([req], True)) == [7]
    assert lengths.choose([req], False) == []


def test_the_drafter_that_is_right_more_often_is_asked_first_and_the_first_of_equal_ones() -> None:
    lengths = make_lengths(flat, num_drafters=3)
    req = make_req()
    assert asked(lengths.choose([make_req()], True)) == [0, 1, 2]
    accept(lengths, req, 0.5, drafter=0)
    accept(lengths, req, 0.9, drafter=1)
    accept(lengths, req, 0.0, drafter=2)
    turns = lengths.choose([req], True)
    assert asked(turns) == [1, 0], "the last one is not worth a row"
    assert [turn.most for turn in turns] == [[7], [7]]


def test_a_new_request_is_expected_to_fare_between_hope_and_what_others_had() -> None:
    lengths = make_lengths(lambda rows: 1 + 0.4 * rows)
    assert any(plan_of(lengths, make_req()))
    accept(lengths, make_req(), 0.0, passes=2000)
    assert not any(plan_of(lengths, make_req()))
    for _ in range(20):
        accept(lengths, make_req(), 1.0, passes=100)
    assert any(settled_plan_of(lengths, make_req()))


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adaptive", [True, False])
def test_no_request_gets_more_drafts_than_it_can_still_use(adaptive: bool) -> None:
    """The token behind the last accepted draft comes with the pass, so one less than are missing."""
    lengths = DraftLengths([Silent()], 5, adaptive)
    if adaptive:
        measured(lengths, flat)
    for missing, most in ((1, 0), (2, 1), (4, 3), (6, 5), (30, 5)):
        req = make_req(missing + 1)
        req.append(7)
        assert settled_plan_of(lengths, accept(lengths, req, 1.0)) == [most]


@pytest.mark.parametrize("adaptive", [True, False])
def test_requests_with_logits_processors_get_no_drafts(adaptive: bool) -> None:
    lengths = DraftLengths([Silent()], 3, adaptive)
    if adaptive:
        measured(lengths, flat)
    own, plain = make_req(logits_processors=(lambda ids, scores: scores,)), make_req()
    assert plan_of(lengths, own, plain) == [0, 3]


def test_without_adaptation_every_request_gets_all_drafts_whatever_they_bring() -> None:
    lengths = measured(DraftLengths([Silent()] * 2, 4, False), steep)
    reqs = [accept(lengths, make_req(), 0.0) for _ in range(3)]
    assert lengths.choose(reqs, True) == [Turn(0, [4, 4, 4]), Turn(1, [4, 4, 4])]


def test_of_drafters_that_are_right_as_often_the_faster_one_is_asked() -> None:
    lengths, req = measured(DraftLengths([Silent()] * 2, 7, True), flat), make_req()
    for drafter, seconds in ((0, 0.2), (1, 0.1)):
        accept(lengths, req, 0.8, drafter)
        for _ in range(10):
            lengths.count_proposal(drafter, [req], 7, seconds)
    assert asked(lengths.choose([req], True)) == [1, 0]


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


def known_costs(**seconds: float) -> PassCosts:
    costs = PassCosts()
    for name, value in seconds.items():
        for _ in range(ENOUGH_PASSES):
            costs.add(int(name[1:]), value)
    return costs


def test_between_two_sizes_costs_lie_on_the_line() -> None:
    costs = known_costs(_8=4.0, _4=2.0, _2=1.0)
    assert [costs.seconds(rows) for rows in (2, 3, 4, 5, 8)] == pytest.approx([1.0, 1.5, 2.0, 2.5, 4.0])
    costs = known_costs(_16=2.0, _48=10.0)
    assert [costs.seconds(rows) for rows in (20, 32)] == pytest.approx([3.0, 6.0])
    assert (costs.largest, costs.knows(20), costs.has(20)) == (48, True, False)


def test_disturbed_measurements_count_for_little_and_costs_that_change_are_followed() -> None:
    costs = known_costs(_4=2.0)
    for i in range(40):
        costs.add(4, 200.0 if i % 10 == 0 else 2.0)  # something else ran
    assert 2.0 <= costs.seconds(4) < 2.2
    for _ in range(400):
        costs.add(4, 5.0)
    assert costs.seconds(4) == pytest.approx(5.0, rel=0.05), "slower for good"
    costs.add(4, 0.0)
    assert costs.seconds(4) >= 5.0 * (1 - (1 - 1 / OUTLIER)) * 0.9


def test_a_machine_that_becomes_slower_does_not_make_drafts_look_dear() -> None:
    """Sizes are measured at different times: those of DECODE passes all the time, those of VERIFY passes only while there
    are drafts."""
    lengths = make_lengths(lambda rows: 1 + 0.01 * rows)
    req = accept(lengths, make_req(), 0.9)
    measured(lengths, lambda rows: 1 + 0.01 * rows, [1] * 20)
    for _ in range(200):
        lengths.count_pass(1, True, 3 * 1.01)
    for _ in range(20):
        lengths.count_pass(8, True, 3 * 1.08)
    one, eight = (lengths._costs[True].seconds(rows) for rows in (1, 8))
    assert eight / one == pytest.approx(1.08 / 1.01, rel=0.1)
    assert plan_of(lengths, req) == [7]


def test_a_request_whose_drafts_bring_less_than_their_costs_tell_gets_no_more_of_them() -> None:
    """The first VERIFY passes look cheap, but what is between the passes is dear: it is in no measurement."""
    lengths, req = make_lengths(lambda rows: 1 + 0.1 * rows), make_req(10**6)
    accept(lengths, req, 0.9)
    now, tokens, drafted = 0.0, 0, []
    for _ in range(40 * SAME_PLAN):
        if not lengths.rests([req], now, tokens):
            drafts = plan_of(lengths, req)[0]
            lengths.count_pass(1 + drafts, True, 1 + 0.1 * (1 + drafts))
        else:
            drafts = 0
        drafted.append(drafts > 0)
        now, tokens = now + (6.0 if drafts else 1.1), tokens + (4 if drafts else 1)
    assert drafted[0]
    assert sum(drafted) <= 10 * SAME_PLAN, "of 40"
