"""nbval and its kernel, forked from a process that has loaded torch and the like: one such process per test process, in
which nothing else runs (multiprocessing's fork server).

Both are programs as `python -m` starts them, with arguments, environment and working directory of their own, and nothing
of another notebook's. What an import prints would not be seen there: `forked_imports` sees to it that there is nothing.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.forkserver import ensure_running
from typing import Any

import pytest

from notebooks.build import kernel_environment
from notebooks.tools.files import ROOT
from tests.helpers.waiting import until

# What imported modules must find in their environment. One thread: a process that has more is not to be forked.
SERVER = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "module://matplotlib_inline.backend_inline"}


def run(arguments: Sequence[str], env: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """`python -m pytest ARGUMENTS` at the root, for one notebook. All that it prints is in `stdout`."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tests.helpers.forked_imports"])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**kernel_environment(ROOT), **SERVER}.items():
            patch.setenv(name, value)
        ensure_running()
    with tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace") as output:
        process = server.Process(target=_nbval, args=(list(arguments), dict(env), output.name))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(["pytest", *arguments], timeout, output.read())
        return subprocess.CompletedProcess(["pytest", *arguments], process.exitcode, output.read(), "")


def _nbval(arguments: list[str], env: dict[str, str], output: str) -> None:
    """In the server's child. The kernel is forked first: it gets nothing of pytest's."""
    from jupyter_client.provisioning import local_provisioner

    local_provisioner.launch_kernel = _Kernel().launch
    _become("pytest", arguments, env, str(ROOT), output)


class _Kernel:
    """A process that waits for its command, and as much of a subprocess.Popen as jupyter_client uses."""

    stdin = stdout = stderr = None

    def __init__(self) -> None:
        self._pipe, pipe = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(target=self._wait_and_run, args=(pipe,))
        self._process.start()
        atexit.register(self._process.kill)  # or nbval's process would wait for a kernel that it has not stopped
        self.pid = self._process.pid or 0
        self.kill, self.terminate = self._process.kill, self._process.terminate

    def _wait_and_run(self, pipe: Any) -> None:
        self._pipe.close()
        os.setsid()
        _become(*pipe.recv(), os.devnull)

    def launch(self, command: list[str], *, env: dict[str, str], cwd: str, **_: Any) -> "_Kernel":
        until(lambda: os.getpgid(self.pid) == self.pid, "the kernel's own group of processes")  # it is signalled
        module = command.index("-m") + 1
        self._pipe.send((command[module], command[module + 1 :], env, cwd))
        return self

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def _become(module: str, arguments: list[str], env: dict[str, str], cwd: str, output: str) -> None:
    """Be `python -m MODULE ARGUMENTS`, no longer than the process that this one was forked for."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv[1:] = arguments
    multiprocessing.set_start_method(None, force=True)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
