"""DraftLengths: drafts where they pay by the costs that were measured, compared with trying every assignment."""

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer import SamplingParams
from nanoinfer.drafting.acceptance import EXPECTED, MEMORY, Acceptance
from nanoinfer.drafting.draft_lengths import (
    FEW_ROWS,
    FIRST_DOUBT,
    HOPE_AGAIN,
    LAST_DOUBT,
    LEAST_GAIN,
    LONGEST_PLAN,
    MEASURED,
    MOST_SILENT,
    SAME_PLAN,
    STALE,
    DraftLengths,
    Prospect,
    Turn,
)
from nanoinfer.drafting.pass_costs import (
    ENOUGH,
    HOPE,
    HOPE_AFTER,
    HOPED_SHARE,
    OUTLIER,
    UNKNOWN_SLOPE,
    Drift,
    PassCosts,
)
from nanoinfer.drafting.promises import BELIEF, FORGIVENESS, Promises
from nanoinfer.model.captured_passes import coarse_size
from nanoinfer.requests.req import Req

ENOUGH_PASSES = 1 + ENOUGH  # one after another kind of pass does not count
Costs = Callable[[int], float]


class Silent:
    """A drafter that is never asked here."""

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        raise AssertionError


def make_req(max_new_tokens: int = 64, **params: Any) -> Req:
    return Req(0, np.array([1, 2]), SamplingParams(max_new_tokens=max_new_tokens, temperature=0, **params))


def measured(lengths: DraftLengths, costs: Costs, sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128)) -> DraftLengths:
    for rows in sizes:
        for _ in range(ENOUGH_PASSES):
            lengths.count_pass(rows, True, costs(rows))
    return lengths


def make_lengths(costs: Costs, most: int = 7, num_drafters: int = 1, step_seconds: float = 0.0) -> DraftLengths:
    """`step_seconds`: what each step takes a drafter."""
    lengths = measured(DraftLengths([Silent()] * num_drafters, most, True), costs)
    for drafter in range(num_drafters):
        for steps in range(1, most + 1):
            for _ in range(ENOUGH_PASSES):
                lengths.count_proposal(drafter, [make_req()], steps, steps * step_seconds)
    return lengths


def accept(lengths: DraftLengths, req: Req, rate: float, drafter: int = 0, passes: int = 200) -> Req:
    """Drafts one by one, of which the share `rate` is right. The drafter always has an idea."""
    right = 0.0
    for _ in range(passes):
        lengths.count_idea(req, drafter, True)
        right += rate
        lengths.count_drafts(req, drafter, 1, int(right))
        right -= int(right)
    return req


def flat(rows: int) -> float:
    """Rows are free: passes wait for memory."""
    return 1.0


def steep(rows: int) -> float:
    """A row costs as much as another pass."""
    return float(rows)


# --- acceptance ------------------------------------------------------------------------------------------------------


def test_the_expected_rate_counts_until_drafts_were_checked() -> None:
    assert Acceptance().rate == EXPECTED


@pytest.mark.parametrize("rate", [0.0, 0.25, 0.5, 1.0])
def test_the_rate_approaches_the_share_of_right_drafts(rate: float) -> None:
    acceptance, right = Acceptance(), 0.0
    for _ in range(1000):
        right += rate
        acceptance.add(1, int(right))
        right -= int(right)
    assert acceptance.rate == pytest.approx(rate, abs=0.06)
    assert acceptance.checked == pytest.approx(MEMORY)


def test_drafts_behind_a_wrong_one_do_not_count() -> None:
    one, other = Acceptance(), Acceptance()
    one.add(7, 2)
    other.add(3, 2)
    assert one == other
    assert (one.right, one.checked) == (2, 3)
    one, other = Acceptance(), Acceptance()
    one.add(3, 3)
    assert (one.right, one.checked) == (3, 3), "none was wrong"


def test_a_rate_follows_a_text_that_changes() -> None:
    acceptance = Acceptance()
    for _ in range(500):
        acceptance.add(3, 3)
    assert acceptance.rate > 0.95
    for _ in range(90):
        acceptance.add(3, 0)
    assert acceptance.rate < 0.2


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 64)), max_size=40))
def test_a_rate_is_a_probability(passes: list[tuple[int, int]]) -> None:
    acceptance = Acceptance()
    for drafted, accepted in passes:
        acceptance.add(drafted, min(drafted, accepted))
        assert 0 < acceptance.rate < 1
        assert acceptance.checked <= max(MEMORY, 64)


