"""Acceptance: the share of drafts that are right, of a text that may change."""

import pytest

from nanoinfer.drafting.acceptance import EXPECTED, MEMORY, Acceptance


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
