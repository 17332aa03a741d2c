"""How each kind of server is started at a port of 127.0.0.1."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanoinfer.bench.engines import EngineFailure
from nanoinfer.bench.machine import Checkpoint

NULL = "null"  # the server without a model
MODEL = "bench"  # what requests call the model
HOST = "127.0.0.1"
REGION = 2304  # tokens of context that one request of llama.cpp has at most
PARALLEL = 32  # requests that llama-server serves at a time


def start_command(
    kind: str, program: str, options: Mapping[str, Any], checkpoint: Checkpoint, threads: int, port: int
) -> list[str]:
    """The command. `kind` and `program` are those of a ServerSpec; `options` are the server's own. EngineFailure if a file
    that it needs is missing."""
    if kind == "nanoinfer":
        words = [program, "-m", "nanoinfer", "serve", checkpoint.path, *flags({"served_model_name": MODEL}, "-")]
        return [*words, *flags({"host": HOST, "port": port, **options}, "-")]
    if kind == "vllm":
        words = [program, "-m", "vllm.entrypoints.cli.main", "serve", checkpoint.path]
        return [*words, *flags({"host": HOST, "port": port, "served_model_name": MODEL, **options}, "-")]
    if kind == "llamacpp":
        return [program, "-m", "llama_cpp.server", *flags(_llamacpp(options, checkpoint, threads, port), "_")]
    if kind == "llama-server":
        return [program, *flags(_llama_server(options, checkpoint, threads, port), "-")]
    if kind == NULL:
        return [program, str(Path(__file__).parent / "null_server.py"), "--port", str(port)]
    given = {"model": checkpoint.path, "threads": threads, "port": port, **options}
    return [program, kind, *flags(given, "-")]  # a script that serves /v1/completions, and GET /health once it can


def _llamacpp(options: Mapping[str, Any], checkpoint: Checkpoint, threads: int, port: int) -> dict[str, Any]:
    """llama-cpp-python's server. It serves one request after another."""
    file, others = _gguf(options, checkpoint)
    return {
        "model": file,
        "host": HOST,
        "port": port,
        "model_alias": MODEL,
        "n_ctx": min(checkpoint.context_len, REGION),
        "n_threads": threads,
        "n_threads_batch": threads,
        "interrupt_requests": False,  # True: a request ends the stream that is being sent
        **others,
    }


def _llama_server(options: Mapping[str, Any], checkpoint: Checkpoint, threads: int, port: int) -> dict[str, Any]:
    """llama.cpp's own server, with a context for each of the requests that it serves at the same time."""
    file, others = _gguf(options, checkpoint)
    slots = int(others.pop("parallel", PARALLEL))
    return {
        "model": file,
        "host": HOST,
        "port": port,
        "alias": MODEL,
        "parallel": slots,
        "ctx_size": slots * min(checkpoint.context_len, REGION),
        "threads": threads,
        "threads_batch": threads,
        **others,
    }


def _gguf(options: Mapping[str, Any], checkpoint: Checkpoint) -> tuple[str, dict[str, Any]]:
    """llama.cpp's file, and the options without the one that chooses it."""
    others = dict(options)
    weights = others.pop("weights", None)
    file = f"{checkpoint.path}.{weights}.gguf" if weights else f"{checkpoint.path}.gguf"
    if not os.path.isfile(file):
        make = f"python -m nanoinfer.bench.make_models gguf {checkpoint.path}"
        raise EngineFailure(f"{file}: not found; make it with {make}{f' --weights {weights}' if weights else ''}")
    return file, others


def flags(options: Mapping[str, Any], dash: str) -> list[str]:
    """Options as words of a command line, whose names have `dash` between their parts. True is a flag without a value."""
    words = []
    for name, value in options.items():
        words.append(f"--{name.replace('_', dash)}")
        if value is not True:
            words.append(value if isinstance(value, str) else json.dumps(value))
    return words
