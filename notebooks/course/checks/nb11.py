"""Checks of notebook 11: chunks, and which waiting request goes first."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, expect, expect_equal
from notebooks.course.tables import compare, expect_rows


def _expected_chunks(prefix_len: int, num_tokens: int, size: int, page_size: int) -> list[tuple[int, int]]:
    """Token by token: a chunk grows until it is full, then shrinks to the last page boundary."""
    found, done = [], prefix_len
    while done < num_tokens:
        end = min(done + size, num_tokens)
        while end < num_tokens and end % page_size:
            end -= 1
        found.append((done, end))
        done = end
    return found


@exercise("11.1", "Divide a prompt into chunks")
def _(given: Given) -> str:
    prompt_chunks = given["prompt_chunks"]

    def ask(*arguments: int) -> list[tuple[int, ...]]:
        return [tuple(chunk) for chunk in prompt_chunks(*arguments)]

    rows: list[tuple[Any, ...]] = [
        (0, 10, 64, 1, "A prompt that fits is one chunk"),
        (0, 100, 40, 1, "Each chunk has 40 tokens, until the prompt ends"),
        (30, 100, 40, 1, "Cached tokens aren't computed, so the chunks begin at prefix_len"),
        (0, 80, 40, 1, "There is no empty chunk at the end"),
        (0, 20, 11, 4, "A chunk in the middle of a prompt must end at a page boundary"),
        (0, 13, 7, 4, "The last chunk ends where the prompt ends, even if that is in the middle of a page"),
        (16, 22, 7, 4, "The rest of the prompt fits into one chunk, so it isn't cut at a page boundary"),
    ]
    expect_rows(ask, [(*row[:-1], _expected_chunks(*row[:-1]), row[-1]) for row in rows])
    rng, cases = Random(82), []
    for _ in range(300):
        page_size = rng.choice((1, 2, 4, 8))
        size, prefix_len = rng.randint(page_size, 40), rng.randint(0, 5) * page_size
        cases.append((prefix_len, prefix_len + rng.randint(1, 150), size, page_size))
    compare(ask, _expected_chunks, cases, hint="chunks follow one another, each as long as it may be")
    return "every token is computed once, and no chunk is too long"


@dataclass
class Waiting:
    """What the policy needs to know about a waiting request."""

    ticket: int
    cached: int


def _admit_all(choose: Any, arrivals: list[list[int]], max_overtakes: int) -> list[int]:
    """Ask `choose` turn by turn: some requests arrive (given by their cached tokens), then one is admitted. Returns how
    often each was overtaken, in the order of their tickets."""
    waiting: list[Waiting] = []
    order: list[int] = []
    turns, number = list(arrivals), 0
    while turns or waiting:
        for cached in turns.pop(0) if turns else ():
            waiting.append(Waiting(number, cached))
            number += 1
        if waiting:
            chosen = choose([replace(req) for req in waiting], len(order), max_overtakes)
            ticket = getattr(chosen, "ticket", None)
            if ticket not in [req.ticket for req in waiting]:
                raise Hint(f"choose must return one of the waiting requests, not {chosen!r}")
            waiting = [req for req in waiting if req.ticket != ticket]
            order.append(ticket)
    return [sum(other > ticket for other in order[: order.index(ticket)]) for ticket in range(number)]


@exercise("11.2", "Prefer, but let no request starve", points=2)
def _(given: Given) -> str:
    choose = given["choose"]
    equals = choose([Waiting(0, 0), Waiting(1, 8), Waiting(2, 8)], 0, 4)
    hint = "No request has been overtaken yet, so choose the one with the most cached tokens; among equals, the first"
    expect_equal(getattr(equals, "ticket", equals), 1, hint)
    for bound in (1, 2, 5, 10):
        times = _admit_all(choose, [[0, 8], *[[8]] * 30], bound)[0]
        said = "Request 0 has no cached tokens, and in every turn a request with 8 cached tokens arrives. With "
        said += f"max_overtakes={bound}, request 0 was overtaken {times} times."
        expect(times <= bound, f"{said} Without a firm limit, a request can starve")
        expect(times == bound, f"{said} Until the limit is reached, the cached tokens decide: it was too seldom")
    for bound in (1, 3):
        times = _admit_all(choose, [[9, 9, 9], [0, 9], *[[9]] * 20], bound)[3]
        late = "Request 3 arrives after other requests have left, so `left` isn't 0 then. How often it is overtaken"
        expect_equal(times, bound, f"{late}, with max_overtakes={bound}")
    rng, most = Random(85), 0
    for _ in range(150):
        bound = rng.choice((1, 2, 3, 6))
        arrivals = [[rng.choice((0, 0, 4, 8)) for _ in range(rng.randint(0, 3))] for _ in range(rng.randint(5, 30))]
        times = max(_admit_all(choose, arrivals, bound), default=0)
        said = f"With the arrivals {arrivals}, one is overtaken {times} times, but max_overtakes={bound}"
        expect(times <= bound, said)
        most = max(most, times)
    waiting = [Waiting(7, 0), Waiting(9, 2), Waiting(12, 6), Waiting(13, 6)]
    for left, wanted in ((7, 12), (9, 12), (10, 7), (11, 7)):
        chosen = choose([replace(req) for req in waiting], left, 3)
        said = f"Tickets 7, 9, 12 and 13 are waiting, {left} requests have left, and max_overtakes=3. 0 to 6 have left"
        expect_equal(getattr(chosen, "ticket", chosen), wanted, said)
    return f"no request is overtaken more often than allowed; the most is {most} times"
