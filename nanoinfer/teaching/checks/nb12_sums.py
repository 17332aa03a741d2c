"""Checks of notebook 12: the inner loop of a product in C++, and a sum that depends on the batch."""

from typing import Any

import numpy as np
import torch

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.teaching.compiled import Cpp
from nanoinfer.teaching.exercises import Given, exercise
from nanoinfer.teaching.expectations import Hint, expect, expect_equal

UNTOUCHED = -12345.0


# --- 12.4 -------------------------------------------------------------------------------------------------------------


@exercise("12.4", "The inner loop", points=2)
def _(given: Given) -> str:
    text = given["inner_loop"]()
    expect(isinstance(text, str), f"Return the statements as a string, not as a {type(text).__name__}.")
    expect(text.strip(), "That is an empty loop: the sums stay 0.")
    source = given["your_source"]()
    try:
        compiled = Cpp(source)
    except KernelsUnavailableError as error:
        return f"written, but not tried, because there is {error}"
    except ValueError as error:
        raise Hint(f"C++ says that {error}") from None
    number = np.zeros(1, np.int64)
    compiled.columns(number)
    columns = int(number[0])
    rng = np.random.default_rng(4)
    for rows, inputs, groups in ((6, 5, 2), (1, 1, 1), (1, 7, 1), (6, 3, 1), (9, 40, 3), (2, 64, 1)):
        x = rng.integers(1, 9, (rows, inputs)).astype(np.float32)
        weight = rng.integers(-8, 9, (groups * columns, inputs)).astype(np.float32)
        packed = np.ascontiguousarray(weight.reshape(groups, columns, inputs).transpose(0, 2, 1))
        y = np.full((rows, groups * columns), UNTOUCHED, np.float32)
        got = compiled.outcome("product", x, packed, y, rows, inputs, groups * columns, result=y)
        said = f"x [{rows}, {inputs}], W [{groups * columns}, {inputs}]"
        if isinstance(got, str):
            raise Hint(f"{said}: your product {got}. Every index must stay below its array's end.")
        _compared(got, x, weight, said)
    _bits(compiled, columns, rng)
    return "right for 1 to 9 tokens, and the same bits alone and among others"


def _compared(got: np.ndarray, x: np.ndarray, weight: np.ndarray, said: str) -> None:
    want = x @ weight.T  # of small whole numbers, so it is exact
    if np.array_equal(got, want):
        return
    expect(np.abs(got).any(), f"{said}: everything is 0. Add to `sums`, for every m and p.")
    last = x[:, -1:] * weight[:, -1]
    expect(not np.array_equal(got, last), f"{said}: only the last k counts. Add to the sums with `+=`.")
    expect(
        len(x) == 1 or not np.array_equal(got, np.broadcast_to(want[0], want.shape)),
        f"{said}: every token gets the sums of token 0. The number of token m is x[m * in + k].",
    )
    right = (got == want).all(axis=0)
    expect(
        not right.any(),
        f"{said}: some outputs are right and others wrong. Every p from 0 to PANELS - 1 has its own vector of weights.",
    )
    expect_equal(got, want, f"{said}: the product is wrong.")


def _bits(compiled: Cpp, columns: int, rng: Any) -> None:
    x = rng.standard_normal((9, 300), dtype=np.float32)
    packed = rng.standard_normal((1, 300, columns), dtype=np.float32)
    y = np.zeros((9, columns), np.float32)
    together = compiled.outcome("product", x, packed, y, 9, 300, columns, result=y)
    for row in range(9):
        alone = compiled.outcome("product", x[row : row + 1], packed, y[:1], 1, 300, columns, result=y[:1])
        expect(
            isinstance(alone, np.ndarray)
            and isinstance(together, np.ndarray)
            and np.array_equal(alone[0], together[row]),
            f"Token {row} of 9 gets other bits than alone. Its sum must have the same order, whatever M is: k from front "
            "to back.",
        )


# --- 12.5 -------------------------------------------------------------------------------------------------------------


@exercise("12.5", "A sum that depends on the batch", points=2)
def _(given: Given) -> str:
    linear = given["linear"]
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(16, 96, generator=generator).to(torch.bfloat16)
    weight = torch.randn(200, 96, generator=generator).to(torch.bfloat16)
    answers = {}
    for tokens in (1, 2, 4, 8, 16):
        got = linear(x[:tokens].clone(), weight.clone())
        expect(isinstance(got, torch.Tensor), f"Return a tensor, not a {type(got).__name__}.")
        expect_equal(list(got.shape), [tokens, 200], "The result must be [T, out].")
        expect(
            got.dtype is torch.bfloat16, f"The result must be bfloat16, not {str(got.dtype).removeprefix('torch.')}."
        )
        expect(
            torch.equal(got, linear(x[:tokens].clone(), weight.clone())), "The same call twice gives different results."
        )
        exact = x[:tokens].double() @ weight.double().T
        error = (got.double() - exact).abs().max().item()
        expect(error < 2.0, f"With {tokens} tokens, the product is off by {error:.3g}: not all inputs are added up.")
        answers[tokens] = got
    alone = answers[1][0]
    same = [tokens for tokens, got in answers.items() if tokens > 1 and torch.equal(got[0], alone)]
    expect(
        not same,
        f"Token 0 has the same bits alone and among {same and same[0]}: your sum does not depend on the batch. Split the "
        "inputs into min(T, 8) parts, and round each part's product to bfloat16 before you add.",
    )
    for tokens, got in answers.items():
        parts = zip(x[:tokens].chunk(min(tokens, 8), 1), weight.chunk(min(tokens, 8), 1), strict=True)
        want = sum((a.double() @ b.double().T for a, b in parts), torch.zeros(1, dtype=torch.float64))
        expect(
            torch.allclose(got.double(), want, atol=1.0),
            f"With {tokens} tokens, the parts do not add up to the product.",
        )
    expect(
        torch.equal(answers[8][0], answers[16][0]),
        "Token 0 has other bits among 8 than among 16. Both are split into 8 parts, so they should be equal.",
    )
    differing = (answers[16][0] != alone).float().mean().item()
    return f"{100 * differing:.0f} % of token 0's results change when 15 other tokens join it"
