"""Checks of notebook 12: the inner loop of a product, in C++. It is tried twice: with arrays that note what is read and
used, and as the notebook compiles it."""

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

# The notebook's tile, in which x, w and sums are objects. `report`: the first thing that is wrong (a number of `_told`, or
# 0), at which k, at which index, and for which M; how many weights were read, and how many there are; whether a plain
# pointer was taken, behind which nothing is seen.
WATCHED = """
constexpr int LANES = %d, PANELS = %d, COLUMNS = LANES * PANELS;
typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4)));
static long report[7], now_k, now_in, now_m;
static float nothing[LANES];
static void wrong(long what, long index) {
    if (!report[0]) report[0] = what, report[1] = now_k, report[2] = index, report[3] = now_m;
}
template <bool WEIGHTS> struct Watched {
    const float* base;
    long size, at;
    const float* numbers(long first, long count) const {
        if (first < 0 || first + count > size) return wrong(WEIGHTS ? 2 : 1, first), nothing;
        if ((WEIGHTS ? first / COLUMNS : first %% now_in) != now_k) wrong(WEIGHTS ? 4 : 3, first);
        if (WEIGHTS && count > 1 && first %% LANES) wrong(5, first);
        if (WEIGHTS) report[4] += count;
        return base + first;
    }
    float operator[](long i) const { return *numbers(at + i, 1); }
    float operator*() const { return *numbers(at, 1); }
    Watched operator+(long i) const { return {base, size, at + i}; }
    Watched operator-(long i) const { return {base, size, at - i}; }
    Watched& operator+=(long i) { at += i; return *this; }
    Watched& operator++() { at++; return *this; }
    Watched operator++(int) { at++; return {base, size, at - 1}; }
    operator const Floats*() const { return (const Floats*)numbers(at, LANES); }
    operator Floats*() const { return (Floats*)numbers(at, LANES); }
    operator const float*() const { report[6] |= WEIGHTS; return base + at; }
};
struct Row {
    Floats values[PANELS + 1];
    Floats& operator[](long p) { return values[p < 0 || p >= PANELS ? wrong(7, p), PANELS : p]; }
    Floats* begin() { return values; }
    Floats* end() { return values + PANELS; }
};
template <int M> struct Sums {
    Row rows[M + 1];
    Row& operator[](long m) { return rows[m < 0 || m >= M ? wrong(6, m), M : m]; }
    Row* begin() { return rows; }
    Row* end() { return rows + M; }
};
template <int M> static void tile(Watched<false> x, Watched<true> w, float* y, long in, long out) {
    Sums<M> sums = {};
    now_in = in, now_m = M, report[5] += in * COLUMNS;
    for (long k = 0; k < in; k++) {
        now_k = k;
        { INNER_LOOP }
    }
    for (int m = 0; m < M; m++)
        for (int p = 0; p < PANELS; p++) *(Floats*)(y + m * out + p * LANES) = sums[m][p];
}
extern "C" void product(const float* x, const float* w, float* y, long rows, long in, long out) {
    for (long n = 0; n < out; n += COLUMNS, w += in * COLUMNS) {
        float* to = y + 7 + n;
        Watched<true> weights = {w, in * COLUMNS, 0};
        if (rows == 6) tile<6>({x, 6 * in, 0}, weights, to, in, out);
        if (rows == 2) tile<2>({x, 2 * in, 0}, weights, to, in, out);
        if (rows == 1) tile<1>({x, in, 0}, weights, to, in, out);
    }
    for (int i = 0; i < 7; i++) y[i] = report[i];
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
    for lanes, panels in ((16, 4), (8, 2)):  # with AVX-512, and without
        _watch(text, lanes, panels)
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


def _watch(text: str, lanes: int, panels: int) -> None:
    """Hints about what the statements read and use; none when they do not compile with objects in place of pointers."""
    try:
        watched = Cpp((WATCHED % (lanes, panels)).replace("INNER_LOOP", text))
    except ValueError:
        return
    rng = np.random.default_rng(8)
    columns = lanes * panels
    for rows in (6, 2, 1):
        x, weight, packed = _sizes(rng, rows, 3, 2, columns)
        said = f"x [{rows}, 3], W [{2 * columns}, 3], LANES = {lanes}, PANELS = {panels}"
        got = _outcome(
            watched, x, packed, np.zeros(7 + rows * 2 * columns, np.float32), said, shape=(rows, 3, 2 * columns)
        )
        what, k, at, m, read, there, pointer = got[:7].astype(int).tolist()
        if what:
            raise Hint(f"{said}, M = {m}, k = {k}: {_told(what, at, m, 3, columns, panels)}")
        _compared(got[7:].reshape(rows, 2 * columns), x, weight, said)
        expect(
            read <= there or pointer,
            f"{said}: you read each weight {read / there:g} times per k. Read a vector once, outside the loop over m, and "
            "use it for all tokens.",
        )


def _told(what: int, at: int, m: int, inputs: int, columns: int, panels: int) -> str:
    number = (
        f"The number of token m is x[m * in + k], for the k of the loop around your statements (here in = {inputs})."
    )
    weights = "The weights of this k are the PANELS vectors of LANES numbers from w + k * COLUMNS on."
    return {
        1: f"you read x[{at}], but these tokens have {m * inputs} numbers. {number}",
        2: f"you read from w + {at}, but w has {inputs * columns} numbers. {weights}",
        3: f"you read x[{at}], which belongs to token {at // inputs} and k = {at % inputs}. {number}",
        4: f"you read from w + {at}, which belongs to k = {at // columns} (COLUMNS = {columns}). {weights}",
        5: f"you read a vector from w + {at}, which is inside another. {weights} The p-th begins p * LANES further on.",
        6: f"you use sums[{at}], but m goes from 0 to M - 1. M is 6, 2 or 1.",
        7: f"you use sums[m][{at}], but p goes from 0 to PANELS - 1, which is {panels - 1} here.",
    }[what]


def _sizes(rng: Any, rows: int, inputs: int, groups: int, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, the weight, and the weight packed: small whole numbers, so that every sum is exact."""
    x = rng.integers(1, 9, (rows, inputs)).astype(np.float32)
    weight = rng.integers(-8, 9, (groups * columns, inputs)).astype(np.float32)
    return x, weight, np.ascontiguousarray(weight.reshape(groups, columns, inputs).transpose(0, 2, 1))


def _outcome(
    compiled: Cpp, x: np.ndarray, packed: np.ndarray, y: np.ndarray, said: str, shape: tuple[int, ...] | None = None
) -> np.ndarray:
    sizes = shape or (*x.shape, y.shape[1])
    got = compiled.outcome("product", x, packed, y, *sizes, result=y)
    if not isinstance(got, str):
        return got
    ended = (
        "Does each loop count up to its end?"
        if "doesn't end" in got
        else "Every index must stay below its array's end."
    )
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
