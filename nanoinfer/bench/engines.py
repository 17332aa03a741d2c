"""Engines under test, each in a separate process that is stopped while another engine is measured."""

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

PEERS = Path(__file__).parent / "peers"
PEER_NAMES = ("nanoinfer", "transformers", "peft", "vllm", "openvino", "llamacpp")
LAST_LINES = 5


@dataclass(frozen=True)
class EngineSpec:
    """An engine to measure: `file` defines its Peer, `python` runs it, `options` are the Peer's keyword arguments.

    `is_ours`: whether it is nanoinfer itself (with any options) rather than an engine to compare it with.
    """

    name: str
    file: Path
    python: str = sys.executable
    options: Mapping[str, Any] = field(default_factory=dict)
    is_ours: bool = False

    @property
    def converts(self) -> bool:
        """Whether it reads a file that was converted from the checkpoint."""
        return self.file.stem in ("llamacpp", "llamacpp_lookup", "llamacpp_slots", "openvino")

    @property
    def weights(self) -> str | None:
        """The kind of its weights, `int8` or `int4`; None: as in the checkpoint. Engines of a kind share a table."""
        kind = self.options.get("quantization" if self.is_ours else "weights")
        return None if kind is None else str(kind)

    def on(self, device: str) -> "EngineSpec":
        """The same engine on another device than the CPU. ValueError if its Peer knows no other."""
        if self.file.stem not in ("nanoinfer", "transformers"):
            raise ValueError(f"--device {device}: {self.name} is measured on the CPU only")
        return replace(self, options={"device": device, **self.options})

    def command(self, model: str, dtype: str, threads: int) -> list[str]:
        """The command that starts its worker."""
        arguments = json.dumps({"model": model, "dtype": dtype, "threads": threads, **self.options})
        return [self.python, str(PEERS / "worker.py"), str(self.file), arguments]

    def environment(self, threads: int) -> dict[str, str]:
        """This process's environment, with the number of threads. Another Python sees none of its packages except
        nanoinfer."""
        env = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        env["TOKENIZERS_PARALLELISM"] = "false"
        inherited = env.pop("PYTHONPATH", None)
        root = str(Path(__file__).resolve().parent.parent.parent)
        paths = [root] if self.is_ours else []
        if inherited and self.python == sys.executable:
            paths.append(inherited)
        return {**env, "PYTHONPATH": os.pathsep.join(paths)} if paths else env


def parse_engine(text: str) -> EngineSpec:
    """`NAME[:option=value,...][=PYTHON]`, such as `vllm`, `vllm=PATH/TO/python`, `nanoinfer:quantization=int8` or
    `llamacpp:weights=int8=PATH/TO/python`. NAME is a known engine or `path/to/peer.py`.

    The engine's name in tables is the text without PYTHON. ValueError names the part that is wrong.
    """
    name, options, python = split_spec(text)
    if python is not None and not (os.path.isfile(python) and os.access(python, os.X_OK)):
        raise ValueError(f"--compare {text}: {python!r} must be a Python executable")
    file = _peer_file(name, text)
    return EngineSpec(
        _label(text, python) if options else file.stem,
        file,
        sys.executable if python is None else os.path.abspath(python),
        options,
        is_ours=name == "nanoinfer",
    )


def split_spec(text: str) -> tuple[str, dict[str, Any], str | None]:
    """The name, the options and the program of `NAME[:option=value,...][=PROGRAM]`. ValueError for what is no option."""
    known = re.fullmatch(r"([\w-]+):(.+)", text)
    name, settings = known.groups() if known else (text, "")
    if not settings:
        name, equals, program = text.partition("=")
        return name, {}, program if equals else None
    options = {}
    *others, last = settings.split(",")
    key, first, rest = last.partition("=")
    value, second, program = rest.partition("=")  # what follows a second = is the last setting's program
    for setting in (*others, key + first + value):
        key, equals, value = setting.partition("=")
        if not equals or not key.isidentifier():
            raise ValueError(f"--compare {text}: {setting!r} must be option=value")
        options[key] = _value(value)
    return name, options, program if second else None


def _label(text: str, program: str | None) -> str:
    return text if program is None else text.removesuffix(f"={program}")


def _peer_file(name: str, text: str) -> Path:
    if name in PEER_NAMES:
        return PEERS / f"{name}.py"
    if name.endswith(".py") and Path(name).is_file():
        return Path(name).resolve()
    raise ValueError(f"--compare {text}: {name!r} must be one of {', '.join(PEER_NAMES)}, or a file PEER.py")


def _value(text: str) -> Any:
    """An option's value: numbers, true, false and null as in JSON; True, False and None as in Python; else a string."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)


class EngineFailure(Exception):
    """An engine could not load, could not serve a workload, or died."""


class Worker:
    """A worker process. `ask` wakes it, waits for its answer and stops it again (SIGSTOP), including spinning threads.

    Raises EngineFailure with the last lines of its standard error if it does not load. As a context manager, it closes at
    the end of the block.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = 600):
        self.timeout, self.alive = timeout, True
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the worker
        self._unread = b""
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=env,
            start_new_session=True,  # a new process group: its children are stopped and killed with it
            bufsize=0,
        )
        self.pid = self._process.pid
        try:
            self.about = self._answer()  # package versions, seconds to load; see peers/worker.py
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a job and return its result. EngineFailure if it failed; then `alive` says whether the worker still takes
        jobs."""
        if not self.alive:
            raise EngineFailure("ended before this run")
        self._signal(signal.SIGCONT)
        try:
            assert self._process.stdin is not None
            try:
                _write_all(self._process.stdin, json.dumps(message).encode() + b"\n")
            except BrokenPipeError:
                self._died()
            return self._answer()
        finally:
            if self.alive:
                self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """Kill the worker and its children."""
        if self.alive:
            self.alive = False
            self._signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            stream.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._read_line())
        if "error" in answer:
            raise EngineFailure(answer["error"])
        return answer

    def _read_line(self) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + self.timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self._died(f"no answer for {self.timeout:g} s")
                chunk = os.read(self._process.stdout.fileno(), 2**20)
                if not chunk:
                    self._died()
                self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        return line

    def _died(self, reason: str | None = None) -> None:
        """Kill what is left of the worker, and raise EngineFailure with the reason."""
        self.alive = False
        self._signal(signal.SIGKILL)
        code = self._process.wait()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        raise EngineFailure("\n".join([reason or f"ended with exit code {code}", *lines[-LAST_LINES:]]))

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def _write_all(stream: IO[bytes], data: bytes) -> None:
    """Write all of `data`: an unbuffered pipe may take only a part at a time."""
    view = memoryview(data)
    while view:
        view = view[stream.write(view) :]
