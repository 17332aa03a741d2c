"""Kernels.draw: the token at a share of the total weight, compared with exact arithmetic, with C++ and with plain torch."""

from fractions import Fraction
from math import exp, inf, isfinite, nan

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer.model.kernels import Kernels, select_kernels
from tests.helpers.kernels import need_cpp

CPU = torch.device("cpu")


@pytest.fixture(params=["torch", "cpp"], scope="module")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "cpp":
        need_cpp("float32")
    return select_kernels(request.param, torch.float32, CPU)


def draw(
    kernels: Kernels, rows: list[list[float]], temperatures: list[float], numbers: list[float]
) -> tuple[list[int], list[float]]:
    scores = torch.tensor(rows, dtype=torch.float32)
    before = scores.clone()
    tokens, totals = kernels.draw(scores, np.array(temperatures, dtype=np.float32), np.array(numbers))
    assert (tokens.dtype, totals.dtype) == (torch.int64, torch.float64)
    assert torch.equal(scores.nan_to_num(5.0), before.nan_to_num(5.0)), "scores are not changed"
    return tokens.tolist(), totals.tolist()


scores = st.one_of(st.floats(-30, 30, width=32), st.sampled_from([-inf, 0.0, 0.0, -200.0, 3e38, -3e38]))


@settings(max_examples=200)
@given(
    st.lists(scores, min_size=1, max_size=70).filter(lambda row: max(row) > -inf),
    st.sampled_from([0.05, 0.7, 1.0, 3.0, 1e-30, 1e30]),
    st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53])),
)
def test_the_token_is_where_the_weights_pass_the_number(
    kernels: Kernels, row: list[float], temperature: float, number: float
) -> None:
    """Within what rounding of a weight to float32 can move."""
    (token,), (total,) = draw(kernels, [row], [temperature], [number])
    t = float(np.float32(temperature))
    top = max(row)
    weights = [Fraction(exp(max((score - top) / t, -745.0))) if score > -inf else Fraction(0) for score in row]
    whole, before = sum(weights), sum(weights[:token])
    assert total == pytest.approx(float(whole), rel=1e-4)
    slack = whole / 10**4
    target = Fraction(number) * whole
    assert before <= target + slack
    assert before + weights[token] >= target - slack
    assert row[token] > -inf


def test_a_temperature_of_zero_takes_the_first_of_the_likeliest(kernels: Kernels) -> None:
    for size in (1, 5, 16, 17, 40):
        row = [0.0] * size
        assert draw(kernels, [row], [0.0], [0.99])[0] == [0]
        row[size - 1] = 2.0
        assert draw(kernels, [row, row], [0.0, 0.0], [0.0, 0.5])[0] == [size - 1] * 2
    assert draw(kernels, [[-inf, -3.0, -inf]], [0.0], [0.3])[0] == [1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [nan, inf])
@pytest.mark.parametrize("place", [0, 15, 16, 36])
def test_rows_from_which_nothing_can_be_drawn_say_so_and_others_are_drawn(
    kernels: Kernels, bad: float, place: int, temperature: float
) -> None:
    good = [0.0] * 36 + [30.0]
    broken = list(good)
    broken[place] = bad
    nothing = [-inf] * 37
    tokens, totals = draw(kernels, [good, broken, nothing, good], [temperature] * 4, [0.5] * 4)
    assert [tokens[0], tokens[3]] == [36, 36]
    assert [isfinite(total) for total in totals] == [
        True,
        False,
        False,
        True,
    ]


def test_a_row_is_drawn_as_it_is_alone(kernels: Kernels) -> None:
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((33, 1003)) * 4).astype(np.float32)
    temperatures, numbers = rng.choice([0.0, 0.5, 1.3], 33).astype(np.float32), rng.random(33)
    together = kernels.draw(torch.from_numpy(rows), temperatures, numbers)
    for i in range(33):
        alone = kernels.draw(torch.from_numpy(rows[i : i + 1]), temperatures[i : i + 1], numbers[i : i + 1])
        assert [each.item() for each in alone] == [each[i].item() for each in together]


def test_what_is_drawn_is_distributed_as_the_weights(kernels: Kernels) -> None:
    """At evenly spaced numbers, each token comes as often as its probability says, within one."""
    row = torch.tensor([1.0, -0.5, 2.0, 0.0, -inf, 1.5])
    for temperature in (0.5, 1.0, 2.0):
        count = 4000
        tokens, _ = kernels.draw(
            row.expand(count, -1).contiguous(),
            np.full(count, temperature, np.float32),
            (np.arange(count) + 0.5) / count,
        )
        wanted = (row.double() / temperature).softmax(0) * count
        assert (tokens.bincount(minlength=6) - wanted).abs().max() <= 1.01
