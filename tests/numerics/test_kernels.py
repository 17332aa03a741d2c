"""Kernels in C++ and oneDNN: equal to plain torch, the same bits whatever rows are beside a row, and fused operations equal
to the separate ones."""

from types import SimpleNamespace

import pytest
import torch

from nanoinfer.model.kernels import Kernels, TorchKernels
from nanoinfer.model.kernels.build import cpu_features
from nanoinfer.model.kernels.cpp import CppKernels
from nanoinfer.model.kernels.huge_pages import PAGE, HugePages, ReusedPages
from nanoinfer.model.layers.linear import LMHead
from tests.helpers.kernels import CPU, DTYPES, TOLERANCE, assert_close, need_cpp, need_kernels, random


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


def test_the_instructions_that_products_use_are_the_processors(cpp: tuple[CppKernels, torch.dtype]):
    kernels, dtype = cpp
    flags = cpu_features().split()
    of_bfloat16 = ["amx_bf16", "avx512_bf16"] if dtype is torch.bfloat16 else []
    assert kernels.instructions in [*of_bfloat16, "avx512f", "avx2"]
    assert kernels.instructions in flags


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


ACTIVATIONS = ("silu_and_mul", "gelu_tanh_and_mul")
SIZES = [(64, 64), (33, 70), (896, 100), (1500, 18), (130, 6)]  # inputs, outputs: also no whole tile, word or group
ROWS = (1, 2, 3, 5, 6, 7, 13, 16, 17, 31, 32, 33, 40, 64, 65, 70)
MANY_ROWS = 1100  # more than one item of work has


@pytest.fixture(params=DTYPES, ids=str)
def kernels(request: pytest.FixtureRequest) -> CppKernels:
    need_cpp(request.param)
    made = CppKernels(request.param)
    made.dtype = request.param
    return made


def drawn(kernels: CppKernels, *shape: int, seed: int = 0) -> torch.Tensor:
    return random(*shape, dtype=kernels.dtype, seed=seed)


