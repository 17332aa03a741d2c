"""How kernels are chosen and built: by name, by what this machine can, and with a compiler that fails or is not there."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.kernels import TorchKernels, build, select_kernels, selection_of
from nanoinfer.kernels.cpp import CppKernels
from nanoinfer.model.attention import TorchNativeBackend, select_attention_backend
from nanoinfer.model.attention.base import ENCODED_KV
from nanoinfer.model.attention.torch_native import attend
from nanoinfer.model.loader import load_model
from tests.helpers.kernels import CPU, DTYPES, need_cpp


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="kernels='cuda': must be one of auto, cpp, onednn, torch"):
        select_kernels("cuda", torch.float32, CPU)
    with pytest.raises(ValueError, match="kernels='cuda': must be"):
        load_model("no/such-model", kernels="cuda")  # said before a model is looked for
    with pytest.raises(ValueError, match="attention_backend='flash': must be one of auto, cpp, torch_native"):
        select_attention_backend("flash", torch.float32, CPU)


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
    layer = SimpleNamespace(softcap=cap, scale=0.3)
    for mask in (None, (distance >= 0) & (distance < (window or 20))):
        wanted = attend(q, keys, values, mask, layer)  # type: ignore[arg-type]
        torch.testing.assert_close(backend.attend(q, keys, values, mask, layer), wanted)  # type: ignore[attr-defined]
