"""Checks of notebook 03, batched decode."""

from collections import deque
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from nanoinfer.sessions import InferenceEngine, OfflineScheduler
from nanoinfer.teaching.exercises import Given, exercise
from nanoinfer.teaching.expectations import expect, expect_equal
from nanoinfer.teaching.random_model import random_model

TINY: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
}


@exercise("3.1", "Pad and mask")
def _(given: Given) -> str | None:
    pad = given["pad"]
    generator = torch.Generator().manual_seed(0)
    for lens, kv_heads, head_dim in (([3, 1, 5], 2, 4), ([2, 2], 1, 3), ([4], 2, 2), ([1, 7, 7, 2], 3, 8)):
        keys = [torch.randn(length, kv_heads, head_dim, generator=generator) for length in lens]
        kept = [key.clone() for key in keys]
        answer = pad(keys)
        expect(isinstance(answer, tuple) and len(answer) == 2, "Return two things: the rectangle and the mask.")
        rectangle, seen = answer
        expect(
            all(torch.equal(key, before) for key, before in zip(keys, kept, strict=True)),
            "The tensors in `keys` were changed: they belong to their sessions.",
        )
        wanted_seen = torch.tensor([[position < length for position in range(max(lens))] for length in lens])
        expect(
            not (isinstance(seen, torch.Tensor) and seen.dtype == torch.bool and torch.equal(seen, ~wanted_seen)),
            "The mask says True for padding here. `seen` is True for tokens.",
        )
        expect_equal(
            seen, wanted_seen, f"Lengths {lens}: `seen` is True where a row has a token, False in its padding."
        )
        shape = [len(lens), max(lens), kv_heads, head_dim]
        expect_equal(list(rectangle.shape), shape, f"Lengths {lens}: the rectangle is [B, longest, Hk, D].")
        for row, key in enumerate(keys):
            expect_equal(
                rectangle[row, : len(key)],
                key,
                f"Lengths {lens}: row {row} must begin with the keys of its {len(key)} tokens.",
            )
            expect(not rectangle[row, len(key) :].any(), f"Lengths {lens}: the padding of row {row} is not zeros.")
    return "one row, equal rows and unequal rows"


@exercise("3.2", "Attention over a padded batch", points=2)
def _(given: Given) -> str | None:
    attend = given["batched_decode_attention"]
    generator = torch.Generator().manual_seed(1)
    for lens, heads, kv_heads, head_dim in (
        ([4, 4], 2, 2, 4),
        ([3, 1, 6], 8, 2, 4),
        ([5], 4, 1, 8),
        ([9, 2, 9], 6, 3, 16),
    ):
        q = torch.randn(len(lens), heads, head_dim, generator=generator)
        keys, values = torch.randn(2, len(lens), max(lens), kv_heads, head_dim, generator=generator)
        seen = torch.tensor([[position < length for position in range(max(lens))] for length in lens])
        want = torch.stack([_alone(q[i], keys[i, :n], values[i, :n]) for i, n in enumerate(lens)])
        unmasked = torch.stack([_alone(q[i], keys[i], values[i]) for i in range(len(lens))])
        for padding in ("zeros", "large numbers", "NaN"):
            k, v = (kv.clone() for kv in (keys, values))
            for kv in (k, v):
                kv[~seen] = {"zeros": 0.0, "large numbers": 1e4, "NaN": torch.nan}[padding]
            kept = k.clone(), v.clone()
            out = attend(q.clone(), k, v, seen.clone())
            where = f"Lengths {lens}, H={heads}, Hk={kv_heads}, padding of {padding}"
            expect(
                all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip((k, v), kept, strict=True)),
                "`keys` or `values` was changed in place. Other code may still need them; work on a copy.",
            )
            expect(isinstance(out, torch.Tensor), f"Return a tensor [B, H, D], not a {type(out).__name__}.")
            expect_equal(list(out.shape), list(q.shape), f"{where}: the output is [B, H, D].")
            if padding == "zeros" and min(lens) < max(lens):
                zeroed = torch.stack([_alone(q[i], k[i], v[i]) for i in range(len(lens))])
                expect(
                    not torch.allclose(out, zeroed, atol=1e-5),
                    "Padding is not masked: a key of zeros has a score of 0, to which the softmax gives the weight e⁰.",
                )
            if padding == "NaN":
                expect(
                    not out.isnan().any(),
                    f"{where}: the output is NaN. A weight of 0 does not help, 0 · NaN is NaN; take padding out of keys "
                    "and values before they are multiplied.",
                )
            if not torch.allclose(want, unmasked, atol=1e-5):
                expect(not torch.allclose(out, unmasked, atol=1e-5), "The mask has no effect.")
            for hint, mistake in _typical_mistakes(q, keys, values, lens).items():
                if not torch.allclose(mistake, want, atol=1e-5):
                    expect(not torch.allclose(out, mistake, atol=1e-5), hint)
            expect_equal(out, want, f"{where}: rows differ from attention of each request alone.", atol=1e-5)
    return "whatever the padding holds, every row is as if it were computed alone"


def _typical_mistakes(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lens: list[int]
) -> dict[str, torch.Tensor]:
    """Hint → the result of attention with that mistake but the right mask, [B, H, D]."""
    heads, kv_heads, head_dim = q.shape[1], keys.shape[2], q.shape[2]
    sharing = torch.arange(heads) % kv_heads
    interleaved = [_alone(q[i], keys[i, :n, sharing], values[i, :n, sharing]) for i, n in enumerate(lens)]
    unscaled = [_alone(q[i] * head_dim**0.5, keys[i, :n], values[i, :n]) for i, n in enumerate(lens)]
    return {
        "Query head h reads key/value head h % Hk here. Neighbours share: it must read head h // (H / Hk).": torch.stack(
            interleaved
        ),
        "The scores must be divided by the square root of D before the softmax.": torch.stack(unscaled),
    }


