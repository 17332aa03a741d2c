"""PassCosts and Drift: what a pass of so many rows takes, measured or hoped for."""

import pytest

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
from tests.helpers.draft_lengths import ENOUGH_PASSES, accept, make_lengths, make_req, measured, plan_of


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
