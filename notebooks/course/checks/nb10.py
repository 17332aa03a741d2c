"""Checks of notebook 10: admission. nb10_passes.py has the other exercises.

They run the student's functions on small stand-ins for requests: exact cases first, then many random ones, against answers
that follow the rules but are computed in another way than in the notebook.
"""

from dataclasses import dataclass, replace
from random import Random

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect, expect_equal
from notebooks.course.several import several

RATIOS = (0.0, 0.25, 0.5, 0.75, 1.0)  # exact in binary, so that no result depends on rounding


@dataclass
class Wish:
    """What admission needs to know about a request."""

    num_tokens: int
    max_kv_len: int
    held: int


# --- 10.1 -------------------------------------------------------------------------------------------------------------


def _still_needed(wish: Wish, ratio: float, page_size: int) -> int:
    """The slots that a request may still need, counted token by token."""
    to_come, slots = ratio * (wish.max_kv_len - wish.num_tokens), 0
    tokens = wish.num_tokens
    while tokens < wish.num_tokens + to_come:
        tokens += 1
    while slots < tokens:
        slots += page_size
    return slots - wish.held


@exercise("10.1", "Does it fit?")
def _(given: Given) -> str:
    fits = given["fits"]

    def ask(candidate: Wish, running: list[Wish], free: int, evictable: int, ratio: float, page_size: int) -> bool:
        answer = fits(replace(candidate), [replace(wish) for wish in running], free, evictable, ratio, page_size)
        expect(isinstance(answer, bool), f"fits must return True or False, not {answer!r}")
        return answer

    new, one = Wish(6, 21, 0), Wish(10, 16, 10)
    with several() as part:
        with part("room"):
            expect(
                ask(new, [], 21, 0, 1.0, 1),
                "No request is running, 21 slots are free, and the request needs at most 21: it fits",
            )
        with part("room"):
            expect(
                not ask(new, [], 20, 0, 1.0, 1), "With ratio 1, a request that may need 21 slots doesn't fit into 20"
            )
        with part("evictable", "room"):
            expect(
                ask(new, [], 5, 16, 1.0, 1),
                "Evictable slots are available too, because eviction frees them. Don't count the free slots alone",
            )
        with part("running", "room"):
            expect(
                not ask(new, [one], 21, 0, 1.0, 1),
                "The candidate can't have all 21 free slots: the running request holds 10 slots and may need 6 more",
            )
        with part("held by running", "running", "room"):
            expect(
                ask(new, [one], 27, 0, 1.0, 1),
                "The candidate needs 21 slots and the running request 6 more, 27 in total. The 10 slots that the running "
                "request holds are no longer free, so don't count them again",
            )
        with part("held", "held by running", "room"):
            expect(
                ask(Wish(30, 45, 24), [], 21, 0, 1.0, 1),
                "The candidate's first 24 tokens are in the tree, so it already holds their slots. It needs only 21 more",
            )
        with part("ratio", "room"):
            expect(
                ask(new, [], 14, 0, 0.5, 1) and not ask(new, [], 13, 0, 0.5, 1),
                "With ratio 0.5, reserve slots for half of the 15 tokens to come, rounded up: exactly 6 + 8 = 14 slots",
            )
        with part("ratio", "room"):
            expect(
                not ask(new, [], 5, 0, 0.0, 1),
                "Even with ratio 0, a request needs slots for the tokens it has. The ratio applies only to those to come",
            )
        with part("pages", "room"):
            expect(
                not ask(new, [], 23, 0, 1.0, 4) and ask(new, [], 24, 0, 1.0, 4),
                "Slots come in whole pages: 21 tokens need 6 pages of 4 slots, which makes 24 slots",
            )
        with part("pages per request", "pages", "held", "held by running", "running", "room"):
            expect(
                ask(Wish(6, 9, 4), [Wish(7, 9, 8)], 12, 0, 1.0, 4)
                and not ask(Wish(6, 9, 4), [Wish(7, 9, 8)], 11, 0, 1.0, 4),
                "Round up each request's tokens to whole pages, not the sum, because requests don't share a page. Two "
                "requests that reach 9 tokens need 12 slots each. They hold 4 and 8 slots, so they need 12 more",
            )
    rng, cases = Random(8), 0
    for _ in range(300):
        page_size, ratio = rng.choice((1, 2, 4, 16)), rng.choice(RATIOS)
        wishes = []
        for _ in range(rng.randint(1, 5)):
            tokens = rng.randint(1, 60)
            held = rng.randint(0, tokens // page_size) * page_size
            wishes.append(Wish(tokens, tokens + rng.randint(0, 40), held))
        wanted = sum(_still_needed(wish, ratio, page_size) for wish in wishes)
        obtainable = max(wanted + rng.choice((-1, 0, 1, rng.randint(-30, 30))), 0)
        evictable = rng.randint(0, obtainable)
        arguments = (wishes[0], wishes[1:], obtainable - evictable, evictable, ratio, page_size)
        expect_equal(ask(*arguments), wanted <= obtainable, f"fits{arguments}: {wanted} slots are needed in total")
        cases += 1
    return f"{cases} admissions decided right"
