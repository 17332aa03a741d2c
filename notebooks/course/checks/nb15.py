"""Checks of notebook 15: the mask of a state, and a text along the states. nb15_bits.py has bit masks and forced tokens."""

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, a_kind, expect

Arrows = dict[tuple[int, str], int]
Table = dict[int, dict[int, int]]
SMALL: Arrows = {(0, "a"): 1, (1, "b"): 2, (2, ","): 0}
WORDS = ["", "a", "b", ",", "ab", "b,", "ab,a", "ba", ",,"]


def _machine(rng: random.Random) -> tuple[Arrows, set[int], list[str], int]:
    """A random machine, with a vocabulary and its end token. State 0 may be reached again."""
    size = rng.randrange(2, 7)
    arrows = {(s, c): rng.randrange(size) for s in range(size) for c in "abc" if rng.random() < 0.55}
    tokens = ["".join(rng.choices("abcd", k=rng.randrange(1, 5))) for _ in range(12)]
    end = rng.randrange(12)
    tokens[end] = tokens[(end + 5) % 12] = ""
    return arrows or {(0, "a"): 1}, {s for s in range(size) if rng.random() < 0.4}, tokens, end


def _walk(arrows: Arrows, state: int, text: str) -> int | None:
    at: int | None = state
    for char in text:
        at = None if at is None else arrows.get((at, char))
    return at


# --- 15.1 -------------------------------------------------------------------------------------------------------------


@exercise("15.1", "The mask of a state")
def _(given: Given) -> str:
    mask_of = given["mask_of"]
    rng = random.Random(15)
    cases: list[tuple[Arrows, set[int], list[str], int]] = [(SMALL, {2}, WORDS, 0)]
    cases += [_machine(rng) for _ in range(40)]
    for arrows, accepting, tokens, end in cases:
        for state in range(1 + max(max(state, after) for (state, _), after in arrows.items())):
            kept = deepcopy((arrows, accepting, tokens))
            got = mask_of(arrows, accepting, state, tokens, end)
            expect(
                (arrows, accepting, tokens) == kept, "You changed the machine or the tokens, which other texts need."
            )
            try:
                mask = [bool(each) for each in got]
            except TypeError:
                expect(False, f"Return a list with True or False for each token, not {a_kind(got)}.")
            expect(len(mask) == len(tokens), f"The mask has {len(mask)} entries, but there are {len(tokens)} tokens.")
            for token in range(len(tokens)):
                _about(mask[token], token, arrows, accepting, state, tokens, end)
    return "41 machines, all of their states"


def _about(
    allowed: bool, token: int, arrows: Arrows, accepting: set[int], state: int, tokens: Sequence[str], end: int
) -> None:
    """The mask says `allowed` for `token`."""
    text = tokens[token]
    if token == end:
        said = f"state {state}, where accepting={accepting}"
        expect(allowed or state not in accepting, f"{said}: the text may end here, so the end token is allowed.")
        expect(not allowed or state in accepting, f"{said}: the text must go on, so the end token isn't allowed.")
        return
    if not text:
        expect(not allowed, f"Token {token} has no text and isn't the end token, so it is never allowed.")
        return
    said = f"state {state}, token {text!r}, arrows={arrows}"
    after, from_start = _walk(arrows, state, text), _walk(arrows, 0, text)
    if after is None and allowed:
        expect(
            from_start is None or state == 0,
            f"{said}: from state 0 all its characters have an arrow, but the walk begins in state {state}.",
        )
        expect(
            (state, text[0]) not in arrows,
            f"{said}: its first character is allowed, but not all of them, one after the other. Each arrow leads to the "
            "state for the next character.",
        )
        expect(False, f"{said}: its first character has no arrow from here, so it isn't allowed.")
    if after is not None and not allowed:
        expect(
            after in accepting or not accepting,
            f"{said}: all its characters have an arrow, so it is allowed. (It leads to state {after}, where the text may "
            "not end yet. It needn't: more tokens can follow.)",
        )
        expect(False, f"{said}: all its characters have an arrow, one after the other, so it is allowed.")


# --- 15.2 -------------------------------------------------------------------------------------------------------------


