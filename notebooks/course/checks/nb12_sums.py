"""Checks of notebook 12: a sum that depends on the batch."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import Hint, a_kind, expect, expect_equal

INPUTS, OUTPUTS = 96, 200


class _Products(TorchDispatchMode):
    """Notes the sizes of the products that are computed inside it: tokens, inputs, outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[int, int, int]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.mv):
            first, second = args[:2]
            outputs = second.shape[1] if second.dim() == 2 else 1
            self.sizes.append((first.shape[0], first.shape[1], outputs))
        return function(*args, **(kwargs or {}))


@exercise("12.5", "A sum that depends on the batch", points=2)
def _(given: Given) -> str:
    linear = given["linear"]
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(16, INPUTS, generator=generator).to(torch.bfloat16)
    weight = torch.randn(OUTPUTS, INPUTS, generator=generator).to(torch.bfloat16)
    answers = {}
    for tokens in (
        1,
        2,
        3,
        4,
        6,
        8,
        12,
        16,
    ):  # min(tokens, 8) divides the inputs, so every way to split gives equal parts
        got, sizes = _computed(linear, x[:tokens], weight)
        exact = x[:tokens].double() @ weight.double().T
        error = (got.double() - exact).abs().max().item()
        said = f"With {tokens} token{'s' if tokens > 1 else ''}"
        expect(error < 2.0, f"{said}, the product is off by {error:.3g}: not all inputs are added up.")
        expect(
            torch.equal(got, _computed(linear, x[:tokens], weight)[0]), "The same call twice gives different results."
        )
        if not _right(got, x[:tokens], weight, min(tokens, 8)):
            raise Hint(f"{said}, {_mistake(got, x[:tokens], weight, sizes)}")
        answers[tokens] = got
    differing = (answers[16][0] != answers[1][0]).float().mean().item()
    expect(differing, "Token 0 has the same bits alone and among 16: your sum doesn't depend on the batch.")
    return f"{100 * differing:.0f} % of token 0's results change when 15 other tokens join it"


def _computed(
    linear: Callable[..., Any], x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, list[tuple[int, int, int]]]:
    """The answer's result, and the sizes of its products."""
    try:
        with _Products() as products:
            got = linear(x.clone(), weight.clone())
    except RuntimeError as error:
        if "shape" not in str(error) and "size" not in str(error):
            raise
        raise Hint(
            f"x {list(x.shape)}, weight {list(weight.shape)}: torch says {str(error).splitlines()[0]!r}. Split the inputs "
            "of both: part i of x's columns belongs to part i of weight's columns."
        ) from error
    expect(isinstance(got, torch.Tensor), f"Return a tensor, not {a_kind(got)}.")
    expect_equal(list(got.shape), [len(x), len(weight)], "The result must be [T, out].")
    expect(got.dtype is torch.bfloat16, f"The result must be bfloat16, not {str(got.dtype).removeprefix('torch.')}.")
    return got, products.sizes


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


def _mistake(got: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, sizes: list[tuple[int, int, int]]) -> str:
    """What the answer did instead, after "With 4 tokens, "."""
    tokens, parts = len(x), min(len(x), 8)
    wanted = f"min(T, 8) is {parts}"
    one_sum = f"one sum over all inputs: its bits don't depend on the batch. Split the inputs. {wanted}."
    whole = sizes and all(inputs == INPUTS for _, inputs, _ in sizes)
    if parts > 1 and whole and _right(got, x, weight, 1):
        if all(rows < tokens for rows, _, _ in sizes):
            return f"you split the tokens, and each still has {one_sum}"
        if all(outputs < OUTPUTS for _, _, outputs in sizes):
            return f"you split the outputs, and each is still {one_sum}"
        return f"you compute one product, with {one_sum}"
    products = _products(x, weight, parts)
    if _close(got, torch.stack(products).float().sum(0).bfloat16()):
        return (
            "you round the products, but not the sums: bfloat16 numbers were added in float32 and rounded once (as torch's "
            "own `sum` does). Add one product after the other, with `+`, in bfloat16."
        )
    if len(sizes) != parts and sizes and all(inputs < INPUTS for _, inputs, _ in sizes):
        return f"you add up {len(sizes)} parts, but {wanted}."
    if parts > 1 and _close(got, (x.double() @ weight.double().T).bfloat16()):
        return (
            "your result is as exact as one product, so it doesn't depend on the batch. Split the inputs, and round each "
            "part's product to bfloat16 before you add."
        )
    for other in range(1, 17):
        if other != parts and _right(got, x, weight, other):
            return f"your result is that of {other} part{'s' if other > 1 else ''}, but {wanted}."
    return f"the result isn't that of {parts} products that are added in bfloat16, one after the other."
