"""The process in which an engine is measured. It loads the engine once, then serves one workload per line of input.

    python worker.py PEER.py '{"model": "...", "dtype": "bfloat16", "threads": 2}'

To measure another engine, write a peer file that defines `class Peer`:

    Peer(model, dtype, threads, **options)   load everything, so that nothing slow is left for the first request
    versions: dict[str, str]                 versions of the packages that matter, for the report
    prefix_cache: bool                       whether it reuses K/V of earlier requests
    instructions: str                        optional: which of the processor's instructions its products use
    prepare(shared)                          optional, before a workload; `shared`: its prompts share a prefix
    add(index, prompt, new_tokens)           queue a request: token ids in, exactly `new_tokens` out, greedy, no end token;
                                             for `bench adapters` with `adapter`, a name from the option `adapters`
                                             (`sampling`, which may end an output earlier, is for nanoinfer alone)
    busy() -> bool                           whether any request is unfinished
    step(emit)                               continue, and call emit(index, token_ids) as soon as there are new tokens
                                             (with finished=True if an output ended before it had all its tokens)
    cached_tokens(index) -> int | None       optional: tokens of that prompt whose K/V was cached
    save()                                   optional, for `bench tiers`: the process will end, and what is worth keeping
                                             must be where the next one looks for it
    logits(tokens) -> array [T, V]           optional, for `bench quality`: what follows each token (the last row may lack)

The clock is in this file, so it is the same for all engines. It needs only Python 3.10 or later and its standard library
(and numpy, to score logits).
"""

import gc
import importlib.util
import json
import os
import platform
import sys
import time
import traceback
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any


def main() -> None:
    """Load the peer, report it, then answer one `{"prime": [...], "requests": [...], "shared": bool}`, `{"score": [...]}`
    or `{"save": true}` per line."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # engines print, even from C++, but standard output must contain only answers
    here = Path(__file__).resolve().parent  # where a peer's file has the same name as the package that it imports
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]

    def send(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        start = time.perf_counter()
        peer = load_peer(Path(sys.argv[1]), json.loads(sys.argv[2]))
        seconds = time.perf_counter() - start
        versions = {"python": platform.python_version(), **peer.versions}
        about = {"versions": versions, "prefix_cache": peer.prefix_cache, "load_s": seconds}
        send(about | ({"instructions": peer.instructions} if hasattr(peer, "instructions") else {}))
        for line in sys.stdin:
            send(_attempt(peer, json.loads(line)))
    except Exception as error:
        traceback.print_exc()
        send({"error": f"{type(error).__name__}: {error}"})
    os._exit(0)  # some engines hang or crash in their destructors


def load_peer(file: Path, arguments: dict[str, Any]) -> Any:
    """Load a peer's file and create its `Peer`."""
    spec = importlib.util.spec_from_file_location(f"peer_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Peer(**arguments)


def run(peer: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Serve a job's `prime` requests, then its requests. Returns the tokens, the seconds from the start to each, memory."""
    if hasattr(peer, "prepare"):
        peer.prepare(job.get("shared", False))
    if job.get("prime"):
        serve(peer, job["prime"], job.get("together", 0))
    gc.collect()
    _reset_peak_memory()
    tokens, times, wall = serve(peer, job["requests"], job.get("together", 0))
    cached = getattr(peer, "cached_tokens", lambda index: None)
    return {
        "tokens": tokens,
        "times": times,
        "wall_s": wall,
        "cached_tokens": [cached(i) for i in range(len(tokens))],
        "peak_memory_mb": peak_memory_mb(),
    }


def score(peer: Any, texts: list[list[int]]) -> dict[str, Any]:
    """For each text, the nats (-log p) of each token after the first, and the token that the model finds likeliest."""
    import numpy as np

    if not hasattr(peer, "logits"):
        raise NotImplementedError("this engine gives no logits")
    nats, greedy = [], []
    for text in texts:
        logits = np.asarray(peer.logits(text))[: len(text) - 1].astype(np.float64)
        largest = logits.max(1, keepdims=True)
        total = np.log(np.exp(logits - largest).sum(1)) + largest[:, 0]
        nats.append((total - logits[np.arange(len(logits)), text[1:]]).tolist())
        greedy.append(logits.argmax(1).tolist())
    return {"nats": nats, "greedy": greedy}


def serve(
    peer: Any, requests: list[dict[str, Any]], together: int = 0
) -> tuple[list[list[int]], list[list[float]], float]:
    """Add requests to the peer as they arrive, and step it until all are done. Returns tokens, times, seconds in total.

    `together`: how many are served at a time; 0: all. RuntimeError if a request did not get exactly `new_tokens` tokens.
    """
    tokens: list[list[int]] = [[] for _ in requests]
    times: list[list[float]] = [[] for _ in requests]
    start = time.perf_counter()

    def emit(index: int, new: list[int], finished: bool = False) -> None:
        tokens[index] += [int(token) for token in new]
        times[index] += [time.perf_counter() - start] * len(new)
        if finished or len(tokens[index]) >= requests[index]["new_tokens"]:
            running.discard(index)

    to_come, running = deque(enumerate(requests)), set[int]()
    while to_come or peer.busy():
        now = time.perf_counter() - start
        while to_come and to_come[0][1]["arrival"] <= now and (not together or len(running) < together):
            index, request = to_come.popleft()
            running.add(index)
            more = {key: request[key] for key in ("adapter", "sampling") if request.get(key)}
            peer.add(index, request["prompt"], request["new_tokens"], **more)
        if peer.busy():
            peer.step(emit)
        elif to_come:
            time.sleep(max(0.0, to_come[0][1]["arrival"] - now))
    wall = time.perf_counter() - start
    for i, request in enumerate(requests):
        if len(tokens[i]) != request["new_tokens"] and not request.get("sampling"):
            raise RuntimeError(f"request {i}: got {len(tokens[i])} tokens, must be {request['new_tokens']}")
    return tokens, times, wall


def _attempt(peer: Any, job: dict[str, Any]) -> dict[str, Any]:
    try:
        if "save" in job:
            getattr(peer, "save", lambda: None)()
            return {"saved": True}
        return score(peer, job["score"]) if "score" in job else run(peer, job)
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def _reset_peak_memory() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mb() -> float | None:
    """Peak resident memory of this process since the last reset, in MB (2**20 bytes). None without Linux's /proc."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


if __name__ == "__main__":
    main()