@exercise("15.2", "A text along the states", points=2)
def _(given: Given) -> str:
    write = given["write_greedily"]
    rng = random.Random(152)
    cases: list[tuple[Table, set[int], int, int, int]] = [
        ({0: {1: 1, 4: 2, 6: 1}, 1: {2: 2, 5: 0}, 2: {3: 0}}, {2}, 0, 20, 9),
        ({0: {1: 1}, 1: {2: 2}, 2: {}}, {2}, 0, 5, 3),
        ({0: {1: 1}, 1: {2: 2}, 2: {}}, {2}, 0, 2, 3),
        ({0: {1: 1}, 1: {2: 2}, 2: {}}, {2}, 0, 1, 3),
        ({0: {2: 0, 3: 0}}, {0}, 1, 4, 4),
        ({0: {}}, {0}, 0, 3, 2),
    ]
    for _ in range(60):
        arrows, accepting, tokens, end = _machine(rng)
        states = range(1 + max(max(state, after) for (state, _), after in arrows.items()))
        walks = {s: {i: _walk(arrows, s, text) for i, text in enumerate(tokens) if text} for s in states}
        table = {s: {i: after for i, after in each.items() if after is not None} for s, each in walks.items()}
        accepting |= {s for s, each in table.items() if not each}
        cases.append((table, accepting, end, rng.randrange(0, 9), len(tokens)))
    for i, (table, accepting, end, most, size) in enumerate(cases):
        _one_text(write, table, accepting, end, most, size, random.Random(i))
    return "66 machines: texts that end by themselves, by the end token, and by their length"


def _one_text(
    write: Callable[..., Any], table: Table, accepting: set[int], end: int, most: int, size: int, rng: random.Random
) -> None:
    salt = rng.random()
    asked: list[list[int]] = []

    def scores(ids: Sequence[int]) -> list[float]:
        asked.append([int(token) for token in ids])
        if len(asked) > 4 * most + 20:
            raise Hint(
                f"most={most}: you have asked for scores {len(asked)} times. When there are `most` tokens, stop."
            )
        chance = random.Random(f"{salt} {asked[-1]}")
        return [float(chance.randrange(-4, 5)) for _ in range(size)]

    kept, said = deepcopy((table, accepting)), f"table={table}, accepting={accepting}, end={end}, most={most}"
    got = write(table, accepting, scores, end, most)
    expect((table, accepting) == kept, f"{said}: you changed the table, which other texts need.")
    expect(isinstance(got, tuple) and len(got) == 2, f"Return `(ids, reason)`, not {a_kind(got)}.")
    expect(
        isinstance(got[0], list) and all(isinstance(token, int | np.integer) for token in got[0]),
        "`ids` must be a list of token numbers.",
    )
    ids, reason = [int(token) for token in got[0]], got[1]
    expect(end not in ids, f"{said}: `ids` is {ids}. The end token {end} ends the text and doesn't belong to it.")
    state, questions = 0, list(asked)
    for place, token in enumerate(ids):
        so_far = f"{said}: after {ids[:place]} in state {state}"
        expect(token in table[state], f"{so_far}: token {token} isn't allowed. Allowed are {sorted(table[state])}.")
        values = scores(ids[:place])
        allowed = sorted([*table[state], *([end] if state in accepting else [])])
        best = max(allowed, key=lambda each: values[each])
        shown = {each: values[each] for each in allowed}
        expect(
            best != end or (values[token] >= values[end] and token < end),
            f"{so_far}: the text may end here, and the end token {end} is the best of {shown}. So it ends.",
        )
        expect(
            values[token] == values[best],
            f"{so_far}: the scores of the allowed tokens are {shown}, so the next one is {best} and not {token}.",
        )
        expect(
            token == best, f"{so_far}: tokens {best} and {token} have the same score. Take the lower number, {best}."
        )
        state = table[state][token]
    expect(len(ids) <= most, f"{said}: `ids` has {len(ids)} tokens, more than `most`.")
    expect(reason in ("stop", "length"), f"{said}: the reason must be 'stop' or 'length', not {reason!r}.")
    complete = state in accepting and not table[state]
    if complete:
        expect(reason == "stop", f"{said}: after {ids} nothing can follow, and the text may end: that is 'stop'.")
        expect(ids not in questions, f"{said}: after {ids} nothing can follow, so no scores are needed.")
    elif len(ids) == most:
        expect(reason == "length", f"{said}: there are {most} tokens, and more could follow: that is 'length'.")
    else:
        expect(reason == "stop", f"{said}: 'length' with {len(ids)} tokens, although there is room for {most}.")
        expect(
            state in accepting,
            f"{said}: you ended after {ids} in state {state}, where the text must go on: the end token isn't allowed.",
        )
        values = scores(ids)
        best = max(sorted([*table[state], end]), key=lambda each: values[each])
        expect(
            best == end, f"{said}: you ended after {ids}, although token {best} has a larger score than the end token."
        )
    wrong = [each for each in questions if each != ids[: len(each)]]
    expect(not wrong, f"{said}: you asked for the scores after {(wrong or [[]])[0]}, which isn't the text so far.")
