"""How fast this CPU multiplies at most: loops over registers in C++ (peak.cpp), compiled with the kernels' flags."""

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

from nanoinfer.kernels.build import COMPILE_FLAGS

SOURCE = Path(__file__).parent / "peak.cpp"
RUNS = 5  # of each loop; the fastest counts, because other work on the machine can only slow it down
# Names in results → functions of peak.cpp. A dtype's peak is the highest of the names that begin with it.
FUNCTIONS = {
    "float32": "peak_float32",
    "bfloat16": "peak_bfloat16",
    "bfloat16 AMX": "peak_bfloat16_amx",
    "int8": "peak_int8",
    "int8 AMX": "peak_int8_amx",
}


def multiply_peaks(threads: int, seconds: float = 0.2) -> dict[str, float]:
    """GFLOP/s (10**9 operations, a multiplication and an addition being two) of `threads` threads, by kind of instruction.

    Only those that this CPU has; none if there is no compiler. `seconds`: about how long each kind is measured.
    """
    library = _library()
    if library is None:
        return {}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        speeds = {name: _speed(getattr(library, function), seconds) for name, function in FUNCTIONS.items()}
    finally:
        torch.set_num_threads(before)
    return {name: speed for name, speed in speeds.items() if speed}


def peak_of(peaks: Mapping[str, float], dtype: str) -> float | None:
    """The highest GFLOP/s of a dtype's instructions; None if unknown."""
    return max((speed for name, speed in peaks.items() if name.split()[0] == dtype), default=None)


def _speed(function: "ctypes._NamedFuncPointer", seconds: float) -> float:
    """The fastest of some runs that take `seconds` together."""
    function.argtypes, function.restype = [ctypes.c_long], ctypes.c_double
    rounds, speeds = 1000, [0.0]
    while len(speeds) <= RUNS:
        start = time.perf_counter()
        operations = float(function(rounds))
        taken = time.perf_counter() - start
        if not operations:
            return 0.0
        if taken >= 0.5 * seconds / RUNS:
            speeds.append(operations / taken / 1e9)
        else:  # too short to be timed
            rounds = int(rounds * max(2.0, min(100.0, seconds / RUNS / taken)))
    return max(speeds)


@cache
def _library() -> ctypes.CDLL | None:
    """Compile and load peak.cpp, once per process; None if there is no compiler or it fails. Like the kernels, it is not
    linked with an OpenMP library, so it runs on torch's threads."""
    compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("g++") or shutil.which("c++") or "c++"]
    flags = [*COMPILE_FLAGS, *shlex.split(os.environ.get("NANOINFER_CXXFLAGS", ""))]
    with tempfile.TemporaryDirectory() as folder:
        made, linked = f"{folder}/peak.o", f"{folder}/peak.so"
        try:
            for command in ([*flags, "-c", str(SOURCE), "-o", made], ["-shared", made, "-o", linked]):
                subprocess.run([*compiler, *command], check=True, capture_output=True)
            return ctypes.CDLL(linked)
        except (OSError, subprocess.CalledProcessError):
            return None