def _alone(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """q [H, D], keys and values [S, Hk, D] -> [H, D]."""
    k, v = (kv.transpose(0, 1).repeat_interleave(len(q) // kv.shape[1], 0) for kv in (keys, values))
    return scaled_dot_product_attention(q[:, None], k, v)[:, 0]


@exercise("3.3", "Give every session its own again")
def _(given: Given) -> str | None:
    split_rows = given["split_rows"]
    generator = torch.Generator().manual_seed(2)
    for lens, width in (([3, 1, 5], 5), ([4, 4], 4), ([2], 6), ([1, 200], 200)):
        rectangle = torch.randn(len(lens), width, 2, 4, generator=generator)
        kept = rectangle.clone()
        rows = split_rows(rectangle, list(lens))
        expect(isinstance(rows, list), f"Return a list, not a {type(rows).__name__}.")
        expect_equal(len(rows), len(lens), f"{len(lens)} requests, so {len(lens)} tensors.")
        expect(torch.equal(rectangle, kept), "The rectangle was changed.")
        for i, (row, length) in enumerate(zip(rows, lens, strict=True)):
            expect_equal(
                row, kept[i, :length], f"Lengths {lens}: request {i} gets the first {length} tokens of its row."
            )
            held, needed = row.untyped_storage().nbytes(), row.numel() * row.element_size()
            expect(
                held == needed,
                f"Lengths {lens}: the tensor of request {i} needs {needed} bytes, but keeps {held} bytes alive. A slice is "
                "a view: as long as it lives, the whole tensor behind it lives. Make a copy "
                "(`contiguous()` copies only what is not contiguous already).",
            )
        rectangle.fill_(-1)
        expect(
            all(torch.equal(row, kept[i, :length]) for i, (row, length) in enumerate(zip(rows, lens, strict=True))),
            "Writing into the rectangle changed the sessions' tensors. They must not share its memory.",
        )
    return "copies of exactly the tokens' size"


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
    """Requests served by the reader's `step`; checks every pass and keeps which requests were in it."""

    def __init__(self, step: Any, new_tokens: list[int], max_running: int):
        self.step, self.max_running = step, max_running
        self.running: list[_Request] = []
        self.waiting = deque(_Request(i, n) for i, n in enumerate(new_tokens))
        self.passes: list[list[int]] = []  # per step, the requests in its pass
        self.ended: list[int] = []
        self.current: list[int] = []

    def decode(self, requests: Any) -> None:
        requests = list(requests)
        expect(requests, "A decode pass without requests: it takes time and gives nothing.")
        expect(len(self.current) == 0, "Two decode passes in one step. All running requests share a single pass.")
        expect(
            len(requests) <= self.max_running,
            f"{len(requests)} requests in a pass that has room for {self.max_running}.",
        )
        for request in requests:
            expect(request.prefilled, f"{request!r} is in a decode pass, but has not been prefilled: it has no K/V.")
            expect(
                not request.finished,
                f"{request!r} is in a decode pass, but has finished: its row is wasted, or it gets one token too many.",
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
            f"{left} finished in this step, but still in `running`: their rows are not free for other requests. (Change "
            "the caller's list in place, and do not remove items from a list while a loop iterates over it.)",
        )
        wrong = [request for request in finished if not request.finished]
        expect(not wrong, f"{wrong} returned as finished, but has tokens left to compute.")


@exercise("3.4", "A step of continuous batching", points=3)
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
                f"{case}, step {number}: {run.passes[-1]} are computed instead of {wanted}. The request that has waited "
                "longest joins first.",
            )
            expect(
                not missing,
                f"{case}, step {number}: requests {missing} are not in the pass, though there is room. Rows that became "
                "free are filled in the same step, before the pass.",
            )
            expect_equal(sorted(run.passes[-1]), wanted, f"{case}, step {number}: these requests are in the pass.")
            ends = wanted_ends[: len(run.ended)]
            expect_equal(
                run.ended, ends, f"{case}: finished requests are returned once, in the order in which they ended."
            )
        expect_equal(run.ended, wanted_ends, f"{case}: after {len(wanted_passes)} steps all have been returned.")
        expect(not run.running and not run.waiting, f"{case}: all have ended, but `running` or `waiting` is not empty.")
        run.once()
        expect(not run.passes[-1], "Without requests a step must do nothing.")
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
    """A request that arrives while others run is in the very next pass, if there is room."""
    run = _Run(step, [6], 2)
    run.once()
    run.waiting.append(_Request(1, 3))
    run.once()
    expect_equal(
        run.passes,
        [[0], [0, 1]],
        "A request that arrives while another runs must join it in the next step, not wait for its end.",
    )


@exercise("3.5", "Predict the padding", points=2)
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
                f"{case}: that is the padding of the prompts. Rows grow in every pass, and requests leave.",
            )
        static = _static_batch_share(prompt_lens, new_tokens)
        if abs(static - want) > 1e-6:
            expect(
                abs(got - static) > 1e-9,
                f"{case}: here requests stay in the batch until the last has ended. In continuous batching they leave.",
            )
        expect_equal(float(got), want, f"{case}: the engine's account gives another share.", atol=1e-6)
    return "equal to an engine's account"


def _measured_share(model: Any, prompt_lens: list[int], new_tokens: list[int]) -> float:
    """The share from the account of an engine that serves such requests."""
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
