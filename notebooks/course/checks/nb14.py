"""Checks of notebook 14: drafts that are looked up, and how many drafts pay."""

import numpy as np

from notebooks.course.exercises import Given, exercise
from notebooks.course.tables import Mistake, Wrong, compare


@exercise("14.1", "Look it up", points=2)
def _(given: Given) -> str:
    rng = np.random.default_rng(14)
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
    mistakes: dict[str, Mistake] = {
        "You return the match itself. What *follows* it is wanted.": "itself",
        "The ending occurs several times. Take the last of these: what was said lately is likelier to come again.": "first",
        "You use a short ending. A longer one occurs earlier, too. (The two may overlap.)": "shortest_first",
        "You propose something although no ending of at least `shortest` tokens occurs earlier: return [].": "any_ending",
        "You return too many tokens. At most `count` are wanted.": "unlimited",
    }
    hint = "a list of up to `count` tokens that followed the last place where the longest ending occurs before. The ending "
    hint += (
        "itself doesn't count; if none of at least `shortest` tokens occurs earlier, there is nothing to propose: []"
    )
    compare(given["lookup"], _drafts, cases, mistakes, hint=hint)
    return "endings that occur once, twice, not at all or overlap themselves, in 161 texts"


def _drafts(tokens: list[int], shortest: int, count: int, wrong: Wrong = ()) -> list[int]:
    lengths = range(1 if "any_ending" in wrong else shortest, len(tokens))
    for n in lengths if "shortest_first" in wrong else reversed(lengths):
        starts = [at for at in range(len(tokens) - n) if tokens[at : at + n] == tokens[-n:]]
        if starts:
            found = tokens[starts[0 if "first" in wrong else -1] + (0 if "itself" in wrong else n) :]
            return found if "unlimited" in wrong else found[:count]
    return []


@exercise("14.2", "How many drafts", points=2)
def _(given: Given) -> str:
    cases = [(p, k) for p, k in ((0.5, 2), (0.5, 0), (0.0, 3), (1.0, 3), (0.8, 1), (0.9, 7))]
    mistakes: dict[str, Mistake] = {
        "The pass's own token is missing. It comes in any case.": lambda p, k: _tokens(p, k) - 1,
        "Draft j counts only if all drafts before it are right, too, so with probability p ** j.": lambda p, k: (
            1 + p * k
        ),
        "That is the probability that *all* drafts are right. Add up 1, p, p ** 2, ...": lambda p, k: p**k,
    }
    hint = "the sum of p ** j for j from 0 to k"
    compare(given["expected_tokens"], _tokens, cases, mistakes, hint=hint, atol=1e-9)
    machines: list[list[float]] = [
        [1.0] * 10,
        [1 + 0.05 * (rows - 1) for rows in range(10)],
        [1 + 0.4 * (rows - 1) for rows in range(10)],
        [float(rows) for rows in range(10)],
        [1, 1, 1.1, 1.2, 1.3, 4, 4, 4, 4, 4],
    ]
    choices = [(p, each, most) for each in machines for p in (0.0, 0.3, 0.5, 0.75, 0.9, 1.0) for most in (0, 1, 4, 8)]
    mistakes = {
        "These drafts give most tokens per *pass*. The pass takes longer, too: what counts is tokens per second.": "passes",
        "A pass with k drafts has k + 1 rows: the newest token is one, too.": "only_drafts",
        "Fewer drafts give as many tokens per second. Take the fewest.": "most",
    }
    hint = "the number of drafts, 0..most, with the most tokens per second; the fewest of several"
    compare(given["best_k"], _best, choices, mistakes, hint=hint)
    return "five machines, acceptances from 0 to 1"


def _tokens(p: float, k: int) -> float:
    return float(sum(p**j for j in range(k + 1)))


def _best(p: float, seconds: list[float], most: int, wrong: Wrong = ()) -> int:
    rows = [k + ("only_drafts" not in wrong) for k in range(most + 1)]
    speeds = [_tokens(p, k) / (1 if "passes" in wrong else seconds[n] or seconds[1]) for k, n in enumerate(rows)]
    best = [k for k, speed in enumerate(speeds) if speed >= max(speeds) - 1e-12]
    return best[-1 if "most" in wrong else 0]
