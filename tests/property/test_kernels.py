"""Kernels and attention in C++ and oneDNN: equal to plain torch, and the same bits however work is cut into passes."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.kernels import Kernels, TorchKernels, build, select_kernels, selection_of
from nanoinfer.kernels.cpp import CppKernels
from nanoinfer.kernels.onednn import OneDNNKernels
from nanoinfer.model.attention import TorchNativeBackend, select_attention_backend
from nanoinfer.model.attention.base import ENCODED_KV
from nanoinfer.model.attention.cpp import CppAttention
from nanoinfer.model.input_metadata import ForwardMode, InputMetadata
from nanoinfer.model.layers.radix_attention import RadixAttention
from nanoinfer.model.loader import load_model
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.paged.generator import GeneratorTorch
from tests.helpers.checkpoints import FAMILIES

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}  # relative to the largest value: one rounding, or few


def fast_kernels(name: str, dtype: torch.dtype) -> Kernels:
    reason = {"cpp": CppKernels, "onednn": OneDNNKernels}[name].why_not(dtype, CPU)
    if reason is not None:
        pytest.skip(reason)
    return select_kernels(name, dtype, CPU)


@pytest.fixture(params=[(name, dtype) for name in ("cpp", "onednn") for dtype in DTYPES], ids=str)
def both(request: pytest.FixtureRequest) -> tuple[Kernels, torch.dtype]:
    return fast_kernels(*request.param), request.param[1]


@pytest.fixture(params=DTYPES, ids=str)
def cpp(request: pytest.FixtureRequest) -> tuple[CppKernels, torch.dtype]:
    return fast_kernels("cpp", request.param), request.param


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    error = (got.float() - wanted.float()).abs().max() / wanted.float().abs().max()
    assert error <= TOLERANCE[got.dtype]


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


def test_a_row_of_a_product_is_the_same_bits_whatever_rows_are_beside_it(cpp: tuple[CppKernels, torch.dtype]):
    kernels, dtype = cpp
    x, packed = random(40, 224, dtype=dtype), kernels.pack(random(96, 224, dtype=dtype, seed=1))
    whole = kernels.linear(x, packed, None, 96)
    for size in (1, 2, 3, 4, 5, 6, 7, 11):
        parts = [kernels.linear(part, packed, None, 96) for part in x.split(size)]
        assert torch.equal(torch.cat(parts), whole)


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


# --- attention ---------------------------------------------------------------------------------------------------


class Pools:
    """Stands in for a model runner: pools with random K/V in them."""

    def __init__(self, dtype: torch.dtype, kv_heads: int, dim: int, size: int = 640):
        self.req_to_token_pool, self.token_to_kv_pool = (
            ReqToTokenPool(8, 300),
            TokenToKVPool(size, dtype, kv_heads, dim, 1),
        )
        for seed, buffer in enumerate(
            (self.token_to_kv_pool.get_key_buffer(0), self.token_to_kv_pool.get_value_buffer(0))
        ):
            buffer.copy_(random(size, kv_heads, dim, dtype=dtype, seed=seed))

    def attend(
        self, backend: object, q: torch.Tensor, layer: RadixAttention, prefix_lens: list[int], seq_lens: list[int]
    ) -> torch.Tensor:
        """The new tokens of requests whose slots are those of `rows`."""
        new = np.concatenate([self.rows[i, a:b] for i, (a, b) in enumerate(zip(prefix_lens, seq_lens, strict=True))])
        metadata = InputMetadata.create(
            self, 1, ForwardMode.EXTEND, list(range(len(seq_lens))), seq_lens, prefix_lens, new
        )
        backend.init_forward(metadata)
        return backend.forward_extend(q, layer, metadata)

    @property
    def rows(self) -> np.ndarray:
        return self.req_to_token_pool.req_to_token.numpy()


def cpp_attention(dtype: torch.dtype) -> CppAttention:
    fast_kernels("cpp", dtype)
    return CppAttention(dtype)


@pytest.mark.parametrize("window", [None, 1, 37, 64, 100])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(4, 2, 16), (14, 2, 64), (3, 3, 48), (8, 1, 128), (4, 4, 4), (2, 1, 6), (66, 1, 8)]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_is_the_reference(dtype: torch.dtype, heads: int, kv_heads: int, dim: int, window: int | None):
    pools = Pools(dtype, kv_heads, dim)
    shuffled = np.random.default_rng(0).permutation(640).astype(np.int32)
    lens, prefixes = [1, 64, 65, 130, 200], [0, 0, 64, 129, 93]
    for row, (start, end) in enumerate(pairwise(np.concatenate(([0], np.cumsum(lens))))):
        pools.rows[row, : lens[row]] = shuffled[start:end]
    layer = RadixAttention(0, heads, kv_heads, dim, window)
    q = random(sum(lens) - sum(prefixes), heads + 2, dim, dtype=dtype, seed=3)[:, :heads]  # a part of wider rows
    got = pools.attend(cpp_attention(dtype), q, layer, prefixes, lens)
    exact = Pools(torch.float32, kv_heads, dim)
    exact.rows[:] = pools.rows
    for mine, given in zip(("get_key_buffer", "get_value_buffer"), ("get_key_buffer", "get_value_buffer"), strict=True):
        getattr(exact.token_to_kv_pool, mine)(0).copy_(getattr(pools.token_to_kv_pool, given)(0))
    wanted = exact.attend(TorchNativeBackend(), q.float(), layer, prefixes, lens)
    assert_close(got, wanted.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_a_token_gets_is_the_same_bits_however_its_request_is_cut(dtype: torch.dtype):
    backend, pools, layer = cpp_attention(dtype), Pools(dtype, 2, 32), RadixAttention(0, 6, 2, 32)
    pools.rows[0, :200] = np.random.default_rng(1).permutation(640)[:200]
    q = random(200, 6, 32, dtype=dtype)
    whole = pools.attend(backend, q, layer, [0], [200])
    for size in (1, 7, 63, 64, 130):
        starts = range(0, 200, size)
        parts = [pools.attend(backend, q[i : i + size], layer, [i], [min(i + size, 200)]) for i in starts]
        assert torch.equal(torch.cat(parts), whole)
    moved = Pools(dtype, 2, 32)
    moved.rows[0, :200] = np.arange(200)
    for name in ("get_key_buffer", "get_value_buffer"):
        getattr(moved.token_to_kv_pool, name)(0)[:200] = getattr(pools.token_to_kv_pool, name)(0)[pools.rows[0, :200]]
    assert torch.equal(moved.attend(backend, q, layer, [0], [200]), whole)


def test_leftovers_in_slots_of_no_request_do_not_reach_a_result():
    pools, layer = Pools(torch.float32, 1, 16), RadixAttention(0, 2, 1, 16)
    pools.rows[0, :70] = np.arange(70)
    q = random(70, 2, 16, dtype=torch.float32)
    clean = pools.attend(cpp_attention(torch.float32), q, layer, [0], [70])
    for buffer in (pools.token_to_kv_pool.get_key_buffer(0), pools.token_to_kv_pool.get_value_buffer(0)):
        buffer[70:] = torch.nan
    assert torch.equal(pools.attend(cpp_attention(torch.float32), q, layer, [0], [70]), clean)


def test_threads_of_python_compute_side_by_side(cpp: tuple[CppKernels, torch.dtype]):
    kernels, dtype = cpp
    backend, pools, layer = CppAttention(dtype), Pools(dtype, 2, 32), RadixAttention(0, 6, 2, 32)
    pools.rows[0, :200] = np.arange(200)
    q, packed = random(200, 6, 32, dtype=dtype), kernels.pack(random(96, 192, dtype=dtype, seed=1))

    def compute(_: int) -> torch.Tensor:
        return kernels.linear(pools.attend(backend, q, layer, [0], [200]).view(200, -1), packed, None, 96)

    alone = compute(0)
    with ThreadPoolExecutor(4) as threads:
        assert all(torch.equal(out, alone) for out in threads.map(compute, range(24)))


def test_kv_of_another_dtype_is_refused(cpp: tuple[CppKernels, torch.dtype]):
    dtype = cpp[1]
    pools = Pools(torch.bfloat16 if dtype is torch.float32 else torch.float32, 2, 16)
    pools.rows[0, :3] = 0, 1, 2
    with pytest.raises(ValueError, match=f"token_to_kv_pool: .*must be the model's {dtype}"):
        pools.attend(CppAttention(dtype), random(3, 2, 16, dtype=dtype), RadixAttention(0, 2, 2, 16), [0], [3])


# --- in the engine -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logprobs_are_the_same_bits_alone_and_in_company_cold_and_cached(checkpoint, dtype: str):
    fast_kernels("cpp", getattr(torch, dtype))
    llm = LLM(checkpoint("llama"), dtype=dtype, max_total_tokens=2048, kernels="cpp", attention_backend="cpp")
    prompts = [[*range(3, 3 + n), n] for n in (5, 40, 90, 90, 131)]
    params = SamplingParams(temperature=0.0, max_new_tokens=12, ignore_eos=True, logprobs=2)
    alone = []
    for prompt in prompts:
        alone.append(llm.generate(prompt, params)[0].logprobs)
        llm.engine.flush_cache()
    together = [out.logprobs for out in llm.generate(prompts, params, use_tqdm=False)]
    cached = [out.logprobs for out in llm.generate(prompts, params, use_tqdm=False)]
    assert together == alone
    assert cached == alone


@pytest.mark.parametrize("family", FAMILIES)
def test_every_setting_gives_the_tokens_of_plain_torch(checkpoint, family: str):
    changes = {"sliding_window": 24} if family in ("mistral", "phi3") else {}
    path = checkpoint(family, **changes)
    prompts = [list(range(3, 3 + n)) for n in (1, 30, 77)]
    params = SamplingParams(temperature=0.0, max_new_tokens=20, ignore_eos=True)

    def tokens(**settings: str) -> list[list[int]]:
        llm = LLM(path, max_total_tokens=1024, **settings)
        return [out.token_ids for out in llm.generate(prompts, params, use_tqdm=False)]

    wanted = tokens(kernels="torch", attention_backend="torch_native")
    for kernels in ("cpp", "onednn"):
        fast_kernels(kernels, torch.float32)
        assert tokens(kernels=kernels, attention_backend="torch_native") == wanted
    assert tokens(kernels="torch", attention_backend="cpp") == wanted
    assert tokens() == wanted


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_forward_tensor_gives_the_engines_logits_to_the_last_bit(checkpoint, dtype: str):
    fast_kernels("cpp", getattr(torch, dtype))
    llm = LLM(checkpoint("llama"), dtype=dtype, max_total_tokens=128, page_size=4)
    runner, generator = llm.engine.model_runner, GeneratorTorch(llm.model)
    ids, table = torch.arange(3, 73), torch.randperm(20, generator=torch.Generator().manual_seed(0))
    slots = (table[:, None] * 4 + torch.arange(4)).flatten()[: len(ids)]
    kv_cache = generator.new_kv_cache(20, 4)
    paged = generator.forward_tensor(
        ids, torch.arange(70), True, kv_cache, table[None], slots, torch.tensor([70]), 70, torch.tensor([69])
    )
    engines, _ = runner.forward_extend(ids, [0], [70], [0], slots)
    assert torch.equal(paged, engines)
    step = torch.tensor([7, 0]), torch.tensor([70, 0])  # and a row of padding
    tables = torch.stack((table, torch.full_like(table, -1)))
    place = torch.tensor([int(table[17] * 4 + 2), -1])
    paged = generator.forward_tensor(*step, False, kv_cache, tables, place, torch.tensor([71, 0]), 71)
    llm.engine.cache.rows[0, :70] = slots
    assert torch.equal(paged[:1], runner.forward_decode(step[0][:1], [0], [71], None, place[:1]))


@pytest.fixture
def runner(checkpoint) -> ModelRunner:
    """A model with rotary tables for 16 positions, and pools that have room for more."""
    loaded = load_model(checkpoint("llama"), max_context_len=16)
    backend = select_attention_backend("auto", loaded.dtype, loaded.device)
    return ModelRunner(loaded.model, ReqToTokenPool(1, 64), loaded.new_kv_pool(64), backend)


def test_a_sequence_longer_than_the_rotary_tables_is_refused(runner: ModelRunner):
    with pytest.raises(ValueError, match="the longest is 17, must not exceed max_len=16"):
        runner.forward_extend(torch.arange(3, 20), [0], [17], [0], range(17))
    assert not runner.token_to_kv_pool.get_key_buffer(0).any()


def test_callers_may_change_the_logits_they_get(runner: ModelRunner):
    first, means = runner.forward_extend(torch.arange(3, 18), [0], [15], [0], range(15), True)
    runner.req_to_token_pool.req_to_token[0, :15] = torch.arange(15)
    second = runner.forward_decode(torch.tensor([18]), [0], [16], None, [15])
    for tensor in (first, second, means):
        tensor[0] = -torch.inf  # not of an inference tensor, which refuses
        assert tensor.isinf().all()


# --- choosing and building ------------------------------------------------------------------------------------------


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="kernels='cuda': must be one of auto, cpp, onednn, torch"):
        select_kernels("cuda", torch.float32, CPU)
    with pytest.raises(ValueError, match="kernels='cuda': must be"):
        load_model("no/such-model", kernels="cuda")  # said before a model is looked for
    with pytest.raises(ValueError, match="attention_backend='flash': must be one of auto, cpp, torch_native"):
        select_attention_backend("flash", torch.float32, CPU)


def test_what_cannot_run_is_refused_when_asked_for_and_passed_over_by_auto():
    kernels = select_kernels("auto", torch.float16, CPU)
    assert isinstance(kernels, TorchKernels)
    assert str(selection_of(kernels)).endswith("not onednn: oneDNN supports float32 and bfloat16 only)")
    assert isinstance(select_attention_backend("auto", torch.float16, CPU), TorchNativeBackend)
    assert type(select_kernels("auto", torch.float32, torch.device("meta"))) is TorchKernels
    for name in ("cpp", "onednn"):
        with pytest.raises(KernelsUnavailableError, match=f"kernels='{name}'.*float16"):
            select_kernels(name, torch.float16, CPU)
        with pytest.raises(KernelsUnavailableError, match=f"kernels='{name}': device meta"):
            select_kernels(name, torch.float32, torch.device("meta"))
    with pytest.raises(KernelsUnavailableError, match=r"attention_backend='cpp'.*float16"):
        select_attention_backend("cpp", torch.float16, CPU)


def test_what_was_selected_says_why_it_is_not_the_fastest():
    kernels = selection_of(select_kernels("auto", torch.float16, CPU))
    assert kernels.name == "torch"
    assert re.fullmatch(r"not cpp: .*float16.*; not onednn: .*float16.*", kernels.reason)
    attention = selection_of(select_attention_backend("auto", torch.float16, CPU))
    assert attention.name == "torch_native"
    assert attention.reason == "not cpp: the C++ kernels do not support float16 on this CPU"
    for chosen in (
        select_kernels("torch", torch.float32, CPU),
        select_attention_backend("torch_native", torch.float32, CPU),
    ):
        assert str(selection_of(chosen)) in ("torch (as asked for)", "torch_native (as asked for)")


def test_the_fastest_gives_no_reason(cpp: tuple[CppKernels, torch.dtype]):
    assert str(selection_of(select_kernels("auto", cpp[1], CPU))) == "cpp"
    assert str(selection_of(select_attention_backend("auto", cpp[1], CPU))) == "cpp"
    wanting = selection_of(select_attention_backend("auto", cpp[1], CPU, {ENCODED_KV}))
    assert (wanting.name, wanting.reason) == ("torch_native", f"not cpp: it has no {ENCODED_KV}")


@pytest.fixture
def fresh_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Builds go to an empty directory, and are forgotten afterwards."""
    monkeypatch.setenv("NANOINFER_CACHE", str(tmp_path / "cache"))
    build.library_or_reason.cache_clear()
    yield tmp_path
    build.library_or_reason.cache_clear()


