"""Cpp: a few lines of C++ from a notebook, compiled as the package compiles its kernels; machine_roof: the two limits of a
thread; if_compiled: to go on without a compiler."""

import ctypes
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model.kernels.build import compile_flags, compiler
from notebooks.course.real import if_there


class if_compiled(if_there):
    """`with if_compiled():` runs its block; where that needs a C++ compiler or a CPU that is not there, prints why, in one
    line, and goes on."""

    missing = KernelsUnavailableError


class Cpp:
    """The `extern "C"` functions of `source`: `Cpp(source).product(x, w, y, 3)` calls its `product`.

    Arrays of numpy are passed as pointers, integers as `long`, floats as `double`; nothing is returned.
    KernelsUnavailableError when there is no compiler; ValueError with the compiler's first error when it does not compile.
    """

    def __init__(self, source: str):
        command = compiler()
        with tempfile.TemporaryDirectory(prefix="nanoinfer-") as folder:
            file, library = Path(folder) / "source.cpp", Path(folder) / "source.so"
            file.write_text(source, encoding="utf-8")
            words = [*command, *compile_flags(), "-shared", str(file), "-o", str(library)]
            result = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
            if result.returncode:
                lines = result.stderr.replace(f"{file}:", "line ").strip().splitlines() or ["no message"]
                raise ValueError(f"it doesn't compile: {next((line for line in lines if 'error' in line), lines[0])}")
            self._library = ctypes.CDLL(str(library))

    def __getattr__(self, name: str) -> Any:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise AttributeError(f'the C++ source has no extern "C" function {name}') from None
        function.restype = None
        return lambda *arguments: function(*map(_as_c, arguments))


def _as_c(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        if not argument.flags.c_contiguous:
            raise ValueError("an array must be contiguous to be passed to C++: use np.ascontiguousarray")
        return ctypes.c_void_p(argument.ctypes.data)
    return ctypes.c_double(argument) if isinstance(argument, float) else ctypes.c_long(argument)


LIMITS = """
#if defined(__AVX512F__)
constexpr int LANES = 16;  // numbers in a vector
#else
constexpr int LANES = 8;
#endif
typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4)));
extern "C" void registers_only(long rounds, float* numbers, long* flop) {
    constexpr int SUMS = 12;  // each starts with another number, or the compiler would compute one for all
    Floats sums[SUMS], a = Floats{} + numbers[0], b = Floats{} + numbers[1];
    for (int s = 0; s < SUMS; s++) sums[s] = Floats{} + (float)s;
    for (long i = 0; i < rounds; i++)
        for (int s = 0; s < SUMS; s++) sums[s] = sums[s] * a + b;
    for (int s = 0; s < SUMS; s++) numbers[s] = sums[s][0];
    *flop = 2 * rounds * SUMS * LANES;
}
extern "C" void read_only(const float* numbers, long count, float* result) {
    Floats sums[4] = {};
    for (long i = 0; i + 4 * LANES <= count; i += 4 * LANES)
        for (int s = 0; s < 4; s++) sums[s] += *(const Floats*)(numbers + i + s * LANES);
    *result = (sums[0] + sums[1] + sums[2] + sums[3])[0];
}
"""


def machine_roof(count: int) -> tuple[float, float]:
    """The limits of one thread, each from the fastest run of a loop that does nothing else: floating-point operations per
    second, in registers, and bytes per second, reading `count` floats from memory."""
    loops, flop, total = Cpp(LIMITS), np.zeros(1, np.int64), np.zeros(1, np.float32)
    some, many = np.full(12, 0.5, np.float32), np.ones(count, np.float32)
    arithmetic, reading = [], []
    for _ in range(20):
        start = time.perf_counter()
        loops.registers_only(100_000, some, flop)
        middle = time.perf_counter()
        loops.read_only(many, count, total)
        arithmetic.append(middle - start)
        reading.append(time.perf_counter() - middle)
    return float(flop[0]) / min(arithmetic), many.nbytes / min(reading)
