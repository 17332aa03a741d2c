"""Checks of notebook 19: when fetching pays, and which block leaves first. nb19_files.py has the table and the file."""

import random
from fractions import Fraction
from math import floor
from typing import Any

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import a_kind, expect, expect_equal

# --- 19.1 -------------------------------------------------------------------------------------------------------------


def _fewest(bytes_per_token: int, bytes_per_second: float, begin: float, compute: float) -> int | None:
    """By fractions, so exactly."""
    gain = Fraction(compute) - Fraction(bytes_per_token) / Fraction(bytes_per_second)
    return None if gain <= 0 else floor(Fraction(begin) / gain) + 1


@exercise("19.1", "When fetching pays")
def _(given: Given) -> str:
    fewest_tokens, rng = given["fewest_tokens"], random.Random(191)
    cases: list[tuple[int, float, float, float]] = [
        (1024, 2.0**20, 0.5, 2.0**-8),
        (1024, 2.0**20, 0.5, 2.0**-9),
        (1024, 2.0**20, 0.0, 2.0**-9),
        (1024, 2.0**20, 0.5, 2.0**-10),
        (1024, 2.0**20, 0.5, 2.0**-11),
        (1024, 2.0**20, 0.0, 2.0**-10),
        (1024, 2.0**20, 2.0**-12, 2.0**-8),
    ]
    for _ in range(60):  # all powers of two, or sums of few: floats have them exactly
        cases.append((2 ** rng.randrange(8, 14), 2.0 ** rng.randrange(18, 24), rng.randrange(64) / 64,
                      2.0 ** -rng.randrange(4, 14)))  # fmt: skip
    for case in cases:
        _about_fewest(fewest_tokens(*case), *case)
    return f"{len(cases)} storeys, quick and slow ones"


def _about_fewest(got: Any, bytes_per_token: int, bytes_per_second: float, begin: float, compute: float) -> None:
    each = bytes_per_token / bytes_per_second
    said = f"A fetch takes {begin} s and {each} s per token; computing takes {compute} s per token:"
    want = _fewest(bytes_per_token, bytes_per_second, begin, compute)
    if want is None:
        expect(
            got is None,
            f"{said} fetching is never faster, since each token takes {'longer' if each > compute else 'as long'}. "
            f"Return None, not {got!r}.",
        )
        return
    expect(got is not None, f"{said} fetching is faster from {want} tokens on, but you return None.")
    expect(isinstance(got, int) and not isinstance(got, bool), f"{said} return a whole number, not {a_kind(got)}.")
    expect(got >= 1, f"{said} you return {got}. A fetch has at least 1 token.")
    equal = Fraction(begin) + got * Fraction(each) == got * Fraction(compute)
    expect(not equal, f"{said} {got} tokens take as long both ways. Equal isn't faster.")
    expect(
        got != 1 or want == 1,
        f"{said} 1 token isn't fetched faster. Did you forget the {begin} s before the first byte?",
    )
    expect_equal(got, want, f"{said} the number of tokens is wrong.")


# --- 19.2 -------------------------------------------------------------------------------------------------------------

Blocks = dict[str, tuple[str | None, int]]


def _first(blocks: Blocks) -> str:
    continued = {before for before, _ in blocks.values()}
    return min((name for name in blocks if name not in continued), key=lambda name: blocks[name][1])


@exercise("19.2", "Which block leaves")
def _(given: Given) -> str:
    first_to_leave, rng = given["first_to_leave"], random.Random(192)
    cases: list[Blocks] = [
        {"a": (None, 3)},
        {"a": (None, 1), "b": (None, 2)},
        {"b": (None, 2), "a": (None, 1)},
        {"a": (None, 1), "b": ("a", 2)},
        {"a": (None, 1), "b": ("a", 4), "c": ("a", 3)},
        {"a": (None, 1), "b": ("a", 2), "c": (None, 3)},
        {"a": (None, 1), "b": ("a", 2), "c": ("b", 5), "d": (None, 4)},
    ]
    for _ in range(60):
        number = rng.randrange(2, 12)
        times = rng.sample(range(100), number)
        befores = [None if not i or rng.random() < 0.25 else f"block {rng.randrange(i)}" for i in range(number)]
        names = [*range(number)]
        rng.shuffle(names)
        cases.append({f"block {i}": (befores[i], times[i]) for i in names})
    for blocks in cases:
        _about_first(first_to_leave, blocks)
    return f"{len(cases)} storeys, until each of them was empty"


def _about_first(first_to_leave: Any, blocks: Blocks) -> None:
    left = dict(blocks)
    while left:
        kept, said, want = dict(left), f"blocks={left}.", _first(left)
        got = first_to_leave(left)
        expect(left == kept, f"{said} You changed the blocks.")
        expect(isinstance(got, str) and got in kept, f"{said} Return the name of a block, not {got!r}.")
        behind = [name for name, (before, _) in kept.items() if before == got]
        expect(
            not behind,
            f"{said} You let {got!r} leave, but {behind[:1]} is behind it. Nothing could find that block any more, and it "
            "would still take up room.",
        )
        expect(
            got == want,
            f"{said} You let {got!r} leave, which was used at {kept[got][1]}. {want!r} has nothing behind it, either, and "
            f"was used at {kept[want][1]}, which is longer ago.",
        )
        del left[want]