# --- what passes cost ------------------------------------------------------------------------------------------------


def known_costs(**seconds: float) -> PassCosts:
    costs = PassCosts()
    for name, value in seconds.items():
        for _ in range(ENOUGH_PASSES):
            costs.add(int(name[1:]), value)
    return costs


def test_nothing_is_known_until_a_size_was_measured_several_times_and_then_the_fastest_counts() -> None:
    costs = PassCosts()
    for seconds in [100.0, *[3.0] * (ENOUGH - 2)]:
        costs.add(4, seconds)
        assert (costs.largest, costs.seconds(4), costs.has(4), costs.knows(4)) == (0, 0.0, False, False)
    costs.add(4, 2.0)
    assert (costs.largest, costs.seconds(4), costs.has(4), costs.knows(4)) == (4, 2.0, True, True)
    assert not costs.knows(5)


def test_between_two_sizes_costs_lie_on_the_line() -> None:
    costs = known_costs(_8=4.0, _4=2.0, _2=1.0)
    assert [costs.seconds(rows) for rows in (2, 3, 4, 5, 8)] == pytest.approx([1.0, 1.5, 2.0, 2.5, 4.0])
    costs = known_costs(_16=2.0, _48=10.0)
    assert [costs.seconds(rows) for rows in (20, 32)] == pytest.approx([3.0, 6.0])
    assert (costs.largest, costs.knows(20), costs.has(20)) == (48, True, False)


def test_beyond_the_sizes_that_are_known_costs_are_hopeful() -> None:
    costs = known_costs(_4=2.0)
    assert costs.seconds(8) == pytest.approx(2.0 * (1 + UNKNOWN_SLOPE))
    assert 2.0 < costs.seconds(5) < costs.seconds(16) < 2.0 * 1.2
    assert costs.seconds(1) == 0.5
    costs = known_costs(_4=2.0, _8=4.0)
    assert costs.seconds(12) == pytest.approx(4.0 + 4 * 0.5 * HOPED_SHARE), "a share of what rows have cost so far"


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


