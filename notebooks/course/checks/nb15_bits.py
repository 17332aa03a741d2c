"""More checks of notebook 15: bit masks for a batch, and forced tokens."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, a_kind, expect, expect_equal


def _bits(tokens: Sequence[int], words: int) -> np.ndarray:
    """The bit mask of `tokens`, int32 [words]."""
    mask = np.zeros(words, dtype=np.uint32)
    for token in tokens:
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask.view(np.int32)


# --- 15.3 -------------------------------------------------------------------------------------------------------------


@exercise("15.3", "Bit masks for a batch", points=2)
def _(given: Given) -> str:
    apply_bits = given["apply_bits"]
    rng = random.Random(153)
    cases: list[tuple[int, int, int, list[int], list[list[int]]]] = [
        (1, 32, 1, [0], [[0, 5]]),
        (1, 64, 2, [0], [[3, 31, 40]]),
        (1, 64, 2, [0], [list(range(64))]),
        (3, 64, 2, [1], [[7]]),
        (3, 64, 2, [2, 0], [[7], [9]]),
        (2, 40, 2, [0, 1], [[39], [1, 32, 50]]),
        (2, 40, 3, [1], [[]]),
        (2, 96, 3, [], []),
    ]
    for _ in range(30):
        batch, vocabulary = rng.randrange(1, 6), rng.randrange(1, 200)
        words = -(-vocabulary // 32) + rng.randrange(2)
        rows = rng.sample(range(batch), rng.randrange(batch + 1))
        share = rng.random()
        cases.append(
            (batch, vocabulary, words, rows, [[t for t in range(32 * words) if rng.random() < share] for _ in rows])
        )
    for batch, vocabulary, words, rows, allowed in cases:
        scores = torch.randn(batch, vocabulary, generator=torch.Generator().manual_seed(3))
        masks = np.array([_bits(each, words) for each in allowed], dtype=np.int32).reshape(-1, words)
        before, kept = scores.clone(), masks.copy()
        result = apply_bits(scores, list(rows), masks)
        said = f"scores [{batch}, {vocabulary}], rows={rows}, allowed tokens {_short(allowed)}"
        expect(np.array_equal(masks, kept), f"{said}: you changed `masks`.")
        if isinstance(result, torch.Tensor) and rows:
            expect(not torch.equal(scores, before), f"{said}: change `scores` itself. What you return isn't looked at.")
        want = before.clone()
        for row, tokens in zip(rows, allowed, strict=True):
            forbidden = sorted(set(range(vocabulary)) - set(tokens))
            want[row, forbidden] = -torch.inf
        _about(scores, before, want, rows, said)
    return "38 batches, also with words beyond the vocabulary"


def _short(allowed: Sequence[Sequence[int]]) -> str:
    return str([f"{list(each[:6])}..." if len(each) > 6 else list(each) for each in allowed])


def _about(scores: torch.Tensor, before: torch.Tensor, want: torch.Tensor, rows: Sequence[int], said: str) -> None:
    others = [row for row in range(len(scores)) if row not in rows]
    changed = [row for row in others if not torch.equal(scores[row], before[row])]
    expect(
        not changed,
        f"{said}: row {(changed or [0])[0]} has no mask, but you changed it. masks[i] is for the row rows[i].",
    )
    for row in rows:
        got, wanted = scores[row] > -torch.inf, want[row] > -torch.inf
        if torch.equal(got, wanted):
            continue
        expect(not torch.equal(got, ~wanted), f"{said}: in row {row} you forbid the allowed tokens. A bit of 1 allows.")
        wrong = (got != wanted).nonzero()[:, 0].tolist()
        last = [token for token in wrong if token % 32 == 31]
        expect(
            len(last) < len(wrong),
            f"{said}: token {wrong[0]} has the last bit of its word, the sign of an int32. A test such as `> 0` fails "
            "there: compare with 0, or shift and look at the lowest bit.",
        )
        here = f"{said}: in row {row}"
        reversed_bits = torch.tensor([bool(wanted[t]) for t in _reversed(len(wanted))])
        expect(
            len(wrong) < 2 or not torch.equal(got[: len(reversed_bits)], reversed_bits),
            f"{here}, bit 0 is the lowest bit of a word, not the highest.",
        )
        verb, place = "allow" if got[wrong[0]] else "forbid", f"bit {wrong[0] % 32} of word {wrong[0] // 32}"
        raise Hint(f"{here} you {verb} token {wrong[0]}. It has {place}, in masks[{list(rows).index(row)}].")
    expect_equal(scores, want, f"{said}: allowed tokens keep their scores, and the others get −infinity.")


def _reversed(vocabulary: int) -> list[int]:
    """For each token of whole words, the one that has its bit when the bits of a word are counted from the other end."""
    return [token // 32 * 32 + 31 - token % 32 for token in range(vocabulary // 32 * 32)]


# --- 15.4 -------------------------------------------------------------------------------------------------------------


@exercise("15.4", "Forced tokens", points=2)
def _(given: Given) -> str:
    forced = given["forced"]
    # State → the tokens that are allowed, with the next state of each.
    chain = {i: {i + 40: i + 1} for i in range(5)}
    machines: list[tuple[Mapping[int, Mapping[int, int]], set[int], int]] = [
        (chain | {5: {1: 5, 2: 5}}, set(), 3),
        (chain | {5: {}}, {5}, 3),
        (chain | {5: {63: 0}}, {5}, 3),
        (chain | {5: {63: 0}}, set(), 3),
        (chain | {5: {2: 0}}, {5}, 3),
        ({0: {31: 1}, 1: {63: 2}, 2: {0: 3}, 3: {0: 3, 31: 3}}, set(), 95),
        ({0: {7: 0}}, set(), 2),
        ({0: {}}, {0}, 31),
        ({0: {5: 1, 6: 1}, 1: {9: 2}, 2: {4: 0}}, set(), 1),
    ]
    for arrows, accepting, end in machines:
        for state in arrows:
            for most in (0, 1, 3, 8):
                _one_run(forced, arrows, accepting, end, state, most)
    return "9 grammars, from all of their states"


def _one_run(
    forced: Any, arrows: Mapping[int, Mapping[int, int]], accepting: set[int], end: int, state: int, most: int
) -> None:
    allowed = {s: sorted([*after, *([end] if s in accepting else [])]) for s, after in arrows.items()}
    said = f"allowed tokens by state {allowed}, end={end}, state={state}, most={most}"
    looked = 0

    def bits_of(at: int) -> np.ndarray:
        nonlocal looked
        looked += 1
        if looked > 50:
            raise Hint(f"{said}: you have asked for more than 50 masks. Stop when there are `most` tokens.")
        expect(at in arrows, f"{said}: bits_of({at!r}): there is no such state.")
        return _bits(allowed[at], 3)

    def after(at: int, token: int) -> int:
        expect(
            token in arrows[at],
            f"{said}: after({at}, {token}): token {token} leads nowhere from there. "
            + ("It is the end token, which is no draft." if token == end else "It isn't allowed there."),
        )
        return arrows[at][token]

    got = forced(bits_of, after, state, end, most)
    expect(isinstance(got, list), f"Return a list of tokens, not {a_kind(got)}.")
    want, at = list[int](), state
    while len(want) < most and len(allowed[at]) == 1 and allowed[at] != [end]:
        want.append(allowed[at][0])
        at = arrows[at][want[-1]]
    expect(
        all(isinstance(token, int | np.integer) for token in got), f"{said}: you return {got}; these must be token ids."
    )
    ids = [int(token) for token in got]
    expect(len(ids) <= most, f"{said}: you return {len(ids)} tokens, more than `most`.")
    expect(end not in ids, f"{said}: {ids} has the end token {end}. It is never a draft: what must end needs no draft.")
    if len(ids) > len(want) and ids[: len(want)] == want:
        where = f"after {want}" if want else f"in state {state}"
        expect(
            end not in allowed[at],
            f"{said}: {where}, the text may end as well (the end token {end} is allowed), so token {ids[len(want)]} isn't "
            "forced.",
        )
        expect(False, f"{said}: {where}, the tokens {allowed[at]} are allowed, so none is forced.")
    if len(ids) < len(want) and ids == want[: len(ids)]:
        expect(
            bool(ids) or len(want) == 0,
            f"{said}: you return no token, but only token {want[0] if want else 0} is allowed in state {state}.",
        )
        expect(False, f"{said}: after {ids}, only token {want[len(ids)]} is allowed, so the run goes on with it.")
    expect_equal(ids, want, f"{said}: these are the tokens without an alternative.")
