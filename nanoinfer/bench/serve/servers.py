"""The servers that `bench serve` measures: what they are called, and what their requests say besides the prompt."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanoinfer.bench.engines import split_spec
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.serve.start_commands import MODEL, NULL, start_command

SERVERS = ("nanoinfer", "vllm", "llamacpp", "llama-server")
ROOT = Path(__file__).resolve().parent.parent.parent.parent


@dataclass(frozen=True)
class ServerSpec:
    """A server to measure. `kind`: one of SERVERS, NULL, or a script. `program`: the Python or the binary that runs it.

    `options`: its own command line's. `name`: what tables call it.
    """

    name: str
    kind: str
    program: str = sys.executable
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        return self.kind == "nanoinfer"

    def command(self, checkpoint: Checkpoint, threads: int, port: int) -> list[str]:
        """The command that starts it at a port of 127.0.0.1. EngineFailure if a file that it needs is missing."""
        return start_command(self.kind, self.program, self.options, checkpoint, threads, port)

    def environment(self, threads: int) -> dict[str, str]:
        """This process's environment, with the number of threads. Another Python sees none of its packages."""
        env = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        env |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        inherited = env.pop("PYTHONPATH", None)
        env.pop("NANOINFER_API_KEY", None)  # clients send none
        paths = [str(ROOT)] if self.is_ours else []
        if inherited and self.program == sys.executable:
            paths.append(inherited)
        if paths:
            env["PYTHONPATH"] = os.pathsep.join(paths)
        if self.kind == "vllm":
            env |= {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
            env["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}" if threads > 1 else "0"
        return env

    def body(self, prompt: str, new_tokens: int, eos_id: int | None) -> dict[str, Any]:
        """A request to /v1/completions: greedy, streamed, exactly `new_tokens`."""
        exactly: dict[str, Any] = {"ignore_eos": True}
        if self.kind == "llamacpp":  # it has no `ignore_eos`, and does not say how many tokens an answer has
            exactly = {} if eos_id is None else {"logit_bias": {str(eos_id): -100}}
        return {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": new_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **exactly,
        }

    def version(self) -> str:
        """The version of what is measured, or "unknown"."""
        if self.is_ours:
            import nanoinfer
            from nanoinfer.bench.peers.nanoinfer import source_digest

            return f"{nanoinfer.__version__}, source {source_digest()}"
        if self.kind == "llama-server":
            return _said([self.program, "--version"])
        package = {"vllm": "vllm", "llamacpp": "llama-cpp-python"}.get(self.kind)
        if package is None:
            return "unknown"
        script = f"import importlib.metadata as m; print(m.version({package!r}))"
        return _said([self.program, "-I", "-c", script])


NULL_SERVER = ServerSpec(NULL, NULL)


def parse_server(text: str) -> ServerSpec:
    """`NAME[:option=value,...][=PROGRAM]`: NAME is one of SERVERS or `path/to/server.py`; PROGRAM is the Python that runs
    it, or llama-server's binary. ValueError names the part that is wrong."""
    name, options, program = split_spec(text)
    if name not in SERVERS and not (name.endswith(".py") and Path(name).is_file()):
        raise ValueError(f"--compare {text}: {name!r} must be one of {', '.join(SERVERS)}, or a file SERVER.py")
    if program is None and name == "llama-server":
        raise ValueError(f"--compare {text}: must say where the binary is: llama-server=PATH")
    if program is not None and not (os.path.isfile(program) and os.access(program, os.X_OK)):
        raise ValueError(f"--compare {text}: {program!r} must be an executable file")
    kind = str(Path(name).resolve()) if name.endswith(".py") else name
    label = Path(name).stem if name.endswith(".py") else name
    if options:
        label = text if program is None else text.removesuffix(f"={program}")
    return ServerSpec(label, kind, sys.executable if program is None else os.path.abspath(program), options)


def _said(command: list[str]) -> str:
    """The first line that a command prints, wherever it does."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0] if lines and done.returncode == 0 else "unknown"
