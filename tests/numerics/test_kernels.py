"""Kernels in C++ and oneDNN: equal to plain torch, and the same bits whatever rows are beside a row."""

import pytest
import torch

from nanoinfer.kernels import Kernels, TorchKernels
from nanoinfer.kernels.cpp import CppKernels
from tests.helpers.kernels import DTYPES, assert_close, need_cpp, need_kernels, random


@pytest.fixture(params=[(name, dtype) for name in ("cpp", "onednn") for dtype in DTYPES], ids=str)
def both(request: pytest.FixtureRequest) -> tuple[Kernels, torch.dtype]:
    return need_kernels(*request.param), request.param[1]


@pytest.fixture(params=DTYPES, ids=str)
def cpp(request: pytest.FixtureRequest) -> tuple[CppKernels, torch.dtype]:
    return need_cpp(request.param), request.param


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 13, 33])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 64), (96, 320), (48, 17), (130, 200), (33, 70)])
def test_linear_is_torchs(both: tuple[Kernels, torch.dtype], rows: int, inputs: int, outputs: int):
    kernels, dtype = both
    x, weight, bias = (random(*shape, dtype=dtype) for shape in ((rows, inputs), (outputs, inputs), (outputs,)))
    for b in (None, bias):
        got = kernels.linear(x, kernels.pack(weight), b, outputs)
        assert_close(
            got, TorchKernels().linear(x.float(), weight.float(), None if b is None else b.float(), 0).to(dtype)
        )


@pytest.mark.parametrize("size", [8, 16, 64, 100, 896])
def test_norms_are_torchs(both: tuple[Kernels, torch.dtype], size: int):
    kernels, dtype = both
    x, residual, weight = (random(5, size, dtype=dtype, seed=i) for i in range(3))
    plain = TorchKernels()
    assert_close(kernels.rms_norm(x, weight[0], 1e-5), plain.rms_norm(x, weight[0], 1e-5))
    heads = torch.cat((x, x), dim=1).view(5, 2, size)[:, :1]  # a part of wider rows
    assert_close(kernels.rms_norm(heads, weight[0], 1e-5), plain.rms_norm(heads, weight[0], 1e-5))
    wanted = plain.add_rms_norm(x, residual, weight[0], 1e-5)
    for got, want in zip(kernels.add_rms_norm(x, residual.clone(), weight[0], 1e-5), wanted, strict=True):
        assert_close(got, want)


@pytest.mark.parametrize("dim", [4, 16, 48, 64, 128])
def test_rotation_is_torchs(both: tuple[Kernels, torch.dtype], dim: int):
    kernels, dtype = both
    x, positions = random(7, 6, dim, dtype=dtype), torch.tensor([0, 3, 31, 2, 2, 9, 30])
    angles = torch.outer(torch.arange(32.0), torch.rand(dim // 2, generator=torch.Generator().manual_seed(1)))
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    wanted = TorchKernels().rotate(x[:, :4].float(), cos.float(), sin.float(), positions).to(dtype)
    assert_close(kernels.rotate(x.clone()[:, :4], cos, sin, positions), wanted)


@pytest.mark.parametrize("size", [3, 16, 96, 1000])
@pytest.mark.parametrize("activation", ["silu_and_mul", "gelu_tanh_and_mul"])
def test_activations_are_torchs(both: tuple[Kernels, torch.dtype], activation: str, size: int):
    kernels, dtype = both
    x = 4 * random(3, 2 * size, dtype=dtype)
    assert_close(getattr(kernels, activation)(x), getattr(TorchKernels(), activation)(x.float()).to(dtype))


@pytest.mark.parametrize("activation", ["silu_and_mul", "gelu_tanh_and_mul"])
def test_activations_of_extreme_gates_neither_overflow_nor_lose_nan(
    cpp: tuple[CppKernels, torch.dtype], activation: str
):
    kernels, dtype = cpp
    gate = torch.tensor([-1e30, -200.0, -88.0, 0.0, 88.0, 1e30, torch.nan], dtype=dtype)
    got = getattr(kernels, activation)(torch.cat((gate, torch.ones_like(gate)))[None])[0]
    assert got[:2].tolist() == [0.0, 0.0]
    assert torch.equal(got[3:6], gate[3:6])
    assert got[6].isnan()


def test_what_would_be_read_as_something_else_is_not_computed(cpp: tuple[CppKernels, torch.dtype]):
    kernels, dtype = cpp
    other = torch.bfloat16 if dtype is torch.float32 else torch.float32
    x, packed, weight = random(4, 64, dtype=dtype), kernels.pack(random(8, 64, dtype=dtype)), random(64, dtype=dtype)
    heads, table = x.clone().view(4, 2, 32), random(8, 16, dtype=dtype)
    for wrong in (
        lambda: kernels.linear(x.to(other), packed, None, 8),
        lambda: kernels.linear(x[:, :32], packed, None, 8),
        lambda: kernels.add_rms_norm(x[:, ::2], x[:, ::2], weight, 1e-5),
        lambda: kernels.add_rms_norm(x, x[:2], weight, 1e-5),
        lambda: kernels.rotate(heads, table, table, torch.arange(4, dtype=torch.int32)),
        lambda: kernels.rotate(heads, table, table, torch.arange(3)),
        lambda: kernels.rotate(heads, table, table, torch.arange(8)[::2]),
        lambda: kernels.silu_and_mul(x[:, ::2]),
        lambda: kernels.gelu_tanh_and_mul(x[:, ::2]),
    ):
        with pytest.raises(AssertionError):
            wrong()
