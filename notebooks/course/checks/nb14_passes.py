"""Checks of notebook 14: how many tokens a pass with drafts gives, how many drafts pay, and the rows of a VERIFY pass."""

from typing import Any

import numpy as np

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import a_kind, expect, expect_equal
from notebooks.course.several import several

# --- 14.3 -------------------------------------------------------------------------------------------------------------


@exercise("14.3", "How many drafts", points=2)
def _(given: Given) -> str:
    expected_tokens, best_k = given["expected_tokens"], given["best_k"]
    with several() as part:
        with part("tokens"):
            for p, k in ((0.5, 2), (0.5, 0), (0.0, 3), (1.0, 3), (0.8, 1), (0.9, 7)):
                _about_tokens(expected_tokens(p, k), p, k)
        with part("best", "tokens"):
            machines = {
                "rows cost nothing": [1.0] * 10,
                "each further row adds 5 %": [1 + 0.05 * (rows - 1) for rows in range(10)],
                "each further row adds 40 %": [1 + 0.4 * (rows - 1) for rows in range(10)],
                "each row costs as much as the first": [float(rows) for rows in range(10)],
                "a pass of five rows or more is slow": [1, 1, 1.1, 1.2, 1.3, 4, 4, 4, 4, 4],
            }
            for name, seconds in machines.items():
                for p in (0.0, 0.3, 0.5, 0.75, 0.9, 1.0):
                    for most in (0, 1, 4, 8):
                        said = f"{name}, p={p}, most={most}"
                        _about_best(best_k(p, list(seconds), most), p, seconds, most, said)
    return "five machines, acceptances from 0 to 1"


def _tokens(p: float, k: int) -> float:
    return sum(p**j for j in range(k + 1))


def _about_tokens(got: Any, p: float, k: int) -> None:
    said, want = f"expected_tokens({p}, {k})", _tokens(p, k)
    expect(isinstance(got, int | float | np.number), f"{said}: return a number, not {a_kind(got)}.")
    if abs(got - want) < 1e-9:
        return
    expect(abs(got - (want - 1)) > 1e-9, f"{said} is {got:g}: the pass's own token is missing. It comes in any case.")
    expect(
        abs(got - (1 + p * k)) > 1e-9,
        f"{said} is {got:g}: draft j counts only if all drafts before it are right, too, so with probability p ** j.",
    )
    expect(
        abs(got - p**k) > 1e-9,
        f"{said} is {got:g}: that is the probability that *all* drafts are right. Add up 1, p, p ** 2, ...",
    )
    expect_equal(got, want, f"{said}: the sum of p ** j for j from 0 to {k}", atol=1e-9)


def _about_best(got: Any, p: float, seconds: list[float], most: int, said: str) -> None:
    expect(
        isinstance(got, int | np.integer) and not isinstance(got, bool),
        f"{said}: return a number of drafts, not {a_kind(got)}.",
    )
    speeds = [_tokens(p, k) / seconds[1 + k] for k in range(most + 1)]
    want = next(k for k, speed in enumerate(speeds) if speed >= max(speeds) - 1e-12)
    if got == want:
        return
    expect(0 <= got <= most, f"{said}: you return {got}. It must be 0..{most}.")
    if abs(speeds[got] - speeds[want]) < 1e-12:
        expect(False, f"{said}: {want} drafts give as many tokens per second as {got}. Take the fewest.")
    by_tokens = max(range(most + 1), key=lambda k: _tokens(p, k))
    expect(
        got != by_tokens,
        f"{said}: {got} drafts give most tokens per *pass*. The pass takes longer, too: what counts is tokens per second.",
    )
    shifted = max(range(most + 1), key=lambda k: _tokens(p, k) / (seconds[k] or seconds[1]))
    expect(got != shifted, f"{said}: a pass with k drafts has k + 1 rows: the newest token is one, too.")
    expect_equal(
        int(got),
        want,
        f"{said}: {speeds[got]:.3f} tokens per second with {got} drafts, and {speeds[want]:.3f} with {want}",
    )


# --- 14.4 -------------------------------------------------------------------------------------------------------------


@exercise("14.4", "The rows of a VERIFY pass")
def _(given: Given) -> str:
    decode_rows, rng = given["decode_rows"], np.random.default_rng(16)
    cases: list[tuple[list[int], list[int], list[int]]] = [
        ([7, 2], [10, 4], [13, 5]),
        ([3], [0], [1]),
        ([0, 1, 2], [5, 9, 1], [6, 10, 2]),
        ([4], [20], [25]),
    ]
    for _ in range(30):
        size = int(rng.integers(1, 6))
        before = rng.integers(0, 50, size)
        cases.append(
            (rng.permutation(8)[:size].tolist(), before.tolist(), (before + rng.integers(1, 5, size)).tolist())
        )
    for rows, starts, ends in cases:
        kept, said = (list(rows), list(starts), list(ends)), f"decode_rows({rows}, {starts}, {ends})"
        answer = decode_rows(*kept)
        expect(kept == (rows, starts, ends), f"{said}: you changed one of the lists.")
        expect(
            isinstance(answer, tuple) and len(answer) == 2 and all(isinstance(each, list) for each in answer),
            f"{said}: return two lists.",
        )
        _about_rows(answer[0], answer[1], rows, starts, ends, said)
    return "one request and several, with and without drafts"


def _about_rows(
    got: list[Any], lens: list[Any], rows: list[int], starts: list[int], ends: list[int], said: str
) -> None:
    counts = [end - start for start, end in zip(starts, ends, strict=True)]
    want = [row for row, count in zip(rows, counts, strict=True) for _ in range(count)]
    want_lens = [start + j for start, count in zip(starts, counts, strict=True) for j in range(1, count + 1)]
    expect(
        len(got) == len(lens),
        f"{said}: {len(got)} rows and {len(lens)} lengths. Each token of the pass has one of both.",
    )
    drafts = [row for row, count in zip(rows, counts, strict=True) for _ in range(count - 1)]
    if drafts:
        expect(
            got != rows,
            f"{said}: you have a row for each request. The pass has one for each *token*: the newest and the drafts.",
        )
        expect(got != drafts, f"{said}: you have a row for each draft. The newest token of a request has one, too.")
    expect(
        len(got) == len(want),
        f"{said}: {len(got)} rows. The pass has {len(want)} tokens: ends[i] - starts[i] of request i.",
    )
    expect_equal(got, want, f"{said}: tokens of a request are side by side, and all of them read its row")
    if lens != want_lens:
        expect(
            lens != [length - 1 for length in want_lens],
            f"{said}: these are positions. A token reads its own K/V as well, so its length is one more.",
        )
        ending = [end for end, count in zip(ends, counts, strict=True) for _ in range(count)]
        expect(
            lens != ending,
            f"{said}: with these lengths, each row reads *all* drafts, its own successors included. Row j reads j drafts.",
        )
        expect_equal(
            lens, want_lens, f"{said}: the newest token's length is starts[i] + 1, and each draft's is one more"
        )
