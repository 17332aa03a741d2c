"""Checks of notebook 20: weights rounded in groups, and the batch for which arithmetic takes longer than reading."""

import numpy as np

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, a_kind, expect, expect_equal
from notebooks.course.tables import Mistake, Wrong, compare


@exercise("20.1", "A scale and a minimum", points=2)
def _(given: Given) -> str:
    rng = np.random.default_rng(20)
    for rows, inputs, group, bits in ((1, 4, 4, 8), (3, 8, 4, 4), (2, 64, 32, 4), (5, 96, 32, 3), (2, 12, 6, 2)):
        most, shape = 2**bits - 1, (rows, inputs // group)
        whole = rng.integers(0, most + 1, (*shape, group))
        whole[:, :, 0], whole[:, :, -1] = 0, most  # then scales and minimums are exact
        scales = (2.0 ** rng.integers(-4, 3, shape)).astype(np.float32)
        minimums = rng.integers(-20, 20, shape).astype(np.float32)
        moved = rng.uniform(-0.4, 0.4, whole.shape) * ((whole > 0) & (whole < most))
        weight = (scales[:, :, None] * (whole + moved) + minimums[:, :, None]).reshape(rows, inputs).astype(np.float32)
        kept = weight.copy()
        answer = given["with_minimum"](weight, group, bits)
        said = f"weight [{rows}, {inputs}], groups of {group}, {bits} bits"
        three = isinstance(answer, tuple | list) and len(answer) == 3
        expect(three, f"Return three arrays: whole numbers, scales and minimums, not {a_kind(answer)}.")
        expect(np.array_equal(weight, kept), "You changed `weight`, which belongs to the caller.")
        got_whole, got_scales, got_minimums = map(np.asarray, answer)
        for name, got in (("scale", got_scales), ("minimum", got_minimums)):
            expect_equal(list(got.shape), list(shape), f"{said}: one {name} for each group of each row.")
        expect(np.allclose(got_minimums, minimums), f"{said}: the minimum is the group's smallest number.")
        if np.allclose(got_scales * (most + 1), scales * most):
            raise Hint(f"{said}: from 0 to {most} there are {most} steps, not {most + 1}.")
        each_scale = f"{said}: the scale is the group's largest number less its smallest, divided by {most}."
        expect(np.allclose(got_scales, scales), each_scale)
        expect_equal(list(got_whole.shape), [rows, inputs], f"{said}: one whole number for each weight.")
        expect(got_whole.dtype.kind in "iu", f"{said}: the whole numbers must be integers, not {got_whole.dtype}.")
        nearest = f"{said}: the nearest whole number to (weight - minimum) / scale; an integer type alone cuts."
        expect_equal(got_whole.tolist(), whole.reshape(rows, inputs).tolist(), nearest)
    return "8, 4, 3 and 2 bits, one group per row and several"


@exercise("20.2", "Where the weights stop mattering")
def _(given: Given) -> str:
    cases = [  # where reading and computing take equally long, all times are exact in floats, however they are computed
        (100, 4, 0, 0, 1000, 10_000),
        (1024, 2, 0, 0, 1024, 8192),
        (100, 4, 0, 10, 1000, 10_010),
        (1024, 4, 4, 64, 1024, 4096),
        (1000, 4, 100, 64, 1000, 10_000),
        (128, 4, 16, 1, 1024, 16_384),
        (1_000_000, 1, 0, 64, 1_000_000, 1000),
        (100_000, 1, 24_999, 1, 1024, 8192),
        (8_000_000_000, 2, 0, 131_072, 2_000_000_000_000, 301_000_000_000_000),
    ]
    mistakes: dict[str, Mistake] = {
        "You count one operation per weight and request. It is two: a multiplication and an addition.": "one_operation",
        "K/V is missing. Each request reads that of its context.": "no_kv",
        "Where reading the K/V of one more request takes longer than its arithmetic, arithmetic never catches up. Return "
        "None.": "never_1",
        "A pass has at least one request.": "none",
        "With one request fewer, reading still takes longer than computing.": "fewer",
    }
    hint = (
        "the fewest requests, a whole number, for which computing takes at least as long as reading; None if no number "
    )
    hint += "is enough. To find that out, compare the times of one request"
    compare(given["busy_from"], _first_busy, cases, mistakes, hint=hint)
    return "float32 and int8 weights, short contexts, and contexts that are too long"


def _first_busy(
    weights: int, weight_bytes: int, context: int, kv_bytes: int, bandwidth: int, flops: int, wrong: Wrong = ()
) -> int | None:
    """All in whole numbers: requests * each >= all."""
    operations = 1 if "one_operation" in wrong else 2
    each = operations * weights * bandwidth - (0 if "no_kv" in wrong else context * kv_bytes * flops)
    if each <= 0:
        return 1 if "never_1" in wrong else None
    return max(-(-weights * weight_bytes * flops // each), "none" not in wrong) - ("fewer" in wrong)
