"""Which kernels a model runs on, and what whole engines make of them."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.ascend.generator import GeneratorTorch
from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model.attention import TorchNativeBackend, select_attention_backend
from nanoinfer.model.attention.base import ENCODED_KV
from nanoinfer.model.attention.torch_native import attend
from nanoinfer.model.kernels import TorchKernels, build, select_kernels, selection_of
from nanoinfer.model.kernels.cpp import CppKernels
from nanoinfer.model.loader import load_model
from nanoinfer.model.model_runner import ModelRunner
from tests.helpers.checkpoints import FAMILIES
from tests.helpers.kernels import CPU, DTYPES, need_cpp, need_kernels


def test_what_cannot_run_is_refused_when_asked_for_and_passed_over_by_auto():
    need_cpp("float32")
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_fastest_gives_no_reason(dtype: torch.dtype):
    need_cpp(dtype)
    assert str(selection_of(select_kernels("auto", dtype, CPU))) == "cpp"
    assert str(selection_of(select_attention_backend("auto", dtype, CPU))) == "cpp"
    wanting = selection_of(select_attention_backend("auto", dtype, CPU, {ENCODED_KV}))
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
    """It is called with its arguments (a wrapper and the compiler, for instance), and once."""
    compiler = tmp_path / "some tools" / "broken"
    compiler.parent.mkdir()
    compiler.write_text(f"#!/bin/sh\necho \"$1\" >> '{tmp_path}/calls'\necho 'error: out of ideas' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", f"'{compiler}' g++")
    for _ in range(2):
        with pytest.raises(KernelsUnavailableError, match="out of ideas"):
            build.library()
    assert (tmp_path / "calls").read_text() == "g++\n"
    assert list((fresh_build / "cache").iterdir()) == []


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


@pytest.mark.slow
def test_the_library_is_built_once_and_kept(fresh_build: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NANOINFER_CXXFLAGS", "-O0")  # takes a sixth of the time
    need_cpp("float32")
    (built,) = (fresh_build / "cache").iterdir()
    before = built.stat().st_mtime_ns
    build.library_or_reason.cache_clear()
    need_cpp("float32")
    assert [file.stat().st_mtime_ns for file in (fresh_build / "cache").iterdir()] == [before]


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("kv_heads", [6, 2])
@pytest.mark.parametrize("cap", [None, 5.0])
def test_on_a_gpu_torch_computes_the_same_attention(kv_heads: int, window: int | None, cap: float | None) -> None:
    """Only its choice among torch's implementations differs."""
    backend = select_attention_backend("auto", torch.float32, torch.device("cuda"))
    assert type(backend).__name__ == "TorchCudaBackend"
    q, keys, values = (torch.randn(1, heads, 20, 16) for heads in (6, kv_heads, kv_heads))
    distance = torch.arange(20)[:, None] - torch.arange(20)
    layer = SimpleNamespace(softcap=cap, sinks=None, scale=0.3)
    for mask in (None, (distance >= 0) & (distance < (window or 20))):
        wanted = attend(q, keys, values, mask, layer)  # type: ignore[arg-type]
        torch.testing.assert_close(backend.attend(q, keys, values, mask, layer), wanted)  # type: ignore[attr-defined]


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
        need_kernels(kernels, torch.float32)
        assert tokens(kernels=kernels, attention_backend="torch_native") == wanted
    assert tokens(kernels="torch", attention_backend="cpp") == wanted
    assert tokens() == wanted


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_forward_tensor_gives_the_engines_logits_to_the_last_bit(checkpoint, dtype: str):
    need_cpp(dtype)
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


def test_a_sequence_longer_than_the_rotary_tables_is_refused(checkpoint):
    loaded = load_model(checkpoint("llama"), max_context_len=16)
    backend = select_attention_backend("auto", loaded.dtype, loaded.device)
    runner = ModelRunner(loaded.model, ReqToTokenPool(1, 64), loaded.new_kv_pool(64), backend)
    with pytest.raises(ValueError, match="the longest is 17, must not exceed max_len=16"):
        runner.forward_extend(torch.arange(3, 20), [0], [17], [0], range(17))
    assert not runner.token_to_kv_pool.get_key_buffer(0).any()
