"""Checks of notebook 08: admission, and the chunks of a prompt. nb08_order.py and nb08_passes.py have the other exercises.

They run the reader's functions on small stand-ins for requests: exact cases first, then many random ones, against answers
that follow the rules but are computed in another way than in the notebook.
"""

from dataclasses import dataclass, replace
from random import Random

from nanoinfer.teaching.exercises import Given, exercise
from nanoinfer.teaching.expectations import expect, expect_equal
from nanoinfer.teaching.several import several

RATIOS = (0.0, 0.25, 0.5, 0.75, 1.0)  # exact in binary, so that no result depends on rounding


@dataclass
class Wish:
    """What admission needs to know about a request."""

    num_tokens: int
    max_kv_len: int
    held: int


# --- 8.1 -------------------------------------------------------------------------------------------------------------


def _still_needed(wish: Wish, ratio: float, page_size: int) -> int:
    """The slots that a request may still need, counted token by token."""
    to_come, slots = ratio * (wish.max_kv_len - wish.num_tokens), 0
    tokens = wish.num_tokens
    while tokens < wish.num_tokens + to_come:
        tokens += 1
    while slots < tokens:
        slots += page_size
    return slots - wish.held


@exercise("8.1", "Does it fit?")
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
                "No request runs, 21 slots are free and the request can fill at most 21: it fits",
            )
        with part("room"):
            expect(
                not ask(new, [], 20, 0, 1.0, 1), "With ratio 1 a request that may need 21 slots does not fit into 20"
            )
        with part("evictable", "room"):
            expect(
                ask(new, [], 5, 16, 1.0, 1),
                "Slots that are only cached are available as well: eviction frees them. Do not count the free slots alone",
            )
        with part("running", "room"):
            expect(
                not ask(new, [one], 21, 0, 1.0, 1),
                "The 21 free slots are not all for the candidate: the running request holds 10 and may still need 6",
            )
        with part("held by running", "running", "room"):
            expect(
                ask(new, [one], 27, 0, 1.0, 1),
                "21 for the candidate and 6 more for the running request are 27. The 10 slots that it holds are no longer "
                "free and must not be counted again",
            )
        with part("held", "held by running", "room"):
            expect(
                ask(Wish(30, 45, 24), [], 21, 0, 1.0, 1),
                "A candidate whose first 24 tokens are in the tree holds those slots already: it needs the other 21",
            )
        with part("ratio", "room"):
            expect(
                ask(new, [], 14, 0, 0.5, 1) and not ask(new, [], 13, 0, 0.5, 1),
                "With ratio 0.5, slots for half of the 15 tokens to come are reserved, rounded up: exactly 6 + 8 = 14 "
                "slots",
            )
        with part("ratio", "room"):
            expect(
                not ask(new, [], 5, 0, 0.0, 1),
                "Even with ratio 0 a request needs slots for the tokens it has: the ratio applies to the tokens to come",
            )
        with part("pages", "room"):
            expect(
                not ask(new, [], 23, 0, 1.0, 4) and ask(new, [], 24, 0, 1.0, 4),
                "Slots come in whole pages: 21 tokens fill 6 pages of 4, which are 24 slots",
            )
        with part("pages per request", "pages", "held", "held by running", "running", "room"):
            expect(
                ask(Wish(6, 9, 4), [Wish(7, 9, 8)], 12, 0, 1.0, 4)
                and not ask(Wish(6, 9, 4), [Wish(7, 9, 8)], 11, 0, 1.0, 4),
                "Round each request's tokens up to pages, not the sum: requests do not share a page. Two requests that "
                "reach 9 tokens fill 12 slots each and hold 4 and 8: they need 12 more",
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


# --- 8.2 -------------------------------------------------------------------------------------------------------------


def _chunks_by_hand(prefix_len: int, num_tokens: int, size: int, spent: int, page_size: int) -> list[tuple[int, int]]:
    """Token by token: a chunk grows until the turn's budget is spent, then shrinks to the last page boundary."""
    found, done, left = [], prefix_len, size - spent
    while done < num_tokens:
        end = done
        while end < num_tokens and end - done < left:
            end += 1
        while end < num_tokens and end % page_size:
            end -= 1
        if end > done:
            found.append((done, end))
        done, left = max(done, end), size
    return found


@exercise("8.2", "Divide a prompt into chunks")
def _(given: Given) -> str:
    prompt_chunks = given["prompt_chunks"]

    def ask(*arguments: int) -> list[tuple[int, int]]:
        answer = prompt_chunks(*arguments)
        expect(isinstance(answer, list), f"prompt_chunks must return a list of (start, end), not {answer!r}")
        expect(
            all(isinstance(chunk, tuple | list) for chunk in answer),
            f"prompt_chunks must return a list of (start, end), not {answer!r}",
        )
        return [tuple(chunk) for chunk in answer]

    expect_equal(ask(0, 10, 64, 0, 1), [(0, 10)], "A prompt that fits into the first turn is one chunk")
    expect_equal(ask(0, 100, 40, 0, 1), [(0, 40), (40, 80), (80, 100)], "40 tokens per turn, until the prompt ends")
    expect_equal(
        ask(30, 100, 40, 0, 1), [(30, 70), (70, 100)], "Cached tokens are not computed: the chunks begin at prefix_len"
    )
    expect_equal(
        ask(0, 100, 40, 15, 1),
        [(0, 25), (25, 65), (65, 100)],
        "Other requests have spent 15 of the first turn's 40 tokens; every later turn has 40 again",
    )
    expect_equal(
        ask(0, 50, 20, 20, 1),
        [(0, 20), (20, 40), (40, 50)],
        "A turn without budget has no chunk, not an empty one",
    )
    expect_equal(
        ask(0, 20, 11, 0, 4), [(0, 8), (8, 16), (16, 20)], "A chunk in the middle of a prompt ends at a page boundary"
    )
    expect_equal(
        ask(0, 13, 7, 0, 4),
        [(0, 4), (4, 8), (8, 13)],
        "The last chunk ends where the prompt ends, not at a page boundary: the rest of a page is computed, too",
    )
    expect_equal(
        ask(16, 40, 20, 18, 8),
        [(16, 32), (32, 40)],
        "Two tokens are left in the first turn, less than a page of 8: no chunk",
    )
    expect_equal(
        ask(16, 18, 20, 18, 8),
        [(16, 18)],
        "The rest of the prompt fits into the rest of the turn: one last chunk",
    )
    rng = Random(82)
    for _ in range(300):
        page_size = rng.choice((1, 2, 4, 8))
        size = rng.randint(page_size, 40)
        prefix_len = rng.randint(0, 5) * page_size
        arguments = (prefix_len, prefix_len + rng.randint(1, 150), size, rng.randint(0, size), page_size)
        expect_equal(ask(*arguments), _chunks_by_hand(*arguments), f"prompt_chunks{arguments}")
    return "every token is computed once, and no turn computes too many"
