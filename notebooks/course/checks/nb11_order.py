"""Checks of notebook 11: which waiting request goes first, by its cached tokens and by how often others overtook it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, expect, expect_equal


@dataclass
class Waiting:
    """What the policy needs to know about a waiting request."""

    ticket: int
    cached: int


# --- 11.2 -------------------------------------------------------------------------------------------------------------


def _hits(prompt: Sequence[int], cached: Sequence[Sequence[int]], page_size: int) -> int:
    """Length of the longest prefix of `prompt` without its last token, in whole pages, that begins a cached sequence."""
    pages = range((len(prompt) - 1) // page_size, 0, -1)
    known = (n * page_size for n in pages if any(list(c[: n * page_size]) == prompt[: n * page_size] for c in cached))
    return next(known, 0)


@exercise("11.2", "Longest prefix first")
def _(given: Given) -> str:
    order = given["longest_prefix_first"]

    def ask(prompts: list[list[int]], cached: list[list[int]], page_size: int = 1) -> list[int]:
        answer = order([list(prompt) for prompt in prompts], [list(tokens) for tokens in cached], page_size)
        expect(isinstance(answer, list), f"longest_prefix_first must return a list of indices, not {answer!r}")
        expect_equal(
            sorted(answer),
            list(range(len(prompts))),
            "The order must contain each request exactly once",
        )
        return answer

    cached = [[1, 2, 3, 4, 5, 6], [1, 2, 8, 9]]
    expect_equal(ask([[7, 7], [1, 2, 3, 4, 0], [1, 5, 5]], cached), [1, 2, 0], "The most cached tokens go first")
    expect_equal(
        ask([[9, 9, 9], [8, 8, 8], [7, 7, 7]], cached),
        [0, 1, 2],
        "No request has cached tokens, so keep the order of arrival",
    )
    expect_equal(
        ask([[1, 2, 3, 0], [1, 2, 8, 9, 9], [1, 0]], cached),
        [1, 0, 2],
        "Compare with every cached sequence, not only the first: a tree has many branches",
    )
    expect_equal(
        ask([[0, 1, 2, 3, 4], [1, 9, 9, 9, 9]], cached),
        [1, 0],
        "Only a common *beginning* counts: a token's K/V depends on all tokens before it, so equal tokens further on "
        "don't help",
    )
    expect_equal(
        ask([[1, 2, 3, 0, 0, 0], [1, 2, 8, 9]], cached),
        [0, 1],
        "All of [1, 2, 8, 9] is in the tree, but its last token must be computed to get its logits. So 3 tokens count, as "
        "for the other request",
    )
    expect_equal(
        ask([[1, 2, 0, 0, 0, 0], [1, 2, 3, 0, 0, 0]], [[1, 2, 3, 4]], 2),
        [0, 1],
        "A hit is a whole number of pages: with pages of 2, three common tokens count as two",
    )
    expect_equal(ask([], cached), [], "Without waiting requests, the order is empty")
    expect_equal(ask([[1, 2, 3], [4, 5]], []), [0, 1], "With an empty tree, keep the order of arrival")
    rng = Random(83)
    for _ in range(200):
        page_size = rng.choice((1, 1, 2, 3))
        prompts, known = (
            [[rng.randint(0, 1) for _ in range(rng.randint(1, 9))] for _ in range(count)]
            for count in (rng.randint(1, 8), rng.randint(0, 4))
        )
        wanted = [i for _, i in sorted((-_hits(prompt, known, page_size), i) for i, prompt in enumerate(prompts))]
        expect_equal(ask(prompts, known, page_size), wanted, f"prompts {prompts}, cached {known}, pages of {page_size}")
    return "most cached first, equals in order of arrival"


# --- 11.3 -------------------------------------------------------------------------------------------------------------


def _admit_all(choose: Any, arrivals: list[list[int]], max_overtakes: int) -> list[int]:
    """Ask `choose` turn by turn: some requests arrive (given by their cached tokens), then one is admitted. Returns the
    tickets in the order of admission."""
    waiting: list[Waiting] = []
    order: list[int] = []
    turns, number = list(arrivals), 0
    while turns or waiting:
        for cached in turns.pop(0) if turns else ():
            waiting.append(Waiting(number, cached))
            number += 1
        if not waiting:
            continue
        chosen = choose([replace(req) for req in waiting], len(order), max_overtakes)
        ticket = getattr(chosen, "ticket", None)
        if ticket not in [req.ticket for req in waiting]:
            raise Hint(f"choose must return one of the waiting requests, not {chosen!r}")
        waiting = [req for req in waiting if req.ticket != ticket]
        order.append(ticket)
    return order


def _overtakes(order: list[int], ticket: int) -> int:
    return sum(other > ticket for other in order[: order.index(ticket)])


@exercise("11.3", "Prefer, but let no request starve", points=2)
def _(given: Given) -> str:
    choose = given["choose"]
    waiting = [Waiting(0, 0), Waiting(1, 8), Waiting(2, 8)]
    first = choose([replace(req) for req in waiting], 0, 4)
    expect_equal(
        getattr(first, "ticket", first),
        1,
        "No request has been overtaken yet, so choose the one with the most cached tokens; among equals, the first",
    )
    lonely = [[0, 8], *[[8]] * 30]
    for bound in (1, 2, 5, 10):
        order = _admit_all(choose, lonely, bound)
        times = _overtakes(order, 0)
        expect(
            times <= bound,
            f"Request 0 has no cached tokens, and in every turn a request with 8 cached tokens arrives. With "
            f"max_overtakes={bound}, request 0 was overtaken {times} times. Without a firm limit, a request can starve",
        )
        expect(
            times == bound,
            f"Request 0 was overtaken only {times} times with max_overtakes={bound}. Until the limit is reached, the "
            "cached tokens decide",
        )
    late = [[9, 9, 9], [0, 9], *[[9]] * 20]
    for bound in (1, 3):
        expect_equal(
            _overtakes(_admit_all(choose, late, bound), 3),
            bound,
            f"Request 3 arrives after other requests have left, so `left` isn't 0 then. With max_overtakes={bound}, it "
            "must be overtaken this many times",
        )
    rng, most = Random(85), 0
    for _ in range(150):
        bound = rng.choice((1, 2, 3, 6))
        arrivals = [[rng.choice((0, 0, 4, 8)) for _ in range(rng.randint(0, 3))] for _ in range(rng.randint(5, 30))]
        order = _admit_all(choose, arrivals, bound)
        for ticket in order:
            times = _overtakes(order, ticket)
            expect(
                times <= bound,
                f"With the arrivals {arrivals} (cached tokens, turn by turn), request {ticket} was overtaken {times} "
                f"times, but max_overtakes={bound}",
            )
            most = max(most, times)
    waiting = [Waiting(7, 0), Waiting(9, 2), Waiting(12, 6), Waiting(13, 6)]
    for left, wanted in ((7, 12), (9, 12), (10, 7), (11, 7)):
        chosen = choose([replace(req) for req in waiting], left, 3)
        expect_equal(
            getattr(chosen, "ticket", chosen),
            wanted,
            f"Tickets 7, 9, 12 and 13 are waiting, {left} requests have left, and max_overtakes=3. All of 0 to 6 have "
            "left, so the others that left arrived after 7",
        )
    return f"no request is overtaken more often than allowed; the most is {most} times"
