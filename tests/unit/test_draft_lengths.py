"""DraftLengths: drafts where they pay by the costs that were measured, compared with trying every assignment."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer import SamplingParams
from nanoinfer.drafting.acceptance import EXPECTED, MEMORY, Acceptance
from nanoinfer.drafting.draft_lengths import (
    COST_DOUBT,
    FEW_ROWS,
    FIRST_DOUBT,
    LAST_DOUBT,
    LEAST_GAIN,
    SAME_PLAN,
    DraftLengths,
    Turn,
)
from nanoinfer.drafting.pass_costs import ENOUGH, SKIPPED, UNKNOWN_SLOPE, PassCosts
from nanoinfer.requests.req import Req

ENOUGH_PASSES = SKIPPED + ENOUGH
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
    lengths = measured(DraftLengths([Silent()] * num_drafters, most, True), costs)
    for drafter in range(num_drafters):
        for _ in range(ENOUGH_PASSES):
            lengths.count_proposal(drafter, 1, 1, step_seconds)
    return lengths


def accept(lengths: DraftLengths, req: Req, rate: float, drafter: int = 0, passes: int = 200) -> Req:
    """Drafts one by one, of which the share `rate` is right."""
    right = 0.0
    for _ in range(passes):
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
    for _ in range(60):
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


def test_nothing_is_known_until_a_size_was_measured_several_times_and_the_first_time_is_skipped() -> None:
    costs = PassCosts()
    costs.add(4, 1000.0)  # the pass was recorded
    for seconds in [3.0] * (ENOUGH - 1):
        assert (costs.largest, costs.seconds(4)) == (0, 0.0)
        costs.add(4, seconds)
    assert (costs.largest, costs.seconds(4)) == (0, 0.0)
    costs.add(4, 3.0)
    assert (costs.largest, costs.seconds(4)) == (4, 3.0)


def test_between_two_sizes_costs_lie_on_the_line() -> None:
    costs = known_costs(_8=4.0, _2=1.0)
    assert [costs.seconds(rows) for rows in (2, 4, 5, 8)] == pytest.approx([1.0, 2.0, 2.5, 4.0])
    costs = known_costs(_1=1.0, _4=2.0, _16=2.0, _32=10.0)
    assert [costs.seconds(rows) for rows in (1, 2, 8, 24)] == pytest.approx([1.0, 4 / 3, 2.0, 6.0])
    assert costs.largest == 32


def test_beyond_the_sizes_that_are_known_costs_are_hopeful() -> None:
    costs = known_costs(_4=2.0)
    assert costs.seconds(8) == pytest.approx(2.0 * (1 + UNKNOWN_SLOPE))
    assert 2.0 < costs.seconds(5) < costs.seconds(16) < 2.0 * 1.2
    assert 1.0 <= costs.seconds(1) < 2.0


def test_disturbed_measurements_do_not_count_and_old_ones_are_forgotten() -> None:
    costs, rng = PassCosts(), np.random.default_rng(0)
    for i in range(60):
        costs.add(4, 2.0 + (float(rng.uniform(1, 50)) if i % 2 else 0.0))  # something else ran in every second pass
    assert costs.seconds(4) == 2.0
    for _ in range(20):
        costs.add(4, 5.0)
    assert costs.seconds(4) == 5.0, "the machine has become slower for good"


# --- how many drafts -------------------------------------------------------------------------------------------------


def plan_of(lengths: DraftLengths, *reqs: Req) -> list[int]:
    return most_of(lengths.choose(reqs, True), len(reqs))


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
    accept(lengths, req, 0.02, drafter=2)
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
    for count in range(LAST_DOUBT + COST_DOUBT):
        if any(plan_of(lengths, req)):
            return count
    raise AssertionError("never")


def test_a_request_whose_drafts_were_wrong_gets_another_chance_each_time_later() -> None:
    lengths, req = make_lengths(flat), make_req()
    waits = []
    for _ in range(4):
        accept(lengths, req, 0.0)
        waits.append(rests(lengths, req))
    assert waits == [FIRST_DOUBT, 2 * FIRST_DOUBT, LAST_DOUBT, LAST_DOUBT]


def test_another_requests_chance_is_its_own() -> None:
    lengths, wrong, right = make_lengths(lambda rows: 1 + 0.05 * rows), make_req(), make_req()
    accept(lengths, wrong, 0.0)
    accept(lengths, right, 1.0)
    for _ in range(FIRST_DOUBT):
        assert plan_of(lengths, wrong, right) == [0, 7]
    first, second = plan_of(lengths, wrong, right)
    assert (first > 0, second) == (True, 7)


def test_costs_that_made_drafting_stop_are_forgotten_and_measured_again() -> None:
    lengths, req = make_lengths(steep), make_req()
    accept(lengths, req, 1.0)
    for _ in range(COST_DOUBT):
        assert plan_of(lengths, req) == [0]
        lengths.count_pass(1, True, steep(1))
    for _ in range(COST_DOUBT // 4):
        lengths.count_pass(1, True, steep(1))
    assert settled_plan_of(lengths, req) == [7], "hopeful again"
    measured(lengths, steep, [8])
    assert settled_plan_of(lengths, req) == [0]


def test_what_a_pass_takes_without_drafts_is_measured_again_while_drafts_pay() -> None:
    lengths, req = make_lengths(flat), make_req()
    accept(lengths, req, 1.0)
    without = 0
    for _ in range(4 * COST_DOUBT):
        (drafts,) = plan_of(lengths, req)
        lengths.count_pass(1 + drafts, True, flat(1 + drafts))
        without += not drafts
    assert 3 * ENOUGH <= without <= 16 * ENOUGH


def test_of_drafters_that_are_right_as_often_the_faster_one_is_asked() -> None:
    lengths, req = make_lengths(flat, num_drafters=2), make_req()
    for drafter, seconds in ((0, 0.2), (1, 0.1)):
        accept(lengths, req, 0.8, drafter)
        for _ in range(10):
            lengths.count_proposal(drafter, 1, 1, seconds)
    assert asked(lengths.choose([req], True)) == [1, 0]


# --- against every assignment ----------------------------------------------------------------------------------------


def speed(assignment: Sequence[int], rates: Sequence[float], costs: Costs, step_seconds: float) -> float:
    """Tokens per second of a pass with so many drafts for each request."""
    tokens = sum(1 + sum(rate**j for j in range(1, k + 1)) for rate, k in zip(rates, assignment, strict=True))
    return tokens / (costs(len(rates) + sum(assignment)) + max(assignment) * step_seconds)


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
    found = lengths._turn(0, limits, rates, lengths._costs[True]).most
    assert all(0 <= count <= limit for count, limit in zip(found, limits, strict=True))
    best = max(speed(assignment, rates, costs, 0.0) for assignment in product(*(range(limit + 1) for limit in limits)))
    without = speed([0] * batch, rates, costs, 0.0)
    if any(found):
        assert speed(found, rates, costs, 0.0) == pytest.approx(best)
        assert best > LEAST_GAIN * without * (1 - 1e-9)
    else:
        assert best <= LEAST_GAIN * without * (1 + 1e-9)


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
    (found,) = lengths._turn(0, [7], [rate], lengths._costs[True]).most
    without, best = (
        speed([0], [rate], costs, step_seconds),
        max(speed([k], [rate], costs, step_seconds) for k in range(8)),
    )
    if found:
        assert speed([found], [rate], costs, step_seconds) == pytest.approx(best)
        assert best >= LEAST_GAIN * without * (1 - 1e-9)
    else:
        assert best <= LEAST_GAIN * without * (1 + 1e-9)