def test_what_was_measured_long_ago_is_hoped_to_cost_less() -> None:
    costs = PassCosts()
    for now in range(ENOUGH):
        costs.add(4, 2.0, now)
    assert costs.seconds(4, ENOUGH - 1) == costs.seconds(4) == 2.0
    found = [costs.seconds(4, ENOUGH - 1 + age) for age in (HOPE_AFTER // 2, HOPE_AFTER, 10 * HOPE_AFTER)]
    assert found == pytest.approx([2.0 * (1 - HOPE / 2), 2.0 * (1 - HOPE), 2.0 * (1 - HOPE)])
    costs.add(4, 2.0, 10 * HOPE_AFTER)
    assert costs.seconds(4, 10 * HOPE_AFTER) == 2.0


def test_the_drift_is_how_much_slower_everything_has_become() -> None:
    drift = Drift()
    for seconds in [3.0] * 200:
        drift.note(seconds, 2.0)
    assert drift.factor == pytest.approx(1.5, rel=0.01)
    drift.note(1e6, 2.0)
    assert drift.factor < 1.6, "something else ran"


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


# --- whether promises are kept -----------------------------------------------------------------------------------------


def follow(promises: Promises, batch: int, promised: float, made: float, plans: int) -> None:
    """Plans of eight passes that make so many tokens per second, in place of those that were promised."""
    for _ in range(plans):
        now, tokens = promises._end
        promises.begin(batch, promised, now, tokens)
        for _ in range(8):
            now, tokens = now + batch / made, tokens + batch
            promises.note(now, tokens)
    promises.begin(batch, 0.0, now, tokens)


def test_promises_are_believed_until_they_are_broken() -> None:
    promises = Promises()
    assert promises.trust(4) == 1.0
    follow(promises, 4, 100.0, 50.0, plans=1)
    assert promises.trust(4) == pytest.approx((8 + BELIEF) / (16 + BELIEF)), "8 tokens of each request, in place of 16"
    follow(promises, 4, 100.0, 50.0, plans=100)
    assert promises.trust(4) == pytest.approx(0.5, abs=0.06)
    assert promises.trust(7) == promises.trust(4), "batches of about the same size"
    assert promises.trust(8) == promises.trust(3) == 1.0


def test_a_prompt_that_is_computed_between_two_passes_breaks_no_promise() -> None:
    lengths, req = make_lengths(lambda rows: 1 + 0.1 * rows), make_req(10**6)
    accept(lengths, req, 0.9)
    now, tokens = 0.0, 0
    for _ in range(20 * SAME_PLAN):
        lengths.rests([req], now, tokens)
        assert plan_of(lengths, req)[0] >= 5
        now, tokens = now + 1.8, tokens + 5
        lengths.interrupt()
        now += 1000.0
    assert lengths._promises.trust(1) == 1.0


def test_plans_that_keep_their_promises_together_are_believed_even_if_none_does_by_itself() -> None:
    promises, now, tokens = Promises(), 0.0, 0
    for made in (1, 5) * 100:  # 3 tokens were promised
        promises.begin(1, 3.0, now, tokens)
        now, tokens = now + 1.0, tokens + made
        promises.note(now, tokens)
    assert promises.trust(1) > 0.97


def test_a_promise_that_was_too_modest_is_not_made_larger() -> None:
    promises = Promises()
    follow(promises, 2, 100.0, 150.0, plans=20)
    assert promises.trust(2) == 1.0


def test_after_many_plans_without_drafts_broken_promises_are_forgiven() -> None:
    promises = Promises()
    follow(promises, 1, 100.0, 60.0, plans=50)
    trust = [promises.trust(1)]
    for _ in range(4):
        follow(promises, 1, 0.0, 60.0, plans=round(FORGIVENESS / 8))
        trust.append(promises.trust(1))
    assert trust == sorted(trust)
    assert trust[0] < 0.7
    assert trust[-1] > 0.9


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


# --- how many drafts -------------------------------------------------------------------------------------------------


def plan_of(lengths: DraftLengths, *reqs: Req) -> list[int]:
    return most_of(lengths.choose(list(reqs), True), len(reqs))


def most_of(turns: Sequence[Turn], num_reqs: int = 1) -> list[int]:
    """How many drafts each request may get of the one that is asked first."""
    return turns[0].most if turns else [0] * num_reqs


def asked(turns: Sequence[Turn]) -> list[int]:
    return [turn.drafter for turn in turns]


def settled_plan_of(lengths: DraftLengths, *reqs: Req) -> list[int]:
    """The plan after those passes in which an old one may still hold."""
    for _ in range(SAME_PLAN):
        plan = plan_of(lengths, *reqs)
    return plan


def test_with_nothing_known_few_rows_are_tried_at_once_and_then_twice_the_rows() -> None:
    lengths = DraftLengths([Silent()], 7, True)
    reqs = [accept(lengths, make_req(), 1.0) for _ in range(28)]
    assert plan_of(lengths, reqs[0]) == [0], "first, a pass without drafts is measured"
    measured(lengths, flat, [1])
    assert settled_plan_of(lengths, reqs[0]) == [7]
    assert plan_of(lengths, *reqs[:4]) == [0] * 4
    measured(lengths, flat, [4])
    assert sum(settled_plan_of(lengths, *reqs[:4])) == FEW_ROWS - 4
    measured(lengths, flat, [30])
    assert sum(settled_plan_of(lengths, *reqs)) == 2 * 30 - 28


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
    assert plan_of(lengths, accept(lengths, make_req(), 1.0)) == [7]


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
    assert any(plan_of(lengths, make_req()))


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
        assert plan_of(lengths, accept(lengths, req, 1.0)) == [most]


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


# --- another chance --------------------------------------------------------------------------------------------------


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
    lengths, wrong, right = make_lengths(lambda rows: 1 + 0.05 * rows), make_req(), make_req()
    accept(lengths, wrong, 0.0)
    accept(lengths, right, 1.0)
    for _ in range(FIRST_DOUBT):
        first, second = plan_of(lengths, wrong, right)
        assert (first, second) == (0, 6), "the sizes of passes are coarse: 8 rows, and then 12"
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


def test_a_plan_without_drafts_rests_but_its_last_passes_are_measured() -> None:
    lengths, reqs = make_lengths(steep), [make_req(), make_req()]
    for plan in range(5):
        resting, length = [], min(SAME_PLAN * 2**plan, LONGEST_PLAN)
        for _ in range(length):
            resting.append(lengths.rests(reqs, 0.0, 0))
            if not resting[-1]:
                assert lengths.choose(reqs, True) == []
        assert resting == [False] + [True] * (length - 1 - MEASURED) + [False] * MEASURED
    assert not lengths.rests(reqs[:1], 0.0, 0), "another batch needs another plan"


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


def long_req(num_tokens: int, max_new_tokens: int = 64) -> Req:
    return Req(0, np.arange(num_tokens), SamplingParams(max_new_tokens=max_new_tokens, temperature=0))


def test_what_it_takes_to_catch_up_on_requests_is_measured_by_itself() -> None:
    lengths = DraftLengths([Silent()], 3, True)
    for _ in range(ENOUGH):
        lengths.count_proposal(0, [make_req(), make_req(), make_req()], 3, 1.0)
    late = [long_req(50), long_req(70)]
    lengths.count_proposal(0, [make_req(), *late], 3, 7.0)
    assert lengths._proposal_seconds(0, 3, 3) == 1.0, "that is what is usual"
    assert lengths._catch_up[0].seconds(long_req(10)) == pytest.approx(10 * (7 - 1) / 120), "shared by 120 tokens"
    assert lengths._catch_up[0].seconds(long_req(4)) == 0, "one pass may bring so many"
    assert [lengths._catch_up[0].missing(req) for req in late] == [0, 0], "by now, it has seen them"
    late[0].num_admissions += 1  # retracted, and admitted again
    assert [lengths._catch_up[0].missing(req) for req in late] == [50, 0]
    lengths.count_proposal(0, late[:1], 3, 0.0)  # all of it was still cached
    assert 0 < lengths._catch_up[0].seconds(long_req(10)) < 10 * (7 - 1) / 120


def test_as_long_as_nothing_usual_is_known_what_includes_catching_up_counts_as_usual() -> None:
    lengths = DraftLengths([Silent()], 3, True)
    for seconds in (9.0, 8.0, 7.0):
        lengths.count_proposal(0, [long_req(50)], 3, seconds)
    assert lengths._proposal_seconds(0, 1, 3) == 7.0


def test_drafts_must_pay_for_catching_up_in_the_passes_that_are_left() -> None:
    lengths = make_lengths(lambda rows: 1 + 0.1 * rows)
    lengths.count_proposal(0, [long_req(50)], 7, 20.0)
    assert plan_of(lengths, accept(lengths, long_req(50, 1000), 0.9))[0] >= 5
    assert plan_of(lengths, accept(lengths, long_req(50, 20), 0.9)) == [0], "20 tokens take 22 without drafts"
    seen = accept(lengths, long_req(50, 20), 0.9)
    lengths.count_proposal(0, [seen], 7, 20.0)
    assert plan_of(lengths, seen)[0] >= 5


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


def test_what_a_drafter_takes_for_numbers_of_steps_that_were_not_measured_is_guessed() -> None:
    lengths = DraftLengths([Silent()], 5, True)
    assert lengths._proposal_seconds(0, 1, 3) == 0
    for _ in range(ENOUGH_PASSES):
        lengths.count_proposal(0, [make_req(), make_req()], 4, 2.0)
    assert [lengths._proposal_seconds(0, 2, steps) for steps in (1, 2, 4, 5)] == [0.5, 1.0, 2.0, 2.0]


def test_of_drafters_that_are_right_as_often_the_faster_one_is_asked() -> None:
    lengths, req = measured(DraftLengths([Silent()] * 2, 7, True), flat), make_req()
    for drafter, seconds in ((0, 0.2), (1, 0.1)):
        accept(lengths, req, 0.8, drafter)
        for _ in range(10):
            lengths.count_proposal(drafter, [req], 7, seconds)
    assert asked(lengths.choose([req], True)) == [1, 0]


# --- against every assignment ----------------------------------------------------------------------------------------


def prospects_of(rates: Sequence[float], limits: Sequence[int]) -> list[Prospect]:
    """Of a drafter that always has an idea."""
    return [Prospect(limit, 1.0, rate) for rate, limit in zip(rates, limits, strict=True)]


def speed(assignment: Sequence[int], rates: Sequence[float], costs: Costs, step_seconds: float) -> float:
    """Tokens per second of a pass with so many drafts for each request."""
    tokens = sum(1 + sum(rate**j for j in range(1, k + 1)) for rate, k in zip(rates, assignment, strict=True))
    batch, drafts = len(rates), sum(assignment)
    return tokens / (costs(coarse_size(batch + drafts) if drafts else batch) + max(assignment) * step_seconds)


@settings(deadline=None, max_examples=60)
@given(
    rates=st.lists(st.sampled_from([0.05, 0.3, 0.5, 0.6, 0.75, 0.9, 0.97]), min_size=1, max_size=3),
    limits=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    increments=st.lists(st.floats(0, 0.6), min_size=12, max_size=12),
)
def test_no_other_assignment_makes_a_pass_faster(
    rates: list[float], limits: list[int], increments: list[float]
) -> None:
    """A drafter whose time does not count. Each draft brings less than the one before, so none is taken out of turn."""
    table = np.cumsum([0.0, 1.0, *increments])

    def costs(rows: int) -> float:
        return float(table[rows])

    lengths = DraftLengths([Silent()], 3, True)
    measured(lengths, costs, range(1, 13))
    limits = limits[: len(rates)]
    batch = len(rates)
    found = lengths._turn(0, prospects_of(rates, limits), lengths._costs[True]).most
    assert all(0 <= count <= limit for count, limit in zip(found, limits, strict=True))
    best = max(speed(assignment, rates, costs, 0.0) for assignment in product(*(range(limit + 1) for limit in limits)))
    without = speed([0] * batch, rates, costs, 0.0)
    if any(found):
        assert speed(found, rates, costs, 0.0) == pytest.approx(best, rel=0.01), "older costs are hoped to be lower"
        assert best > LEAST_GAIN * without * 0.99
    else:
        assert best <= LEAST_GAIN * without * 1.01


@settings(deadline=None, max_examples=60)
@given(
    rate=st.sampled_from([0.3, 0.6, 0.8, 0.95]),
    slope=st.floats(0, 0.3),
    step_seconds=st.floats(0, 0.4),
)
def test_the_length_for_one_request_is_the_best_with_the_drafters_time(
    rate: float, slope: float, step_seconds: float
) -> None:
    def costs(rows: int) -> float:
        return 1 + slope * rows

    lengths = make_lengths(costs, step_seconds=step_seconds)
    (found,) = lengths._turn(0, prospects_of([rate], [7]), lengths._costs[True]).most
    without, best = (
        speed([0], [rate], costs, step_seconds),
        max(speed([k], [rate], costs, step_seconds) for k in range(8)),
    )
    if found:
        assert speed([found], [rate], costs, step_seconds) == pytest.approx(best, rel=0.01)
        assert best >= LEAST_GAIN * without * 0.99
    else:
        assert best <= LEAST_GAIN * without * 1.01


@pytest.mark.parametrize(("step_seconds", "pays"), [(0.0, True), (0.02, True), (0.2, False)])
def test_another_drafter_is_asked_for_the_requests_that_are_left_only_if_it_pays_for_these(
    step_seconds: float, pays: bool
) -> None:
    """Three of four requests have two drafts of the first drafter. The other one always has an idea and is always right."""
    lengths = make_lengths(flat, most=2, num_drafters=2, step_seconds=step_seconds)
    reqs = [make_req() for _ in range(4)]
    for req in reqs:
        accept(lengths, req, 0.5, drafter=0)
        accept(lengths, req, 1.0, drafter=1)
    turns = lengths.choose(reqs, True)
    second = next(turn for turn in turns if turn.drafter == 1)
    assert second.most == [2] * 4  # for four, it pays in any case
    # 4 + 3 (0.5 + 0.25) tokens without it, and 2 more with it: 1.3 times as many, in 1, 1.04 or 1.4 times the seconds
    assert lengths.is_worth_asking(second, reqs, [2, 2, 2, 0], [0, 0, 0, None]) is pays


def test_passes_of_a_coarse_clock_that_took_no_time_do_not_count() -> None:
    lengths, req = measured(DraftLengths([Silent()], 3, True), lambda rows: 0.0), make_req()
    assert plan_of(lengths, req) == [0]
    measured(lengths, flat)
    lengths.count_pass(1, True, 0.0)
    assert settled_plan_of(lengths, req) == [3]
