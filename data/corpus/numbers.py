"""Counting and arithmetic lines, and few-shot blocks whose shared headers make prefixes worth sharing."""

from __future__ import annotations

import random

from . import words

HEADERS = (
    "Add the two numbers.",
    "Here are some sums and their results.",
    "Solve each sum.",
)


def draw_sum(rng: random.Random, limit: int = 20) -> tuple[int, str, int, int]:
    """Terms, sign and result of a sum or difference; no term exceeds `limit`, no result is negative."""
    x, y = rng.randint(0, limit), rng.randint(0, limit)
    if rng.random() < 0.6:
        return x, "+", y, x + y
    return max(x, y), "-", min(x, y), abs(x - y)


def counting(rng: random.Random) -> str:
    """One counting line, forwards or backwards, with steps of 1, 2, 5 or 10."""
    step = rng.choice((1, 1, 1, 1, 2, 5, 10))
    start = rng.choice((1, 1, rng.randint(0, 30), rng.randint(0, 90)))
    if step > 1:
        start = rng.choice((0, step, start // step * step))
    length = rng.randint(5, 25) if rng.random() < 0.7 else rng.randint(25, 80)
    values = range(start, start + step * length, step)
    style = rng.random()
    if style < 0.5:
        return " ".join(map(str, values))
    if style < 0.7:
        return ", ".join(map(str, values))
    if style < 0.85:
        how = "" if step == 1 else f" by {step}s"
        return f"Count{how} from {values[0]} to {values[-1]}: " + " ".join(map(str, values))
    return f"Count down from {values[-1]} to {values[0]}: " + " ".join(map(str, reversed(values)))


def arithmetic(rng: random.Random) -> str:
    """A block of sums, one per line, some of them as a sentence."""
    limit = rng.choice((5, 10, 10, 20, 50))
    lines = []
    for _ in range(rng.randint(3, 12)):
        x, sign, y, result = draw_sum(rng, limit)
        lines.append(f"{x} {sign} {y} = {result}")
    return "\n".join(lines)


def few_shot(rng: random.Random) -> str:
    """A header followed by worked examples of one task."""
    task = rng.randrange(5)
    count = rng.randint(3, 8)
    if task == 0:
        pairs = [(x, y) for x in range(11) for y in range(11)]
        sums = [f"Question: What is {x} + {y}?\nAnswer: {x + y}" for x, y in rng.sample(pairs, count)]
        return rng.choice(HEADERS) + "\n\n" + "\n\n".join(sums)
    if task == 1:
        pairs = [pair if rng.random() < 0.5 else pair[::-1] for pair in rng.sample(words.OPPOSITES, count)]
        return "Write the opposite of each word.\n\n" + "\n".join(f"{one} -> {other}" for one, other in pairs)
    if task == 2:
        things = rng.sample(sorted(words.THING_COLORS.items()), count)
        return "What color is it?\n\n" + "\n".join(f"{thing}: {color}" for thing, color in things)
    if task == 3:
        kinds = rng.sample(list(words.ANIMALS), count)
        return "What does each animal eat?\n\n" + "\n".join(f"{kind}: {words.ANIMALS[kind].eats}" for kind in kinds)
    kinds = rng.sample(list(words.ANIMALS), count)
    return "Where does each animal live?\n\n" + "\n".join(f"{kind}: {words.ANIMALS[kind].home}" for kind in kinds)


def write(rng: random.Random) -> str:
    """One document of numbers."""
    return rng.choices((counting, arithmetic, few_shot), (0.35, 0.35, 0.3))[0](rng)
