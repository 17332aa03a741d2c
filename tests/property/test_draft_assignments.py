"""DraftLengths, compared with trying every assignment of drafts to requests."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer.drafting.draft_lengths import LEAST_GAIN, DraftLengths, Prospect
from nanoinfer.drafting.measurements import MEMORY, Acceptance
from nanoinfer.model.captured_passes import coarse_size
from tests.helpers.draft_lengths import Costs, Silent, make_lengths, measured


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 64)), max_size=40))
def test_a_rate_is_a_probability(passes: list[tuple[int, int]]) -> None:
    acceptance = Acceptance()
    for drafted, accepted in passes:
        acceptance.add(drafted, min(drafted, accepted))
        assert 0 < acceptance.rate < 1
        assert acceptance.checked <= max(MEMORY, 64)


def prospects_of(rates: Sequence[float], limits: Sequence[int]) -> list[Prospect]:
    """Of a drafter that always has an idea."""
    return [Prospect(limit, 1.0, rate) for rate, limit in zip(rates, limits, strict=True)]


def speed(assignment: Sequence[int], rates: Sequence[float], costs: Costs, step_seconds: float) -> float:
    """Tokens per second of a pass with so many drafts for each request."""
    tokens = sum(1 + sum(rate**j for j in range(1, k + 1)) for rate, k in zip(rates, assignment, strict=True))
    batch, drafts = len(rates), sum(assignment)
    return tokens / (costs(coarse_size(batch + drafts) if drafts else batch) + max(assignment) * step_seconds)


@settings(max_examples=60)
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


@settings(max_examples=60)
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
