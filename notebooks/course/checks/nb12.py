"""Checks of notebook 12: the buffers of a captured graph, and a sum that depends on the batch."""

from functools import reduce
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, a_kind, expect, expect_equal

SIZE, WIDTH = 6, 100  # of the recorded pass; entries of a row


NAMES = ("input_ids", "positions", "seq_lens", "slots", "starts")
WHY = {
    "input_ids": "Token 0 exists in every vocabulary, so its embedding can be looked up.",
    "positions": "Position 0 is in every table of angles. The newest token of a request of 5 is at position 4.",
    "seq_lens": "With length 0, attention reads nothing.",
    "slots": "Slot -1 means nowhere. In any other slot, the K/V of padding would overwrite a request's.",
    "starts": "Row r begins at r * width in the flat table. Behind the batch, it must be a place inside the table: 0.",
}


@exercise("12.1", "The buffers of a captured graph", points=2)
def _(given: Given) -> str:
    fill_buffers, rng = given["fill_buffers"], np.random.default_rng(12)
    arrays = {name: rng.integers(100, 1000, SIZE) for name in NAMES}
    buffers = SimpleNamespace(**arrays)
    for count in (SIZE, 3, 1, 4):  # each finds what the one before has left
        batch: dict[str, np.ndarray] = {
            "token_ids": rng.integers(1, 2048, count),
            "rows": rng.permutation(32)[:count],
            "lens": rng.integers(1, WIDTH, count).astype(np.int32),
            "slots": rng.permutation(4096)[:count],
        }
        kept = {name: array.copy() for name, array in batch.items()}
        fill_buffers(buffers, *batch.values(), WIDTH)
        for name in batch:
            expect(np.array_equal(batch[name], kept[name]), f"You changed `{name}`, which belongs to the caller.")
        for name in NAMES:
            old = f"`{name}` isn't the same array as before. The recorded pass still reads that: write into it."
            expect(getattr(buffers, name, None) is arrays[name], old)
        wanted = kept["token_ids"], kept["lens"] - 1, kept["lens"], kept["slots"], kept["rows"] * WIDTH
        for name, want in zip(NAMES, wanted, strict=True):
            padding = [-1 if name == "slots" else 0] * (SIZE - count)
            said = f"A batch of {count} in a pass of {SIZE}: `{name}`, and behind the batch {padding[:1]}, not what is left"
            expect_equal(arrays[name].tolist(), [*want.tolist(), *padding], f"{said} of the previous pass. {WHY[name]}")
    return "batches of 6, 3, 1 and 4 requests, one after the other"


INPUTS, OUTPUTS = 96, 200


@exercise("12.2", "A sum that depends on the batch", points=2)
def _(given: Given) -> str:
    linear, generator = given["linear"], torch.Generator().manual_seed(5)
    x = torch.randn(16, INPUTS, generator=generator).to(torch.bfloat16)
    weight = torch.randn(OUTPUTS, INPUTS, generator=generator).to(torch.bfloat16)
    answers = {}
    for tokens in (1, 2, 3, 4, 6, 8, 12, 16):  # min(tokens, 8) divides the inputs, so every way to split is equal
        parts, said = min(tokens, 8), f"With {tokens} token{'s' if tokens > 1 else ''}"
        got = _computed(linear, x[:tokens], weight)
        error = (got.double() - x[:tokens].double() @ weight.double().T).abs().max().item()
        expect(error < 2.0, f"{said}, the product is off by {error:.3g}: not all inputs are added up.")
        again = _computed(linear, x[:tokens], weight)
        expect(torch.equal(got, again), "The same call twice gives different results.")
        if not _right(got, x[:tokens], weight, parts):
            raise Hint(f"{said}, {_mistake(got, x[:tokens], weight, parts)}")
        answers[tokens] = got
    differing = (answers[16][0] != answers[1][0]).float().mean().item()
    expect(differing, "Token 0 has the same bits alone and among 16: your sum doesn't depend on the batch.")
    return f"{100 * differing:.0f} % of token 0's results change when 15 other tokens join it"


def _computed(linear: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    try:
        got = linear(x.clone(), weight.clone())
    except RuntimeError as error:
        if "shape" not in str(error) and "size" not in str(error):
            raise
        both = "Split the inputs of both: part i of x's columns belongs to part i of weight's columns."
        raise Hint(f"torch says {str(error).splitlines()[0]!r}. {both}") from error
    expect(isinstance(got, torch.Tensor), f"Return a tensor, not {a_kind(got)}.")
    expect_equal(list(got.shape), [len(x), len(weight)], "The result must be [T, out].")
    expect(got.dtype is torch.bfloat16, f"The result must be bfloat16, not {str(got.dtype).removeprefix('torch.')}.")
    return got


def _right(got: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, parts: int) -> bool:
    """Whether `got` is the sum of so many products, each rounded, rounded again after each addition, in either order."""
    products = _products(x, weight, parts)
    return any(_close(got, reduce(torch.add, order)) for order in (products, products[::-1]))


def _products(x: torch.Tensor, weight: torch.Tensor, parts: int) -> list[torch.Tensor]:
    pairs = zip(x.tensor_split(parts, 1), weight.tensor_split(parts, 1), strict=True)
    return [(some_x.float() @ some_weights.float().T).bfloat16() for some_x, some_weights in pairs]


def _close(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Nearly all numbers are equal: products by another kernel may round a few in another way."""
    return (got == want).float().mean().item() > 0.95


def _mistake(got: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, parts: int) -> str:
    """What the answer did instead, after "With 4 tokens, "."""
    if _close(got, torch.stack(_products(x, weight, parts)).float().sum(0).bfloat16()):
        return (
            "you round the products, but not the sums: bfloat16 numbers were added in float32 and rounded once (as torch's "
            "own `sum` does). Add one product after the other, with `+`, in bfloat16."
        )
    if _close(got, (x.double() @ weight.double().T).bfloat16()):
        return (
            "your result is as exact as one product over all inputs, so its bits don't depend on the batch. Split the "
            f"inputs into min(T, 8) = {parts} parts, and round each part's product to bfloat16 before you add."
        )
    for other in range(1, 17):
        if other != parts and _right(got, x, weight, other):
            return f"your result is that of {other} part{'s' if other > 1 else ''}, but min(T, 8) is {parts}."
    return f"the result isn't that of {parts} products that are added in bfloat16, one after the other."
