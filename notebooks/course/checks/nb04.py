"""Checks of notebook 04, batched decode."""

from collections import deque
from typing import Any

import torch
from torch import Tensor

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect, expect_equal
from notebooks.course.tables import Mistake, Wrong, compare


@exercise("4.1", "Pad and mask")
def _(given: Given) -> str:
    generator = torch.Generator().manual_seed(0)
    cases = [
        ([torch.randn(length, kv_heads, head_dim, generator=generator) for length in lens],)
        for lens, kv_heads, head_dim in (([3, 1, 5], 2, 4), ([2, 2], 1, 3), ([4], 2, 2), ([1, 7, 7, 2], 3, 8))
    ]
    mistakes: dict[str, Mistake] = {
        "Your mask is True for padding. `seen` must be True for tokens.": "inverted",
        "Row i must begin with the keys of request i: the padding is behind them.": "behind",
        "The padding of each row must be zeros.": "ones",
    }
    hint = (
        "return the rectangle [B, longest, Hk, D], zeros where there is no token, and `seen`, True where there is one."
    )
    compare(given["pad"], _padded, cases, mistakes, hint=hint)
    return "one row, equal rows and unequal rows"


def _padded(keys: list[Tensor], wrong: Wrong = ()) -> tuple[Tensor, Tensor]:
    padding = 1.0 if "ones" in wrong else 0.0
    longest = max(map(len, keys))
    rectangle, seen = torch.full((len(keys), longest, *keys[0].shape[1:]), padding), torch.zeros(len(keys), longest)
    for row, key in enumerate(keys):
        start = longest - len(key) if "behind" in wrong else 0
        rectangle[row, start : start + len(key)] = key
        seen[row, : len(key)] = 1
    return rectangle, seen.bool() ^ ("inverted" in wrong)


class _Request:
    """A request for `new_tokens` tokens: whether it is prefilled, and how many tokens are left to compute."""

    def __init__(self, number: int, new_tokens: int):
        self.number, self.left, self.prefilled = number, new_tokens, False

    @property
    def finished(self) -> bool:
        return self.prefilled and self.left == 0

    def prefill(self) -> None:
        expect(not self.prefilled, f"Request {self.number} was prefilled twice.")
        self.prefilled = True
        self.left -= 1

    def __repr__(self) -> str:
        return f"request {self.number}"


class _Run:
    """Requests served by the student's `step`; checks every pass and keeps which requests were in it."""

    def __init__(self, step: Any, new_tokens: list[int], max_running: int):
        self.step, self.max_running = step, max_running
        self.running: list[_Request] = []
        self.waiting = deque(_Request(i, n) for i, n in enumerate(new_tokens))
        self.ended: list[int] = []
        self.current: list[int] = []  # the requests in the pass of this step

    def decode(self, requests: Any) -> None:
        requests = list(requests)
        expect(requests, "You ran a decode pass without requests. It takes time and gives nothing.")
        expect(not self.current, "You ran two decode passes in one step. All running requests share a single pass.")
        room = f"There are {len(requests)} requests in the pass, but it has room for {self.max_running}."
        expect(len(requests) <= self.max_running, room)
        for request in requests:
            expect(request.prefilled, f"{request!r} is in a decode pass but wasn't prefilled, so it has no K/V.")
            expect(not request.finished, f"{request!r} is in a decode pass but has already finished.")
            request.left -= 1
        self.current = [request.number for request in requests]

    def once(self) -> list[int]:
        self.current = []
        finished = self.step(self.running, self.waiting, self.max_running, self.decode)
        expect(isinstance(finished, list), f"Return a list of requests, not a {type(finished).__name__}.")
        self.ended += [request.number for request in finished]
        left = [request for request in self.running if request.finished]
        expect(
            not left,
            f"{left} finished in this step but are still in `running`, so other requests can't use their rows. (Change "
            "the caller's list in place. Don't remove items from a list while you loop over it.)",
        )
        return sorted(self.current)


@exercise("4.2", "A step of continuous batching", points=3)
def _(given: Given) -> str:
    step = given["step"]
    cases = [
        ([3, 5, 2], 8),
        ([4, 2, 3, 2, 5], 2),
        ([1, 1, 4], 1),
        ([12, 4, 7, 1, 9, 3, 6, 5], 3),
        ([1, 1], 2),
        ([2], 1),
    ]
    for new_tokens, max_running in cases:
        run = _Run(step, new_tokens, max_running)
        wanted_passes, wanted_ends = _served(new_tokens, max_running)
        for number, wanted in enumerate(wanted_passes, 1):
            case = f"Requests of {new_tokens} tokens, room for {max_running}, step {number}"
            got = run.once()
            missing = sorted(set(wanted) - set(got))
            order = f"{case}: you compute {got} instead of {wanted}. The request that has waited longest joins first."
            expect(not missing or not set(got) - set(wanted), order)
            room = f"{case}: requests {missing} aren't in the pass, although there is room. Fill free rows before the pass."
            expect(not missing, room)
            expect_equal(got, wanted, f"{case}: these requests must be in the pass.")
            ends = f"{case}: each finished request must be returned once, in the order in which they ended."
            expect_equal(run.ended, wanted_ends[: len(run.ended)], ends)
        expect_equal(
            run.ended, wanted_ends, f"Requests of {new_tokens} tokens: in the end, all must have been returned."
        )
        expect(not run.once(), "When there are no requests, a step must do nothing.")
    run = _Run(step, [6], 2)
    run.once()
    run.waiting.append(_Request(1, 3))
    expect_equal(run.once(), [0, 1], "A request that arrives while another one runs must join it in the next step.")
    return "late requests, early ends, one-token requests, a single row"


def _served(new_tokens: list[int], max_running: int) -> tuple[list[list[int]], list[int]]:
    """The requests in each step's pass, and the order in which requests end, by counting tokens."""
    left = dict(enumerate(new_tokens))
    queue, running = deque(left), list[int]()
    passes, ended = [], list[int]()
    while queue or running:
        while queue and len(running) < max_running:
            number = queue.popleft()
            left[number] -= 1
            (running if left[number] else ended).append(number)
        for number in running:
            left[number] -= 1
        passes.append(sorted(running))
        ended += [number for number in running if not left[number]]
        running = [number for number in running if left[number]]
    return passes, ended
