"""Compiles the C++ kernels on first use, and keeps the library for the next time."""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from nanoinfer.errors import KernelsUnavailableError

SOURCES = Path(__file__).parent
COMPILE_FLAGS = ["-std=c++17", "-O3", "-march=native", "-fPIC", "-w"]


def library() -> ctypes.CDLL:
    """Load the library; compile it first if there is none yet for this source, compiler and CPU (a few seconds, once).

    It is kept in `$NANOINFER_CACHE`, or else in `nanoinfer` in the user's cache directory. `$CXX` may have arguments
    ("ccache g++"), and `$NANOINFER_CXXFLAGS` adds compiler flags. If there is no compiler any more, a library that any
    compiler made earlier is used. A damaged library is never loaded, but compiled again.
    KernelsUnavailableError with the reason when there is neither a library nor a compiler, or when the compiler fails.
    """
    loaded = library_or_reason()
    if isinstance(loaded, str):
        raise KernelsUnavailableError(loaded)
    return loaded


@cache
def library_or_reason() -> ctypes.CDLL | str:
    """What `library` returns, or why it raises. It finds out only once per process, however often it is called.

    Otherwise a caller that asks in every pass would start a failing compiler in every pass.
    """
    try:
        return ctypes.CDLL(str(_found_or_compiled()))
    except (KernelsUnavailableError, OSError) as error:
        return str(error)


def _found_or_compiled() -> Path:
    """An undamaged library for this source, these flags and this CPU, made by this compiler if there is one.

    Its name has a checksum of each of these and of its content: `kernels-<source, flags, CPU>-<compiler>-<content>.so`.
    """
    flags, folder = compile_flags(), _cache_directory()
    source = [file.read_bytes() for file in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")])]
    name = f"kernels-{_digest(' '.join([*flags, cpu_features(), torch.__version__]).encode(), *source)}"
    try:
        command = compiler()
    except KernelsUnavailableError as error:
        if intact := _whole(folder, name):
            return intact
        missing = f"{error}, and {folder} has no intact library from an earlier build"
        raise KernelsUnavailableError(f"{missing}; install g++ or set CXX") from None
    name = f"{name}-{_digest(' '.join(command).encode())}"
    return _whole(folder, name) or _compile(command, flags, folder, name)


def compiler() -> list[str]:
    """The command that compiles C++, in words: `$CXX`, or else g++ or c++. KernelsUnavailableError when there is none."""
    command = _words("CXX") or [path for path in map(shutil.which, ("g++", "c++")) if path][:1]
    if command and shutil.which(command[0]):
        return command
    missing = f"$CXX names {command[0]}, which is not found" if command else "neither $CXX nor g++ nor c++ is found"
    raise KernelsUnavailableError(f"no C++ compiler: {missing}")


def compile_flags() -> list[str]:
    """The compiler's flags, those of `$NANOINFER_CXXFLAGS` included."""
    return [*COMPILE_FLAGS, *_words("NANOINFER_CXXFLAGS")]


def _whole(folder: Path, name: str) -> Path | None:
    """A library in `folder` whose name begins with `name`, and whose content has the checksum in its name. Loading a
    truncated library would not raise but kill the process, because it reads pages that are not there.
    """
    return next((file for file in sorted(folder.glob(f"{name}-*.so")) if _is_whole(file)), None)


def _is_whole(file: Path) -> bool:
    try:
        return file.stem.endswith(f"-{_digest(file.read_bytes())}")
    except OSError:
        return False


def _digest(*contents: bytes) -> str:
    return hashlib.sha256(b"".join(contents)).hexdigest()[:16]


def _words(variable: str) -> list[str]:
    """An environment variable, split into words as a shell would split it."""
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise KernelsUnavailableError(f"${variable}: {error}") from error


def _compile(compiler: list[str], flags: list[str], folder: Path, name: str) -> Path:
    """Compile and link inside `folder`, then rename the file. So no process ever loads half a library, even if two
    processes compile the same source at the same time.

    No OpenMP library is linked: the symbols come from torch's, so torch's threads are used. A second pool of threads would
    compete with them for the cores.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        workplace = tempfile.TemporaryDirectory(dir=folder)
    except OSError as error:
        raise KernelsUnavailableError(
            f"the folder for compiled kernels, {folder}, cannot be created or written to ({error.strerror}); set "
            "NANOINFER_CACHE to another folder"
        ) from error
    print("nanoinfer: compiling its kernels for this processor, which happens once", file=sys.stderr, flush=True)
    with workplace as temporary:
        object_file, library_file = f"{temporary}/kernels.o", f"{temporary}/kernels.so"
        _run([*compiler, *flags, "-c", str(SOURCES / "kernels.cpp"), "-o", object_file])
        _run([*compiler, "-shared", object_file, "-o", library_file])
        built = folder / f"{name}-{_digest(Path(library_file).read_bytes())}.so"
        os.replace(library_file, built)
    for damaged in folder.glob(f"{name}-*.so"):
        if not _is_whole(damaged):
            with suppress(OSError):  # it does no harm if it stays
                damaged.unlink()
    return built


def _run(command: list[str]) -> None:
    run = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )
    if run.returncode:
        lines = run.stdout.strip().splitlines() or ["no message"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise KernelsUnavailableError(f"{command[0]} failed: {first}")


def _cache_directory() -> Path:
    if folder := os.environ.get("NANOINFER_CACHE"):
        return Path(folder).absolute()  # the loader searches elsewhere for a name without a folder
    if cache_home := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache_home) / "nanoinfer"
    try:
        return Path.home() / ".cache" / "nanoinfer"
    except RuntimeError as error:  # the user id has no name, as in some containers
        raise KernelsUnavailableError(f"no folder for compiled kernels; set NANOINFER_CACHE to one: {error}") from error


def cpu_features() -> str:
    """The CPU's features, on which `-march=native` depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
