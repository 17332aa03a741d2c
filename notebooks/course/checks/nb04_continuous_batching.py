"""Checks of notebook 04, batched decode: which requests are in a pass, and how much of it is padding."""

from collections import deque
from typing import Any

import numpy as np

from nanoinfer.model.random_model import random_model
from nanoinfer.sessions.inference import InferenceEngine
from nanoinfer.sessions.offline_scheduler import OfflineScheduler
from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import expect, expect_equal

TINY: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
}


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
        self.passes: list[list[int]] = []  # per step, the requests in its pass
        self.ended: list[int] = []
        self.current: list[int] = []

    def decode(self, requests: Any) -> None:
        requests = list(requests)
        expect(requests, "You ran a decode pass without requests. It takes time and gives nothing.")
        expect(
            len(self.current) == 0, "You ran two decode passes in one step. All running requests share a single pass."
        )
        expect(
            len(requests) <= self.max_running,
            f"There are {len(requests)} requests in the pass, but it has room for {self.max_running}.",
        )
        for request in requests:
            expect(request.prefilled, f"{request!r} is in a decode pass but wasn't prefilled, so it has no K/V.")
            expect(
                not request.finished,
                f"{request!r} is in a decode pass but has already finished. That wastes a row, or gives it one token too "
                "many.",
            )
        expect(len({id(r) for r in requests}) == len(requests), "A request is in the same pass twice.")
        for request in requests:
            request.left -= 1
        self.current = [request.number for request in requests]

    def once(self) -> None:
        self.current = []
        finished = self.step(self.running, self.waiting, self.max_running, self.decode)
        expect(isinstance(finished, list), f"Return a list of requests, not a {type(finished).__name__}.")
        expect(all(isinstance(r, _Request) for r in finished), f"Return a list of requests, not {finished!r}.")
        self.passes.append(self.current)
        self.ended += [request.number for request in finished]
        left = [request for request in self.running if request.finished]
        expect(
            not left,
            f"{left} finished in this step but are still in `running`, so other requests can't use their rows. (Change "
            "the caller's list in place. Don't remove items from a list while you loop over it.)",
        )
        wrong = [request for request in finished if not request.finished]
        expect(not wrong, f"You returned {wrong} as finished, but there are tokens left to compute.")


@exercise("4.4", "A step of continuous batching", points=3)
def _(given: Given) -> str | None:
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
        case = f"Requests of {new_tokens} tokens, room for {max_running}"
        wanted_passes, wanted_ends = _served(new_tokens, max_running)
        for number, wanted in enumerate(wanted_passes, 1):
            run.once()
            missing = sorted(set(wanted) - set(run.passes[-1]))
            extra = sorted(set(run.passes[-1]) - set(wanted))
            expect(
                not missing or not extra,
                f"{case}, step {number}: you compute requests {run.passes[-1]} instead of {wanted}. The request that has "
                "waited longest joins first.",
            )
            expect(
                not missing,
                f"{case}, step {number}: requests {missing} aren't in the pass, although there is room. Fill free rows in "
                "the same step, before the pass.",
            )
            expect_equal(sorted(run.passes[-1]), wanted, f"{case}, step {number}: these requests must be in the pass.")
            ends = wanted_ends[: len(run.ended)]
            expect_equal(
                run.ended, ends, f"{case}: return each finished request once, in the order in which they ended."
            )
        expect_equal(run.ended, wanted_ends, f"{case}: after {len(wanted_passes)} steps, all must have been returned.")
        expect(
            not run.running and not run.waiting, f"{case}: all requests ended, but `running` or `waiting` isn't empty."
        )
        run.once()
        expect(not run.passes[-1], "When there are no requests, a step must do nothing.")
    _joining(step)
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


def _joining(step: Any) -> None:
    """A request that arrives while others run must be in the very next pass, if there is room."""
    run = _Run(step, [6], 2)
    run.once()
    run.waiting.append(_Request(1, 3))
    run.once()
    expect_equal(
        run.passes,
        [[0], [0, 1]],
        "A request that arrives while another one runs must join it in the next step, not wait until it ends.",
    )


@exercise("4.5", "Predict the padding", points=2)
def _(given: Given) -> str | None:
    padding_share = given["padding_share"]
    model = random_model(kernels="torch", **TINY)
    cases = [
        ([3, 9], [4, 4]),
        ([5, 5, 5], [6, 6, 6]),
        ([40, 3, 3, 3], [3, 8, 2, 5]),
        ([2, 2, 2], [30, 3, 1]),
        ([7], [5]),
        ([4, 6], [1, 1]),
    ]
    for prompt_lens, new_tokens in cases:
        got, want = padding_share(list(prompt_lens), list(new_tokens)), _measured_share(model, prompt_lens, new_tokens)
        case = f"prompts {prompt_lens}, new tokens {new_tokens}"
        expect(isinstance(got, int | float), f"Return one number, not a {type(got).__name__}.")
        first = 1 - sum(prompt_lens) / (len(prompt_lens) * max(prompt_lens))
        if abs(first - want) > 1e-6:
            expect(
                abs(got - first) > 1e-9,
                f"{case}: that is the padding of the prompts alone. Rows grow in every pass, and requests leave.",
            )
        static = _static_batch_share(prompt_lens, new_tokens)
        if abs(static - want) > 1e-6:
            expect(
                abs(got - static) > 1e-9,
                f"{case}: you keep all requests in the batch until the last one ends. In continuous batching, a request "
                "leaves as soon as it finishes.",
            )
        expect_equal(
            float(got), want, f"{case}: an engine that serves these requests measures another share.", atol=1e-6
        )
    return "equal to an engine's account"


def _measured_share(model: Any, prompt_lens: list[int], new_tokens: list[int]) -> float:
    """The share that an engine measures when it serves such requests."""
    engine = InferenceEngine(model)
    scheduler = OfflineScheduler(engine)
    for length, new in zip(prompt_lens, new_tokens, strict=True):
        scheduler.add_request(np.arange(length), new, temperature=0.0, stop_on_eos=False)
    while scheduler.has_unfinished():
        scheduler.step()
    used, padding = engine.account.decode_bytes_used, engine.account.decode_bytes_padding
    return padding / (used + padding) if used else 0.0


def _static_batch_share(prompt_lens: list[int], new_tokens: list[int]) -> float:
    """The share when finished requests keep their rows, at their final length, until the last request has finished."""
    used = total = 0
    for i in range(max(new_tokens) - 1):
        rows = [n + min(i + 1, new - 1) for n, new in zip(prompt_lens, new_tokens, strict=True)]
        used, total = used + sum(rows), total + len(rows) * max(rows)
    return 1 - used / total if total else 0.0