def test_without_a_compiler_the_engine_still_runs(fresh_build: Path, monkeypatch: pytest.MonkeyPatch, checkpoint):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(fresh_build))
    with pytest.raises(KernelsUnavailableError, match="no C\\+\\+ compiler"):
        select_kernels("cpp", torch.float32, CPU)
    llm = LLM(checkpoint("llama"), max_total_tokens=256)
    assert not isinstance(llm.model.model.lm_head.weights.kernels, CppKernels)
    assert len(llm.generate([3, 4, 5], SamplingParams(max_new_tokens=4, ignore_eos=True))[0].token_ids) == 4


def test_a_compiler_that_fails_says_why_and_leaves_nothing_behind(
    fresh_build: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho 'error: out of ideas' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(KernelsUnavailableError, match="out of ideas"):
        build.library()
    assert list((fresh_build / "cache").iterdir()) == []


@pytest.fixture
def failing_compiler(fresh_build: Path) -> Path:
    """It writes its first argument into a file beside it, and fails."""
    compiler = fresh_build / "some tools" / "compiler"
    compiler.parent.mkdir()
    compiler.write_text(f"#!/bin/sh\necho \"$1\" >> '{fresh_build}/calls'\necho 'error: not today' >&2\nexit 1\n")
    compiler.chmod(0o755)
    return compiler


def test_the_compiler_may_be_a_wrapper_with_arguments(failing_compiler: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", f"'{failing_compiler}' g++")
    assert "not today" in str(CppKernels.why_not(torch.float32, CPU))
    assert (failing_compiler.parent.parent / "calls").read_text() == "g++\n"


def test_a_compiler_that_fails_is_not_tried_again(failing_compiler: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", f"'{failing_compiler}'")
    for _ in range(3):
        assert "not today" in str(CppKernels.why_not(torch.float32, CPU))
    assert len((failing_compiler.parent.parent / "calls").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [("CXX", "'g++", "CXX"), ("CXX", "/no/such/g++", "/no/such/g"), ("NANOINFER_CACHE", "/" + 300 * "x", "too long")],
)
def test_settings_that_cannot_work_are_refused_and_passed_over_by_auto(
    variable: str, value: str, message: str, fresh_build: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(variable, value)
    with pytest.raises(KernelsUnavailableError, match=message):
        select_kernels("cpp", torch.float32, CPU)
    assert not isinstance(select_kernels("auto", torch.float32, CPU), CppKernels)


def test_a_user_without_a_home_learns_what_to_set(fresh_build: Path, monkeypatch: pytest.MonkeyPatch):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    for name in ("NANOINFER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert "set NANOINFER_CACHE" in str(CppKernels.why_not(torch.float32, CPU))


def test_the_library_is_built_once_and_kept(fresh_build: Path, monkeypatch: pytest.MonkeyPatch):
    fast_kernels("cpp", torch.float32)
    (built,) = (fresh_build / "cache").iterdir()
    before = built.stat().st_mtime_ns
    build.library_or_reason.cache_clear()
    fast_kernels("cpp", torch.float32)
    assert [file.stat().st_mtime_ns for file in (fresh_build / "cache").iterdir()] == [before]


def test_the_kernels_for_cpus_without_avx512_pass_the_same_tests(tmp_path: Path):
    """The same source, compiled for AVX2: this file's float32 tests of linear and attention, in another process."""
    fast_kernels("cpp", torch.float32)
    environment = {**os.environ, "NANOINFER_CACHE": str(tmp_path), "NANOINFER_CXXFLAGS": "-march=haswell"}
    tests = "(linear or bits or reference or norms or rotation or activations) and not bfloat16 and not onednn"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", tests]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-3000:]  # also 5, when no test has such a name
