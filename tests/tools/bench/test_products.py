"""`bench products`, and the peak that it compares with."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nanoinfer.bench import peak
from nanoinfer.bench.peak import multiply_peaks, peak_of
from nanoinfer.bench.products import Product, Results, format_products, linear_shapes, measure_products
from nanoinfer.cli.main import main
from nanoinfer.kernels.cpp import CppKernels
from nanoinfer.registry import QUANTIZATIONS


def test_shapes_are_those_of_the_layers_and_the_head(checkpoint: Callable[..., Path]) -> None:
    shapes = {str(shape): shape.count for shape in linear_shapes(checkpoint())}
    config = json.loads((checkpoint() / "config.json").read_text())
    hidden, inner, layers = (config[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    assert shapes[f"gate_up_proj {2 * inner}x{hidden}"] == shapes[f"down_proj {hidden}x{inner}"] == layers
    assert shapes[f"lm_head {config['vocab_size']}x{hidden}"] == 1
    assert len(shapes) == 5


def small_measure(path: Path) -> Results:
    return measure_products(path, "float32", 1, (1, 3), 1, copies_bytes=2**16, bandwidth_bytes=2**20, peak_s=0.001)


def test_every_shape_is_measured_in_every_way_that_can_be_used(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Halves:
        """Weights in half precision, which take half the memory."""

        def __init__(self, weight: torch.Tensor, bias: object, kernels: object, name: str):
            self.parts = (weight.half(),)

        def multiply(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.parts[0].float().T

    def refuse(*arguments: object) -> None:
        raise ValueError("groups of 7 only")

    monkeypatch.setitem(QUANTIZATIONS, "halves", Halves)
    monkeypatch.setitem(QUANTIZATIONS, "sevenths", refuse)
    threads = torch.get_num_threads()
    results = small_measure(checkpoint())
    assert torch.get_num_threads() == threads
    assert "sevenths: groups of 7 only" in format_products(results).replace("not measured: ", "")
    for shape in linear_shapes(checkpoint()):
        for rows in (1, 3):
            found = {p.way: p for p in results.products if (p.shape, p.rows) == (str(shape), rows)}
            assert "halves" in found
            assert "sevenths" not in found
            size = shape.out_features * shape.in_features
            assert found["halves"].weight_bytes == 2 * size
            assert {p.operations for p in found.values()} == {2 * rows * size}
            if "onednn" in found:
                assert found["onednn"].weight_bytes == 4 * size


def test_shares_are_of_the_peak_of_the_kind_and_of_the_bandwidth() -> None:
    dense = Product("qkv_proj 1x1", 4, "cpp", 1e-3, 50_000_000, 10_000_000, 1.0)
    eight = Product("qkv_proj 1x1", 4, "int8", 5e-4, 50_000_000, 5_000_000, 2.0)
    peaks = {"float32": 200.0, "int8": 300.0, "int8 AMX": 1000.0}
    text = format_products(Results("m", "float32", 1, [15.0, 25.0], peaks, [dense, eight], {}))
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[-2:]]
    assert cells[0] == ["qkv_proj 1x1", "4", "cpp", "1000", "50", "25%", "10.0", "50%", "1.00"]
    assert cells[1] == ["qkv_proj 1x1", "4", "int8", "500", "100", "10%", "10.0", "50%", "2.00"]


def test_the_command_prints_the_table_and_writes_json(
    checkpoint: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nanoinfer.bench.products.read_bandwidth", lambda threads, size: 20.0)
    monkeypatch.setattr("nanoinfer.bench.products.multiply_peaks", lambda threads, seconds: {})
    monkeypatch.setattr("nanoinfer.bench.products.TURN_S", 0.0)
    file = tmp_path / "products.json"
    argv = ["bench", "products", "--model", str(checkpoint()), "--threads", "1", "--rounds", "1", "--json", str(file)]
    assert main([*argv, "--rows", "2"]) == 0
    out = capsys.readouterr().out
    assert "lm_head" in out
    assert {product["rows"] for product in json.loads(file.read_text())["products"]} == {2}
    assert main([*argv, "--rows", "0"]) == 2
    assert "rows=0: must be at least 1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(CppKernels.why_not(torch.float32, torch.device("cpu")) is not None, reason="needs the C++ kernels")
def test_every_peak_counts_operations() -> None:
    peaks = multiply_peaks(1, 0.001)
    assert peaks["float32"] > 0.1
    assert set(peaks) <= set(peak.FUNCTIONS)
    flags = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    assert ("bfloat16" in peaks) == ("avx512_bf16" in flags)
    assert ("int8 AMX" in peaks) == ("amx_int8" in flags)


def test_a_dtypes_peak_is_the_highest_of_its_instructions() -> None:
    peaks = {"float32": 10.0, "bfloat16": 15.0, "bfloat16 AMX": 100.0}
    assert (peak_of(peaks, "float32"), peak_of(peaks, "bfloat16"), peak_of(peaks, "int8")) == (10.0, 100.0, None)


def test_without_a_compiler_there_is_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert shutil.which("no-such-compiler") is None
    peak._library.cache_clear()
    try:
        assert multiply_peaks(1, 0.001) == {}
    finally:
        peak._library.cache_clear()
