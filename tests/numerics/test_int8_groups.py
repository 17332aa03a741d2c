"""Weights in 8 bits with a scale for each group of 32 inputs, against plain numpy in double precision."""

import numpy as np
import pytest
import torch

from nanoinfer.model.kernels import select_kernels
from nanoinfer.model.layers.int8_groups import Int8Groups
from tests.helpers.kernels import CPU, DTYPES, TOLERANCE, need_kernels

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["cpp", "torch"])
@pytest.mark.parametrize(("out", "groups"), [(49, 1), (300, 5)])
def test_products_are_those_of_what_the_weights_stand_for(out: int, groups: int, name: str, dtype: torch.dtype) -> None:
    kernels = need_kernels(name, dtype)
    generator = torch.Generator().manual_seed(out)
    whole = torch.randint(-128, 128, (out, groups, 32), generator=generator, dtype=torch.int8)
    scale = (0.01 * torch.randn(out, groups, generator=generator)).half()
    bias = torch.randn(out, generator=generator).to(dtype)
    x = (torch.randn(37, groups * 32, generator=generator) * torch.logspace(-3, 3, 37)[:, None]).to(dtype)
    weights = Int8Groups(whole, scale, bias, kernels, "layer")
    assert (weights.selection.reason == "") == (name == "cpp")
    y = weights.multiply(x)
    matrix = (whole.double() * scale.double()[..., None]).flatten(1).numpy()
    expected = x.double().numpy() @ matrix.T + bias.double().numpy()
    error = np.abs(y.double().numpy() - expected).max(axis=1)
    assert (error <= TOLERANCE[dtype] * np.abs(expected).max(axis=1)).all()
    if name == "cpp":  # whatever else is computed
        for rows in (1, 2, 3, 16, 36):
            assert torch.equal(weights.multiply(x[:rows]), y[:rows])


def test_a_scale_that_is_not_finite_is_named() -> None:
    scale = torch.tensor([[1.0], [torch.inf]]).half()
    with pytest.raises(ValueError, match=r"some\.layer"):
        Int8Groups(
            torch.zeros(2, 1, 32, dtype=torch.int8),
            scale,
            None,
            select_kernels("torch", torch.float32, CPU),
            "some.layer",
        )
