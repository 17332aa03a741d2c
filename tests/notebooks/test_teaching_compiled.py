"""C++ in a notebook: called with arrays, tried in a process of its own, and done without where there is no compiler."""

import numpy as np
import pytest

from nanoinfer.errors import KernelsUnavailableError
from notebooks.course.compiled import Cpp, if_compiled
from tests.helpers.waiting import HANG_S

SOURCE = """
extern "C" void add(const float* a, float* b, long count, double more) {
    for (long i = 0; i < count; i++) b[i] += a[i] + more;
}
extern "C" void crash(float* a) { *(volatile int*)8 = 1; a[0] = 1; }
extern "C" void hang(float* a) { for (volatile int i = 0;; i = i + 1) a[0] = i; }
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


def test_a_call_in_a_child_process_changes_nothing_here(compiled: Cpp) -> None:
    a, b = np.ones(3, np.float32), np.zeros(3, np.float32)
    result = compiled.outcome("add", a, b, 3, 1.0, result=b, seconds=HANG_S)
    assert isinstance(result, np.ndarray)
    assert result.tolist() == [2.0] * 3
    assert not b.any()


def test_a_crash_and_an_endless_loop_are_told(compiled: Cpp) -> None:
    a = np.zeros(1, np.float32)
    assert "ends the process (SIGSEGV)" in str(compiled.outcome("crash", a, result=a, seconds=HANG_S))
    assert str(compiled.outcome("hang", a, result=a, seconds=0.01)).startswith("doesn't end within")


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
