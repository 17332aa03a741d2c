"""Checks of notebook 14: drafts that are looked up, and which tokens of a pass count. nb14_passes.py has how many drafts
pay, and the rows of a pass."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import a_kind, expect, expect_equal

END = 2


# --- 14.1 -------------------------------------------------------------------------------------------------------------


@exercise("14.1", "Look it up", points=2)
def _(given: Given) -> str:
    lookup, rng = given["lookup"], np.random.default_rng(14)
    cases: list[tuple[list[int], int, int]] = [
        ([5, 6, 7, 8, 5, 6], 2, 3),
        ([5, 6, 7, 8], 2, 3),
        ([], 1, 3),
        ([4], 1, 3),
        ([5, 6, 7, 9, 6], 2, 3),
        ([5, 6, 7, 9, 6], 1, 1),
        ([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 2, 2),
        ([3, 7, 1, 3, 8, 1, 3], 1, 1),
        ([1, 2, 5, 1, 2, 6, 1, 2], 2, 2),
        ([1, 1, 1, 1], 2, 3),
        ([5, 6, 5, 6, 5, 6], 2, 3),
        *((rng.integers(0, 3, rng.integers(0, 30)).tolist(), int(rng.integers(1, 4)), 3) for _ in range(150)),
    ]
    for tokens, shortest, count in cases:
        kept = list(tokens)
        got, said = lookup(kept, shortest, count), f"lookup({tokens}, {shortest}, {count})"
        expect(kept == tokens, f"{said}: you changed `tokens`, which belongs to the request.")
        expect(isinstance(got, list), f"{said}: return a list of tokens, [] if there are none, not {a_kind(got)}.")
        _about_drafts(got, tokens, shortest, count, said)
    return "endings that occur once, twice, not at all or overlap themselves, in 161 texts"


def _starts(tokens: Sequence[int], n: int) -> list[int]:
    """Where the last `n` tokens begin, wherever they occur before."""
    ending = list(tokens[len(tokens) - n :])
    return [start for start in range(len(tokens) - n) if list(tokens[start : start + n]) == ending]


def _about_drafts(got: list[int], tokens: list[int], shortest: int, count: int, said: str) -> None:
    longest = max((n for n in range(1, len(tokens)) if _starts(tokens, n)), default=0)
    if longest < shortest:
        expect(
            not got,
            f"{said}: no ending of at least {shortest} tokens occurs earlier, so return []. "
            + (f"(The longest that does has {longest}.)" if longest else "(The ending itself doesn't count.)"),
        )
        return
    starts = _starts(tokens, longest)
    want = tokens[starts[-1] + longest :][:count]
    if got == want:
        return
    ending = f"The ending {tokens[len(tokens) - longest :]} occurs at {', '.join(map(str, starts))}"
    expect(got, f"{said}: {ending}. So there is something to propose.")
    expect(len(got) <= count, f"{said}: you return {len(got)} tokens. At most {count} are wanted.")
    expect(got != tokens[starts[-1] :][:count], f"{said}: you return the match itself. What *follows* it is wanted.")
    first = tokens[starts[0] + longest :][:count]
    expect(got != first, f"{said}: {ending}. Take the last of these: what was said lately is likelier to come again.")
    for n in range(shortest, longest):
        of_shorter = [tokens[start + n :][:count] for start in _starts(tokens, n)]
        longer = f"{tokens[len(tokens) - longest :]}."
        longer += " (The two may overlap.)" if starts[-1] + 2 * longest > len(tokens) else ""
        expect(
            got not in of_shorter,
            f"{said}: you use an ending of {n}. A longer one occurs earlier, too: {longer}",
        )
    expect_equal(got, want, f"{said}: {ending}. Return what follows the last of these, up to {count} tokens.")


# --- 14.2 -------------------------------------------------------------------------------------------------------------


@exercise("14.2", "Which tokens count")
def _(given: Given) -> str:
    counted, rng = given["counted"], np.random.default_rng(15)
    cases: list[tuple[list[int], list[int]]] = [
        ([5, 6, 7], [5, 6, 9, 4]),
        ([], [8]),
        ([5, 6, 7], [5, 6, 7, 4]),
        ([5, 6, 7], [9, 6, 7, 4]),
        ([5, 6, 7], [5, 9, 7, 4]),
        ([5, END, 7], [5, END, 7, 4]),
        ([5, 6], [END, 6, 8]),
        ([5, 6], [5, 6, END]),
    ]
    for _ in range(100):
        drafts = rng.integers(1, 4, rng.integers(0, 5)).tolist()
        cases.append((drafts, rng.integers(1, 4, len(drafts) + 1).tolist()))
    for drafts, sampled in cases:
        kept = list(drafts), list(sampled)
        got, said = counted(*kept, END), f"counted({drafts}, {sampled}, {END})"
        expect(kept == (drafts, sampled), f"{said}: you changed `drafts` or `sampled`.")
        expect(isinstance(got, list | tuple), f"{said}: return a list of tokens, not {a_kind(got)}.")
        _about_tokens(list(got), drafts, sampled, said)
    return "all right, all wrong, wrong in the middle, and end tokens anywhere"


def _about_tokens(got: list[Any], drafts: list[int], sampled: list[int], said: str) -> None:
    right = 0
    while right < len(drafts) and drafts[right] == sampled[right]:
        right += 1
    through = sampled[: right + 1]
    want = through[: through.index(END) + 1] if END in through else through
    if got == want:
        return
    expect(
        got, f"{said}: a request gets at least one token: what was sampled from its newest token is right in any case."
    )
    if END in want and len(got) != len(want):
        expect(
            len(got) < len(want),
            f"{said}: {END} is the end token, and the request gets nothing after it, even if the drafts were right.",
        )
        expect(got != want[:-1], f"{said}: the end token itself is the last token of the request. It counts.")
    if got == want[:-1]:
        expect(
            False,
            f"{said}: {right} of {len(drafts)} drafts are right, and the row behind them had the right input: its token "
            "counts, too.",
        )
    expect(
        len(got) <= len(want),
        f"{said}: draft {right + 1} is wrong, so the rows behind it have read a wrong token. What was sampled from them "
        "doesn't count, even where it is equal to a draft.",
    )
    expect_equal(got, want, f"{said}: the tokens up to the first one that differs from its draft, that one included")
