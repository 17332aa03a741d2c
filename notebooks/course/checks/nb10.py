"""Checks of notebook 10: admission."""

from dataclasses import dataclass
from random import Random
from typing import Any

from notebooks.course.exercises import Given, exercise
from notebooks.course.tables import compare, expect_rows

RATIOS = (0.0, 0.25, 0.5, 0.75, 1.0)  # exact in binary, so that no result depends on rounding


@dataclass
class RequestSize:
    """What admission needs to know about a request."""

    num_tokens: int
    max_kv_len: int
    held: int


@exercise("10.1", "Does it fit?")
def _(given: Given) -> str:
    fits, new, one = given["fits"], RequestSize(6, 21, 0), RequestSize(10, 16, 10)
    candidates = "The candidate can't have all 21 free slots: the running request holds 10 slots and may need 6 more"
    again = "The 10 slots that the running request holds aren't free, so don't count them again: 21 + 6 are needed"
    half = "With ratio 0.5, reserve half of the 15 tokens to come, rounded up: 6 + 8"
    pages = "Slots come in whole pages: 21 tokens need 6 pages of 4 slots, which makes 24 slots"
    each = "Round up each request's tokens to whole pages, not the sum, because requests don't share a page"
    rows: list[tuple[Any, ...]] = [
        (new, [], 21, 0, 1.0, 1, True, "No request is running, 21 slots are free, and it needs at most 21: it fits"),
        (new, [], 20, 0, 1.0, 1, False, "With ratio 1, a request that may need 21 slots doesn't fit into 20"),
        (new, [], 5, 16, 1.0, 1, True, "Evictable slots are available too, because eviction frees them"),
        (new, [one], 21, 0, 1.0, 1, False, candidates),
        (new, [one], 27, 0, 1.0, 1, True, again),
        (
            RequestSize(30, 45, 24),
            [],
            21,
            0,
            1.0,
            1,
            True,
            "It already holds the slots of its first 24 tokens: 21 more",
        ),
        (new, [], 14, 0, 0.5, 1, True, half),
        (new, [], 13, 0, 0.5, 1, False, half),
        (new, [], 5, 0, 0.0, 1, False, "Even with ratio 0, a request needs slots for the tokens it has"),
        (new, [], 23, 0, 1.0, 4, False, pages),
        (new, [], 24, 0, 1.0, 4, True, pages),
        (RequestSize(6, 9, 4), [RequestSize(7, 9, 8)], 12, 0, 1.0, 4, True, each),
        (RequestSize(6, 9, 4), [RequestSize(7, 9, 8)], 11, 0, 1.0, 4, False, each),
    ]
    expect_rows(fits, rows)
    rng, cases = Random(8), []
    for _ in range(300):
        page_size, ratio, requests = rng.choice((1, 2, 4, 16)), rng.choice(RATIOS), list[RequestSize]()
        for _ in range(rng.randint(1, 5)):
            tokens = rng.randint(1, 60)
            held = rng.randint(0, tokens // page_size) * page_size
            requests.append(RequestSize(tokens, tokens + rng.randint(0, 40), held))
        wanted = sum(_still_needed(request, ratio, page_size) for request in requests)
        obtainable = max(wanted + rng.choice((-1, 0, 1, rng.randint(-30, 30))), 0)
        evictable = rng.randint(0, obtainable)
        cases.append((requests[0], requests[1:], obtainable - evictable, evictable, ratio, page_size))
    compare(fits, _fits, cases, hint="count what all of them may still need")
    return f"{len(cases)} admissions decided right"


def _still_needed(request: RequestSize, ratio: float, page_size: int) -> int:
    """The slots that a request may still need, counted token by token."""
    to_come, tokens, slots = ratio * (request.max_kv_len - request.num_tokens), request.num_tokens, 0
    while tokens < request.num_tokens + to_come:
        tokens += 1
    while slots < tokens:
        slots += page_size
    return slots - request.held


def _fits(
    candidate: RequestSize, running: list[RequestSize], free: int, evictable: int, ratio: float, page_size: int
) -> bool:
    return sum(_still_needed(request, ratio, page_size) for request in (candidate, *running)) <= free + evictable
