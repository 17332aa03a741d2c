"""The servers that `bench serve` measures: what they are called, and how they are started at a port of 127.0.0.1."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanoinfer.bench.engines import environment, split_spec
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.peers.nanoinfer import source_digest
from nanoinfer.bench.processes import EngineFailure

PYTHON_SERVERS = {"nanoinfer": ("nanoinfer", "serve"), "vllm": ("vllm.entrypoints.cli.main", "serve")}
SERVERS = (*PYTHON_SERVERS, "llama-server")
MODEL = "bench"  # what requests call the model
REGION = 2304  # tokens of context that one request of llama.cpp has at most
PARALLEL = 32  # requests that llama-server serves at a time
VLLM = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True)
class ServerSpec:
    """A server to measure. `kind`: one of SERVERS, or a script. `program`: the Python or the binary that runs it.

    `options`: its own command line's. `name`: what tables call it.
    """

    name: str
    kind: str
    program: str = sys.executable
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: None = None  # it is no engine of `bench run`, whose tokens are compared by these
    is_ours: bool = False

    def command(self, checkpoint: Checkpoint, threads: int, port: int) -> list[str]:
        """The command that starts it. EngineFailure if a file that it needs is missing."""
        here, options = {"host": "127.0.0.1", "port": port}, dict(self.options)
        if self.kind in PYTHON_SERVERS:
            named = {**here, "served_model_name": MODEL, **options}
            return [self.program, "-m", *PYTHON_SERVERS[self.kind], checkpoint.path, *flags(named)]
        if self.kind == "llama-server":
            weights = options.pop("weights", None)
            file = f"{checkpoint.path}.{weights}.gguf" if weights else f"{checkpoint.path}.gguf"
            if not os.path.isfile(file):
                raise EngineFailure(f"{file}: not found; python -m nanoinfer.bench.make_models gguf makes it")
            slots = int(options.pop("parallel", PARALLEL))
            context = slots * min(checkpoint.context_len, REGION)
            sizes = {"parallel": slots, "ctx_size": context, "threads": threads, "threads_batch": threads}
            return [self.program, *flags({"model": file, **here, "alias": MODEL, **sizes, **options})]
        given = {"model": checkpoint.path, "threads": threads, "port": port, **options}
        return [self.program, self.kind, *flags(given)]  # serves /v1/completions, and GET /health once it can

    def environment(self, threads: int) -> dict[str, str]:
        """Of its process."""
        env = {**environment(self.program, threads, self.kind == "nanoinfer"), "PYTHONUNBUFFERED": "1"}
        env.pop("NANOINFER_API_KEY", None)  # clients send none
        bind = {"VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}" if threads > 1 else "0"}
        return {**env, **VLLM, **bind} if self.kind == "vllm" else env

    def version(self) -> str:
        """The version of what is measured, or "unknown"."""
        script = "import importlib.metadata as m; print(m.version('vllm'))"
        commands = {"vllm": [self.program, "-I", "-c", script], "llama-server": [self.program, "--version"]}
        if self.kind not in commands:
            return source_digest() if self.kind == "nanoinfer" else "unknown"
        done = subprocess.run(commands[self.kind], capture_output=True, text=True, timeout=60, check=False)
        return (done.stdout + done.stderr).partition("\n")[0]


def parse_server(text: str) -> ServerSpec:
    """`NAME[:option=value,...][=PROGRAM]`, where NAME is one of SERVERS or `path/to/server.py`, and PROGRAM the Python that
    runs it, or llama-server's binary. ValueError names what is wrong."""
    name, options, program, label = split_spec(text, SERVERS)
    if program is None and name == "llama-server":
        raise ValueError(f"--compare {text}: must say where the binary is: llama-server=PATH")
    kind = str(Path(name).resolve()) if name.endswith(".py") else name
    return ServerSpec(label, kind, program or sys.executable, options)


def flags(options: Mapping[str, Any]) -> list[str]:
    """Options as words of a command line. True is a flag without a value."""
    words = []
    for name, value in options.items():
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(value if isinstance(value, str) else json.dumps(value))
    return words