@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_a_row_is_the_same_bits_with_any_number_of_rows(kernels: CppKernels, inputs: int, outputs: int):
    x, weight = drawn(kernels, MANY_ROWS, inputs), drawn(kernels, outputs, inputs, seed=1)
    packed, wanted = kernels.pack(weight), x.float() @ weight.float().T
    whole = kernels.linear(x, packed, None, outputs)
    assert (whole.float() - wanted).abs().max() <= TOLERANCE[kernels.dtype] * wanted.abs().max()
    for rows in ROWS:
        for first in (0, 500, MANY_ROWS - rows):
            part = slice(first, first + rows)
            assert torch.equal(kernels.linear(x[part], packed, None, outputs), whole[part])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_gated_product_is_the_product_and_the_activation(
    kernels: CppKernels, inputs: int, outputs: int, activation: str, with_bias: bool
):
    weight = drawn(kernels, outputs, inputs, seed=1)
    bias = drawn(kernels, outputs, seed=2) if with_bias else None
    packed, gated = kernels.pack(weight), kernels.pack_gated(weight)
    for rows in (*ROWS, MANY_ROWS):
        x = drawn(kernels, rows, inputs, seed=rows)
        wanted = getattr(kernels, activation)(kernels.linear(x, packed, bias, outputs))
        assert torch.equal(kernels.gated_linear(x, gated, bias, outputs // 2, activation), wanted)


def assert_same_argmax(kernels: CppKernels, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The fused argmax is numpy's of the logits, as the sampler takes it."""
    packed = kernels.pack(weight)
    token_ids, largest = kernels.linear_argmax(x, packed, None, len(weight))
    logits = kernels.linear(x, packed, None, len(weight)).float()
    wanted = torch.from_numpy(logits.numpy().argmax(-1))
    assert torch.equal(token_ids, wanted)
    assert torch.equal(largest.nan_to_num(7e9), logits.gather(1, wanted[:, None])[:, 0].nan_to_num(7e9))
    plain = TorchKernels().linear_argmax(logits, torch.eye(len(weight)), None, len(weight))
    if logits.isfinite().all():
        assert torch.equal(plain[0], wanted)
    return token_ids


@pytest.mark.parametrize(("inputs", "outputs"), [*SIZES, (64, 1000), (8, 1), (8, 5)])
def test_the_argmax_of_a_product_is_that_of_its_outputs(kernels: CppKernels, inputs: int, outputs: int):
    for rows in (1, 2, 7, 40, 700):
        assert_same_argmax(kernels, drawn(kernels, rows, inputs, seed=rows), drawn(kernels, outputs, inputs, seed=1))


def test_ties_go_to_the_first_token_and_nan_to_the_first_nan(kernels: CppKernels):
    x, weight = drawn(kernels, 3, 32), drawn(kernels, 1, 32, seed=1).repeat(300, 1)
    assert assert_same_argmax(kernels, x, weight).tolist() == [0, 0, 0]
    weight[:7] = 0
    weight[7:] *= (kernels.linear(x[:1], kernels.pack(weight[8:9]), None, 1) > 0) * 2 - 1  # positive for the first row
    assert assert_same_argmax(kernels, x[:1], weight).tolist() == [7]
    for value in (torch.nan, torch.inf):
        weight[[250, 130, 131], 0] = value
        x[:, 0] = 1
        assert assert_same_argmax(kernels, x, weight).tolist() == [130] * 3
    x[:, 0] = -1  # the infinities are negative now, and the rest decides
    assert_same_argmax(kernels, x, weight)
    assert_same_argmax(kernels, x, torch.full_like(weight, -torch.inf))


@pytest.mark.parametrize("changes", [{}, {"logit_scale": -2.0}, {"logit_softcap": 0.01}], ids=str)
def test_the_heads_argmax_is_that_of_its_logits(kernels: CppKernels, changes: dict[str, float]):
    config = SimpleNamespace(
        **{"hidden_size": 48, "vocab_size": 301, "logit_scale": 1.0, "logit_softcap": None, **changes}
    )
    for used in (kernels, TorchKernels()):
        head = LMHead(config, kernels.dtype, CPU)
        head.weight.copy_(drawn(kernels, 301, 48))
        head.pack(used, None, "lm_head")
        head.kernels = used
        x = drawn(kernels, 9, 48, seed=1)
        logits = head(x).float()
        found = head.likeliest(x)
        if changes:
            assert found is None  # what is done to the logits needs them all
            continue
        token_ids, largest = found
        assert token_ids.tolist() == logits.numpy().argmax(-1).tolist()
        assert torch.equal(largest, logits.amax(-1))


def test_packed_weights_lie_one_after_another_and_do_not_overlap():
    memory, given = HugePages(), [torch.arange(float(n)).view(1, n) for n in (3, 16, 17, 40_000_000, 5)]
    kept = [memory.copy(tensor) for tensor in given]
    assert all(torch.equal(mine, tensor) for mine, tensor in zip(kept, given, strict=True))
    assert all(tensor.data_ptr() % 64 == 0 for tensor in kept)
    assert kept[1].data_ptr() - kept[0].data_ptr() == 64
    assert kept[3].data_ptr() % PAGE == 0


def test_a_large_result_takes_the_memory_of_one_that_is_gone_and_never_of_one_that_is_not():
    memory = ReusedPages()
    first, second = memory.empty(3, 5, torch.float32), memory.empty(3, 5, torch.bfloat16)
    place, part = first.data_ptr(), first[1:]
    assert (first.shape, first.dtype, second.shape, second.dtype) == ((3, 5), torch.float32, (3, 5), torch.bfloat16)
    del first
    assert memory.empty(3, 5, torch.float32).data_ptr() not in (place, second.data_ptr()), "a view is still there"
    del part
    assert memory.empty(1, 2, torch.float32).data_ptr() == place
    larger = memory.empty(PAGE, 2, torch.float32)
    assert larger.fill_(1.0).sum() == 2 * PAGE
