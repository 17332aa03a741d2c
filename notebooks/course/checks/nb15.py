"""Checks of notebook 15: a text along the states, and forced tokens."""

import random
from typing import Any

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint
from notebooks.course.tables import Mistake, Wrong, compare

Arrows = dict[tuple[int, str], int]
Table = dict[int, dict[int, int]]


def _machine(rng: random.Random) -> tuple[Arrows, set[int], list[str], int]:
    """A random machine, with a vocabulary and its end token. State 0 may be reached again."""
    size = rng.randrange(2, 7)
    arrows = {(s, c): rng.randrange(size) for s in range(size) for c in "abc" if rng.random() < 0.55}
    tokens = ["".join(rng.choices("abcd", k=rng.randrange(1, 5))) for _ in range(12)]
    end = rng.randrange(12)
    tokens[end] = tokens[(end + 5) % 12] = ""
    return arrows or {(0, "a"): 1}, {s for s in range(size) if rng.random() < 0.4}, tokens, end


def _states(arrows: Arrows) -> range:
    return range(1 + max(max(state, after) for (state, _), after in arrows.items()))


def _walk(arrows: Arrows, state: int, text: str) -> int | None:
    at: int | None = state
    for char in text:
        at = None if at is None else arrows.get((at, char))
    return at


@exercise("15.1", "A text along the states", points=2)
def _(given: Given) -> str:
    write, rng = given["write_greedily"], random.Random(152)
    line: Table = {0: {1: 1}, 1: {2: 2}, 2: {}}
    cases: list[tuple[Table, set[int], int, int, int]] = [
        ({0: {1: 1, 4: 2, 6: 1}, 1: {2: 2, 5: 0}, 2: {3: 0}}, {2}, 0, 20, 9),
        *((line, {2}, 0, most, 3) for most in (5, 2, 1)),
        ({0: {2: 0, 3: 0}}, {0}, 1, 4, 4),
        ({0: {}}, {0}, 0, 3, 2),
    ]
    for _ in range(60):
        arrows, accepting, tokens, end = _machine(rng)
        walks = {s: {i: _walk(arrows, s, text) for i, text in enumerate(tokens) if text} for s in _states(arrows)}
        table = {s: {i: after for i, after in each.items() if after is not None} for s, each in walks.items()}
        accepting |= {s for s, each in table.items() if not each}
        cases.append((table, accepting, end, rng.randrange(0, 9), len(tokens)))
    mistakes: dict[str, Mistake] = {
        "The end token ends the text and doesn't belong to `ids`.": "with_end",
        "The end token is allowed only where the text may end; elsewhere the text must go on.": "ends_anywhere",
        "The text may end here, and the end token is the best of the allowed ones. So it ends.": "never_ends",
        "Where nothing can follow and the text may end, the reason is 'stop', also with `most` tokens.": "incomplete",
        "Of tokens with the same score, take the lower number.": "higher",
        "Only the tokens of the current state are allowed: follow its arrow after each one.": "stays",
    }

    def call(table: Table, accepting: set[int], end: int, most: int, size: int) -> Any:
        asked = 0

        def scores(ids: Any) -> list[float]:
            nonlocal asked
            asked += 1
            if asked > 4 * most + 20:
                raise Hint(f"most={most}: you have asked for scores {asked} times. When there are `most` tokens, stop.")
            return _scores(ids, size)

        ids, reason = write(table, accepting, scores, end, most)
        return [int(token) for token in ids], reason

    hint = "`(ids, reason)`: the best allowed token each time, until the text ends ('stop') or has `most` tokens ('length')"
    compare(call, _written, cases, mistakes, hint=hint)
    return "66 machines: texts that end by themselves, by the end token, and by their length"


def _scores(ids: Any, size: int) -> list[float]:
    chance = random.Random(str([int(token) for token in ids]))
    return [float(chance.randrange(-4, 5)) for _ in range(size)]


def _written(
    table: Table, accepting: set[int], end: int, most: int, size: int, wrong: Wrong = ()
) -> tuple[list[int], str]:
    ids, state = list[int](), 0
    while True:
        if "incomplete" not in wrong and state in accepting and not table[state]:
            return ids, "stop"
        if len(ids) == most:
            return ids, "length"
        may_end = (state in accepting or "ends_anywhere" in wrong) and not ("never_ends" in wrong and table[state])
        allowed = sorted([*table[state], *[end] * may_end], reverse="higher" in wrong)
        values = _scores(ids, size)
        best = max(allowed, key=lambda each: values[each])
        if best == end:
            return [*ids, end] if "with_end" in wrong else ids, "stop"
        ids.append(best)
        state = state if "stays" in wrong else table[state][best]


@exercise("15.2", "Forced tokens", points=2)
def _(given: Given) -> str:
    forced = given["forced"]
    chain: Table = {i: {i + 40: i + 1} for i in range(5)}
    # State → the tokens that are allowed, with the next state of each; the accepting states; the end token.
    machines: list[tuple[Table, set[int], int]] = [
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
    cases = [(*machine, state, most) for machine in machines for state in machine[0] for most in (0, 1, 3, 8)]
    mistakes: dict[str, Mistake] = {
        "The end token is never a draft: what must end needs no draft.": "with_end",
        "Where the text may end as well (the end token is allowed), the token isn't forced.": "end_ignored",
        "Several tokens are allowed, so none is forced.": "of_several",
        "Return at most `most` tokens.": "unlimited",
        "Only one token is allowed after it, so the run goes on with it.": "only_one",
    }

    def call(arrows: Table, accepting: set[int], end: int, state: int, most: int) -> Any:
        looked = 0

        def allowed(at: int) -> set[int]:
            nonlocal looked
            looked += 1
            if looked > 50:
                raise Hint(f"most={most}: you have asked for more than 50 sets. Stop when there are `most` tokens.")
            return {*arrows[at], *[end] * (at in accepting)}

        def after(at: int, token: int) -> int:
            if token not in arrows[at]:
                raise Hint(f"after({at}, {token}): token {token} leads nowhere from there. The end token is no draft.")
            return arrows[at][token]

        return [int(token) for token in forced(allowed, after, state, end, most)]

    compare(call, _forced, cases, mistakes, hint="a list of the tokens without an alternative, one after the other")
    return "9 grammars, from all of their states"


def _forced(arrows: Table, accepting: set[int], end: int, state: int, most: int, wrong: Wrong = ()) -> list[int]:
    found = list[int]()
    while len(found) < (1 if "only_one" in wrong and most else 20 if "unlimited" in wrong else most):
        may_end = state in accepting and ("end_ignored" not in wrong or not arrows[state])
        allowed = sorted([*arrows[state], *[end] * may_end])
        if not allowed or (len(allowed) > 1 and "of_several" not in wrong):
            break
        if allowed[0] == end and "with_end" not in wrong:
            break
        found.append(allowed[0])
        if allowed[0] == end:
            break
        state = arrows[state][allowed[0]]
    return found
