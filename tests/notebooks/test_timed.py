"""What notebooks compile and time: a few lines of C++, and a pass kernel by kernel."""

import numpy as np
import pytest
import torch

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model.kernels.functions import Function
from nanoinfer.model.lora.adapter import random_adapter
from nanoinfer.model.random_model import random_model
from notebooks.course.compiled import Cpp, if_compiled, machine_roof
from notebooks.course.pass_times import DecodePass, PassTimes

SOURCE = """
extern "C" void add(const float* a, float* b, long count, double more) {
    for (long i = 0; i < count; i++) b[i] += a[i] + more;
}
"""


@pytest.fixture(scope="module")
def compiled() -> Cpp:
    return Cpp(SOURCE)


def test_arrays_are_pointers_and_numbers_are_numbers(compiled: Cpp) -> None:
    a, b = np.array([1.0, 2.0, 3.0], np.float32), np.ones(3, np.float32)
    compiled.add(a, b, 2, 0.5)
    assert b.tolist() == [2.5, 3.5, 1.0]


def test_what_does_not_compile_says_where() -> None:
    with pytest.raises(ValueError, match=r"it doesn't compile: line 2:.*error"):
        Cpp('extern "C" void f() {\n  int a = b;\n}')


def test_no_product_could_be_faster_than_the_roof() -> None:
    peak, bandwidth = machine_roof(100_000)
    assert peak > 1e9
    assert bandwidth > 1e8


def test_without_a_compiler_a_notebook_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(KernelsUnavailableError):
        Cpp(SOURCE)
    with if_compiled():
        Cpp(SOURCE)
        raise AssertionError("not reached")
    assert capsys.readouterr().out.startswith("Not on this machine: no C++ compiler: $CXX names no-such-compiler")


SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
}


@pytest.fixture(scope="module")
def three() -> DecodePass:
    try:
        return DecodePass(random_model(**SMALL), 3, context=8)
    except KernelsUnavailableError as error:
        pytest.skip(str(error))


def test_the_recorded_pass_gives_the_bits_of_the_pass_from_python(three: DecodePass) -> None:
    logits = three.from_python()
    assert logits.shape == (3, 128)
    assert torch.equal(logits, three.replayed())


def test_a_pass_with_adapters_computes_them_and_leaves_rows_without_one_alone(three: DecodePass) -> None:
    model = random_model(**SMALL)
    adapters = [random_adapter(model, rank, seed=rank) for rank in (2, 9)]
    assert adapters[1].num_bytes > 4 * adapters[0].num_bytes
    adapted = DecodePass(model, 3, 8, [adapters[1], None, adapters[0]])
    logits, base = adapted.replayed(), three.replayed()
    assert torch.equal(logits, adapted.from_python())
    assert [torch.equal(a, b) for a, b in zip(logits, base, strict=True)] == [False, True, False]
    assert sum("low_rank" in span.kernel for span in adapted.times_replayed(1).spans) == 4 * 2, "four per layer"


@pytest.mark.parametrize("way", ["times_from_python", "times_replayed"])
def test_every_kernel_is_timed_in_order_inside_the_pass(three: DecodePass, way: str) -> None:
    times: PassTimes = getattr(three, way)(repeats=2)
    assert [span.kernel for span in times.spans] == [called.name for called, _ in three.program.calls]
    assert [span.label for span in times.spans] == three.program.labels
    ends = [0.0, *(span.end for span in times.spans)]
    assert all(
        end - 1e-9 <= span.start <= span.end <= times.seconds + 1e-9
        for end, span in zip(ends, times.spans, strict=False)
    )


def test_nothing_is_timed_afterwards(three: DecodePass) -> None:
    before = Function.__call__
    three.times_from_python(repeats=1)
    three.times_replayed(repeats=1)
    assert Function.__call__ is before
    with pytest.raises(AssertionError, match="not measured"):
        three.program.seconds()


def test_a_model_whose_passes_cannot_be_recorded_says_why() -> None:
    with pytest.raises(KernelsUnavailableError, match="its kernels are torch"):
        DecodePass(random_model(kernels="torch", **SMALL))
