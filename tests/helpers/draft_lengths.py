"""DraftLengths that have measured what a test says: what passes cost, and how often drafts are right."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nanoinfer import SamplingParams
from nanoinfer.drafting.draft_lengths import SAME_PLAN, DraftLengths, Turn
from nanoinfer.drafting.measurements import ENOUGH
from nanoinfer.requests.req import Req

ENOUGH_PASSES = 1 + ENOUGH  # one after another kind of pass does not count
Costs = Callable[[int], float]


class Silent:
    """A drafter that is never asked here."""

    def propose(self, reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        raise AssertionError


def make_req(max_new_tokens: int = 64, **params: Any) -> Req:
    return Req(0, np.array([1, 2]), SamplingParams(max_new_tokens=max_new_tokens, temperature=0, **params))


def measured(lengths: DraftLengths, costs: Costs, sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128)) -> DraftLengths:
    for rows in sizes:
        for _ in range(ENOUGH_PASSES):
            lengths.count_pass(rows, True, costs(rows))
    return lengths


def make_lengths(costs: Costs, most: int = 7, num_drafters: int = 1, step_seconds: float = 0.0) -> DraftLengths:
    """`step_seconds`: what each step takes a drafter."""
    lengths = measured(DraftLengths([Silent()] * num_drafters, most, True), costs)
    for drafter in range(num_drafters):
        for steps in range(1, most + 1):
            for _ in range(ENOUGH_PASSES):
                lengths.count_proposal(drafter, [make_req()], steps, steps * step_seconds)
    return lengths


def accept(lengths: DraftLengths, req: Req, rate: float, drafter: int = 0, passes: int = 200) -> Req:
    """Drafts one by one, of which the share `rate` is right. The drafter always has an idea."""
    right = 0.0
    for _ in range(passes):
        lengths.count_idea(req, drafter, True)
        right += rate
        lengths.count_drafts(req, drafter, 1, int(right))
        right -= int(right)
    return req


def flat(rows: int) -> float:
    """Rows are free: passes wait for memory."""
    return 1.0


def steep(rows: int) -> float:
    """A row costs as much as another pass."""
    return float(rows)


def plan_of(lengths: DraftLengths, *reqs: Req) -> list[int]:
    return most_of(lengths.choose(list(reqs), True), len(reqs))


def most_of(turns: Sequence[Turn], num_reqs: int = 1) -> list[int]:
    """How many drafts each request may get of the one that is asked first."""
    return turns[0].most if turns else [0] * num_reqs


def asked(turns: Sequence[Turn]) -> list[int]:
    return [turn.drafter for turn in turns]


def settled_plan_of(lengths: DraftLengths, *reqs: Req) -> list[int]:
    """The plan after those passes in which an old one may still hold."""
    for _ in range(SAME_PLAN):
        plan = plan_of(lengths, *reqs)
    return plan
