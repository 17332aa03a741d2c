"""Checks of notebook 12: the inner loop of a product, in C++."""

import time
from typing import Any

import numpy as np

from nanoinfer.errors import KernelsUnavailableError
from notebooks.course.compiled import Cpp
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, a_kind, expect, expect_equal

UNTOUCHED = -12345.0
BOUNDS = ("-fsanitize=bounds", "-fsanitize-undefined-trap-on-error")  # an index outside an array ends the process
REFERENCE = """
    for (int p = 0; p < PANELS; p++) {
        Floats vector = *(const Floats*)(w + k * COLUMNS + p * LANES);
        for (int m = 0; m < M; m++) sums[m][p] += x[m * in + k] * vector;
    }
"""


@exercise("12.4", "The inner loop", points=2)
def _(given: Given) -> str:
    text = given["inner_loop"]()
    expect(isinstance(text, str), f"Return the statements as a string, not as {a_kind(text)}.")
    expect(text.strip(), "That is an empty loop: the sums stay 0.")
    source = given["your_source"]()
    try:
        compiled = Cpp(source)
    except KernelsUnavailableError as error:
        return f"written, but not tried, because there is {error}"
    except ValueError as error:
        raise Hint(f"C++ says that {error}") from None
    try:
        guarded = Cpp(source, *BOUNDS)
    except ValueError:  # a compiler that has no such flags
        guarded = compiled
    number = np.zeros(1, np.int64)
    compiled.columns(number)
    columns = int(number[0])
    rng = np.random.default_rng(4)
    for rows, inputs, groups in ((6, 5, 2), (1, 1, 1), (1, 7, 1), (6, 3, 1), (9, 40, 3), (2, 64, 1)):
        x, weight, packed = _sizes(rng, rows, inputs, groups, columns)
        y = np.full((rows, groups * columns), UNTOUCHED, np.float32)
        said = f"x [{rows}, {inputs}], W [{groups * columns}, {inputs}]"
        _compared(_outcome(guarded, x, packed, y, said), x, weight, said)
    _bits(compiled, columns, rng)
    slower = _slower(compiled, source, text, columns)
    proved = "right for 1 to 9 tokens, and the same bits alone and among others"
    return proved if slower < 2 else f"{proved}; but it takes {slower:.0f} times as long as whole vectors need"


def _sizes(rng: Any, rows: int, inputs: int, groups: int, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, the weight, and the weight packed: small whole numbers, so that every sum is exact."""
    x = rng.integers(1, 9, (rows, inputs)).astype(np.float32)
    weight = rng.integers(-8, 9, (groups * columns, inputs)).astype(np.float32)
    return x, weight, np.ascontiguousarray(weight.reshape(groups, columns, inputs).transpose(0, 2, 1))


def _outcome(compiled: Cpp, x: np.ndarray, packed: np.ndarray, y: np.ndarray, said: str) -> np.ndarray:
    got = compiled.outcome("product", x, packed, y, *x.shape, y.shape[1], result=y)
    if not isinstance(got, str):
        return got
    inside = "Every index must stay below its array's end: p goes to PANELS - 1, and m to M - 1, which is 5, 1 or 0."
    ended = "Does each loop count up to its end?" if "doesn't end" in got else inside
    raise Hint(f"{said}: your product {got}. {ended}")


def _compared(got: np.ndarray, x: np.ndarray, weight: np.ndarray, said: str) -> None:
    want = x @ weight.T  # of small whole numbers, so it is exact
    if np.array_equal(got, want):
        return
    expect(np.abs(got).any(), f"{said}: everything is 0. Add to `sums`, for every m and p.")
    last = x[:, -1:] * weight[:, -1]
    expect(not np.array_equal(got, last), f"{said}: only the last k counts. Add to the sums with `+=`.")
    expect(
        len(x) == 1 or not np.array_equal(got, np.broadcast_to(want[0], want.shape)),
        f"{said}: every token gets the sums of token 0. The number of token m is x[m * in + k].",
    )
    right = (got == want).all(axis=0)
    expect(
        not right.any(),
        f"{said}: some outputs are right and others wrong. Every p from 0 to PANELS - 1 has its own vector of weights.",
    )
    right = (got == want).all(axis=1)
    expect(
        not right.any(),
        f"{said}: token {right.argmax()} is right, and token {right.argmin()} is wrong. Every m from 0 to M - 1 has its "
        "own number x[m * in + k].",
    )
    expect_equal(got, want, f"{said}: the product is wrong.")


def _bits(compiled: Cpp, columns: int, rng: Any) -> None:
    x = rng.standard_normal((9, 300), dtype=np.float32)
    packed = rng.standard_normal((1, 300, columns), dtype=np.float32)
    y = np.zeros((9, columns), np.float32)
    together = compiled.outcome("product", x, packed, y, 9, 300, columns, result=y)
    for row in range(9):
        alone = compiled.outcome("product", x[row : row + 1], packed, y[:1], 1, 300, columns, result=y[:1])
        expect(
            isinstance(alone, np.ndarray)
            and isinstance(together, np.ndarray)
            and np.array_equal(alone[0], together[row]),
            f"Token {row} of 9 doesn't get the same bits as alone. Add up in one order, whatever M is: k from first to "
            "last.",
        )


def _slower(compiled: Cpp, source: str, text: str, columns: int) -> float:
    """How many times as long as the reference it takes for 60 tokens. Told, never judged: machines are busy."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((60, 512), dtype=np.float32)
    packed = rng.standard_normal((8, 512, columns), dtype=np.float32)
    y = np.zeros((60, 8 * columns), np.float32)
    both = (compiled, Cpp(source.replace(text, REFERENCE)))
    times: list[list[float]] = [[], []]
    for _ in range(10):  # they take turns, so that a busy moment meets both
        for each, spent in zip(both, times, strict=True):
            start = time.perf_counter()
            each.product(x, packed, y, 60, 512, 8 * columns)
            spent.append(time.perf_counter() - start)
    return min(times[0]) / min(times[1])
