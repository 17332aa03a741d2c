"""Processes under test, each of which is stopped while another one is measured: engines (Worker) and servers."""

import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Self

LAST_LINES = 5
POLL_S = 0.05
# A process that outlives this one, stopped, would be found by nobody: on Linux it dies with its parent.
LAUNCH = """
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
os.execv(sys.argv[1], sys.argv[1:])
"""


class EngineFailure(Exception):
    """An engine or a server could not start, could not serve, or died."""


class Child:
    """A process and its children, killed at the end of a `with` block. It runs only while it is `running()`."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None, stdin: int, stdout: int | None = None):
        self.alive = True
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", LAUNCH, *command],
            stdin=stdin,
            stdout=self._errors if stdout is None else stdout,
            stderr=self._errors,
            env=env,
            start_new_session=True,  # a process group: its children are stopped and killed with it
        )
        self.pid = self._process.pid
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def _start(self) -> None:
        """Wait until it serves."""
        raise NotImplementedError

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let it run within the block. EngineFailure if it has ended."""
        if not self.alive:
            raise EngineFailure("ended before this run")
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            if self.alive:
                self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """Kill it and its children."""
        self._kill()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with suppress(BrokenPipeError):  # what was written and never read
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _failure(self, reason: str | None = None) -> EngineFailure:
        """Kill what is left, and say why, with the last lines that it printed."""
        code = self._kill()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return EngineFailure("\n".join([reason or f"ended with exit code {code}", *lines[-LAST_LINES:]]))

    def _kill(self) -> int:
        if self.alive:
            self.alive = False
            self._signal(signal.SIGKILL)
        return self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class Worker(Child):
    """An engine in a process that runs `peers/worker.py`. EngineFailure if it does not load within `timeout` seconds."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = 600):
        self.timeout = timeout
        super().__init__(command, env, subprocess.PIPE, subprocess.PIPE)

    def _start(self) -> None:
        self.about = self._answer()  # package versions, seconds to load

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a job and return its result. EngineFailure if it failed; then `alive` says whether the worker still takes
        jobs."""
        with self.running():
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended, which its answer will show
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
                self._process.stdin.flush()
            return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], self.timeout)
        if not ready:
            raise self._failure(f"no answer for {self.timeout:g} s")
        if not (line := self._process.stdout.readline()):
            raise self._failure()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineFailure(answer["error"])
        return answer


class ServerProcess(Child):
    """A server at `port` of 127.0.0.1. EngineFailure if it ends, or does not answer GET /v1/models or /health for `timeout`
    seconds."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], port: int, timeout: float = 600):
        self.port, self._timeout = port, timeout
        super().__init__(command, env, subprocess.DEVNULL)

    def check(self) -> None:
        """EngineFailure if it has ended."""
        if self._process.poll() is not None:
            raise self._failure()

    def _start(self) -> None:
        deadline = time.monotonic() + self._timeout
        while not any(_answers(self.port, path) for path in ("/health", "/v1/models")):
            self.check()
            if time.monotonic() > deadline:
                raise self._failure(f"did not serve within {self._timeout:g} s")
            time.sleep(POLL_S)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with suppress(OSError, http.client.HTTPException), closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status == 200
    return False
