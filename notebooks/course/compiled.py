"""Cpp: a few lines of C++ from a notebook, compiled as the package compiles its kernels; if_compiled: to go on without."""

import ctypes
import faulthandler
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model.kernels.build import compile_flags, compiler


class if_compiled:
    """`with if_compiled():` runs its block; where that needs a C++ compiler or a CPU that is not there, prints why, in one
    line, and goes on."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, KernelsUnavailableError):
            return False
        print(f"Not on this machine: {error}")
        return True


class Cpp:
    """The `extern "C"` functions of `source`: `Cpp(source).product(x, w, y, 3)` calls its `product`.

    Arrays of numpy are passed as pointers, integers as `long`, floats as `double`; nothing is returned.
    `flags`: more flags for the compiler. KernelsUnavailableError when there is no compiler; ValueError with the compiler's
    first error when it does not compile.
    """

    def __init__(self, source: str, *flags: str):
        command = compiler()
        with tempfile.TemporaryDirectory(prefix="nanoinfer-") as folder:
            file, library = Path(folder) / "source.cpp", Path(folder) / "source.so"
            file.write_text(source, encoding="utf-8")
            words = [*command, *compile_flags(), *flags, "-shared", str(file), "-o", str(library)]
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

    def outcome(self, name: str, *arguments: Any, result: np.ndarray, seconds: float = 10.0) -> np.ndarray | str:
        """Call `name` in a child process, which it may end or never leave, and return what is in `result` after the call.

        A str says what happened instead. Nothing changes in this process.
        """
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:  # it must not return: whatever this process would do at its end, the child must not
            try:
                faulthandler.disable()  # a crash is an answer here
                os.close(readable)
                getattr(self, name)(*arguments)
                with os.fdopen(writable, "wb") as pipe:
                    pipe.write(result.tobytes())
            finally:
                os._exit(0)
        os.close(writable)
        with os.fdopen(readable, "rb") as pipe:
            content = _until(pipe.fileno(), time.monotonic() + seconds)
        if content is None:
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if content is None:
            return f"doesn't end within {seconds:.0f} seconds"
        if os.WIFSIGNALED(status):
            return (
                f"ends the process ({signal.Signals(os.WTERMSIG(status)).name}): it reads or writes outside its arrays"
            )
        if len(content) != result.nbytes:
            return "ends the process"
        return np.frombuffer(content, result.dtype).reshape(result.shape).copy()


def _until(descriptor: int, deadline: float) -> bytes | None:
    """What is written to a pipe until its other end is closed; None if that takes longer."""
    parts: list[bytes] = []
    while (left := deadline - time.monotonic()) > 0:
        if select.select([descriptor], [], [], left)[0]:
            if not (part := os.read(descriptor, 1 << 16)):
                return b"".join(parts)
            parts.append(part)
    return None


def _as_c(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        if not argument.flags.c_contiguous:
            raise ValueError("an array must be contiguous to be passed to C++: use np.ascontiguousarray")
        return ctypes.c_void_p(argument.ctypes.data)
    return ctypes.c_double(argument) if isinstance(argument, float) else ctypes.c_long(argument)
