"""ServerProcess: a server in a process of its own, which is stopped while another one is measured."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from nanoinfer.bench.engines import LAST_LINES, EngineFailure

POLL_S = 0.05
# A server that outlives this process, stopped, would be found by nobody: on Linux it dies with its parent.
LAUNCH = """
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
os.execv(sys.argv[1], sys.argv[1:])
"""


def launched(command: Sequence[str]) -> list[str]:
    """The command, so that it ends with this process."""
    return [sys.executable, "-I", "-S", "-c", LAUNCH, *command]


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def cpu_seconds(pid: int) -> float | None:
    """Processor time that all threads of a process have taken. None where the system does not tell (it is Linux's)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user, system


class ServerProcess:
    """A server that answers at `port`. It runs only within a `with` block, and is stopped otherwise.

    Raises EngineFailure with its last lines if it ends, or does not answer GET /v1/models or /health for `timeout` seconds.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], port: int, timeout: float = 600):
        self.port, self.alive = port, True
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the server
        self._process = subprocess.Popen(
            launched(command),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env=env,
            start_new_session=True,  # a process group: its children are stopped and killed with it
        )
        self.pid = self._process.pid
        try:
            self._wait(timeout)
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def __enter__(self) -> "ServerProcess":
        """Let it run."""
        if not self.alive:
            raise EngineFailure("ended before this run")
        self._signal(signal.SIGCONT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.alive:
            self._signal(signal.SIGSTOP)

    def check(self) -> None:
        """EngineFailure if it has ended."""
        if self._process.poll() is not None:
            raise self._failure(f"ended with exit code {self._process.returncode}")

    def close(self) -> None:
        """Kill the server and its children."""
        if self.alive:
            self.alive = False
            self._signal(signal.SIGKILL)
        self._process.wait()
        self._output.close()

    def _wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not any(_answers(self.port, path) for path in ("/health", "/v1/models")):
            self.check()
            if time.monotonic() > deadline:
                raise self._failure(f"did not serve within {timeout:g} s")
            time.sleep(POLL_S)

    def _failure(self, reason: str) -> EngineFailure:
        """Kill what is left, and say why, with the last lines that the server printed."""
        self.alive = False
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._output.seek(0)
        lines = [line.strip() for line in self._output.read().decode(errors="replace").splitlines() if line.strip()]
        return EngineFailure("\n".join([reason, *lines[-LAST_LINES:]]))

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
