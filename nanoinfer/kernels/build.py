"""Compile the C++ kernels on first use and keep the library for the next time."""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from nanoinfer.errors import KernelsUnavailableError

SOURCES = Path(__file__).parent
COMPILE_FLAGS = ["-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-w"]


def library() -> ctypes.CDLL:
    """The loaded library; compiles it first if there is none yet for this source, compiler and CPU (a few seconds, once).

    It is kept in `$NANOINFER_CACHE`, or else in `nanoinfer` in the user's cache directory. `$CXX` may have arguments
    ("ccache g++"), and `$NANOINFER_CXXFLAGS` adds compiler flags.
    KernelsUnavailableError with the reason when there is no compiler or it fails.
    """
    loaded = library_or_reason()
    if isinstance(loaded, str):
        raise KernelsUnavailableError(loaded)
    return loaded


@cache
def library_or_reason() -> ctypes.CDLL | str:
    """What `library` returns, or why it raises; found out once per process, however often it is called.

    A caller that asks in every pass would otherwise start, in every pass, a compiler that fails.
    """
    try:
        compiler, flags = _compiler(), [*COMPILE_FLAGS, *_words("NANOINFER_CXXFLAGS")]
        key = hashlib.sha256(" ".join([*compiler, *flags, _cpu(), torch.__version__]).encode())
        for file in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
            key.update(file.read_bytes())
        built = _cache_directory() / f"kernels-{key.hexdigest()[:16]}.so"
        if not built.is_file():
            _compile(compiler, flags, built)
        return ctypes.CDLL(str(built))
    except (KernelsUnavailableError, OSError) as error:
        return str(error)


def _compiler() -> list[str]:
    found = shutil.which("g++") or shutil.which("c++")
    compiler = _words("CXX") or ([found] if found else [])
    if not compiler:
        raise KernelsUnavailableError("no C++ compiler: neither $CXX nor g++ nor c++ found")
    return compiler


def _words(variable: str) -> list[str]:
    """An environment variable split into words as a shell would."""
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise KernelsUnavailableError(f"${variable}: {error}") from error


def _compile(compiler: list[str], flags: list[str], built: Path) -> None:
    """Compile and link beside `built`, then move the file there, so that no process ever loads half a library.

    No OpenMP library is linked: the symbols are found in torch's, whose threads are then used. A second pool of threads
    would compete with the first for the cores.
    """
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        object_file, library_file = f"{folder}/kernels.o", f"{folder}/kernels.so"
        _run([*compiler, *flags, "-c", str(SOURCES / "kernels.cpp"), "-o", object_file])
        _run([*compiler, "-shared", object_file, "-o", library_file])
        os.replace(library_file, built)


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if result.returncode:
        lines = result.stderr.strip().splitlines() or ["no message"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise KernelsUnavailableError(f"{command[0]} failed: {first}")


def _cache_directory() -> Path:
    if folder := os.environ.get("NANOINFER_CACHE"):
        return Path(folder).absolute()  # the loader looks up a name without a folder elsewhere
    if cache_home := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache_home) / "nanoinfer"
    try:
        return Path.home() / ".cache" / "nanoinfer"
    except RuntimeError as error:  # a user id without a name, as in some containers
        raise KernelsUnavailableError(f"no folder to keep the library in, set $NANOINFER_CACHE: {error}") from error


def _cpu() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("flags")), platform.processor())
