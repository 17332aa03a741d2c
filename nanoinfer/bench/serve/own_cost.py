"""What the server costs per token: the same requests at the same time over HTTP, and to an AsyncEngine without a server.

A round has three runs: the AsyncEngine, the server, the AsyncEngine once more. The cost is by how much longer the server
takes than the two others on average; how much these two differ is noise. The same is computed for processor time, which
other work on the machine disturbs less: it is what the server takes if nothing runs beside the engine's thread.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tqdm.auto import tqdm

from nanoinfer.bench.engines import EngineFailure, Worker
from nanoinfer.bench.frozen_heap import frozen_heap
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.serve.client import Client, Exchange, as_request
from nanoinfer.bench.serve.conversations import Conversations, Lengths
from nanoinfer.bench.serve.figures import read_results
from nanoinfer.bench.serve.process import ServerProcess, cpu_seconds, launched
from nanoinfer.bench.serve.session import Session
from nanoinfer.bench.serve.settings import OURS, Results, ServeSettings
from nanoinfer.bench.serve.stalls import ATTEMPTS, STALL_S, Stalls
from nanoinfer.bench.serve.traffic import Traffic
from nanoinfer.bench.settings import Settings, new_results
from nanoinfer.model.loader import resolve_model_path

FORMAT = "serve own cost"
ENGINE, HTTP, AGAIN = "AsyncEngine", "server", "AsyncEngine, once more"


@dataclass(frozen=True)
class OwnCostSettings:
    """What to measure. `streams`: how many requests at the same time, each with `new_tokens`."""

    model: str = "story"
    streams: int = 32
    new_tokens: int = 64
    rounds: int = 7
    threads: int = 1
    seed: int = 0
    timeout: float = 600.0

    def __post_init__(self) -> None:
        if not 1 <= self.streams <= 256:
            raise ValueError(f"--streams {self.streams}: must be in 1..256")
        self.serve_settings()  # says what is wrong with the others

    def serve_settings(self) -> ServeSettings:
        """As those of a server under load."""
        return ServeSettings(
            self.model,
            [OURS],
            [self.streams],
            [],
            rounds=self.rounds,
            threads=self.threads,
            seed=self.seed,
            lengths=Lengths(16, 8, 8, self.new_tokens),  # short prompts: it is about the tokens of answers
            timeout=self.timeout,
        )


def start_own_cost(settings: OwnCostSettings) -> Results:
    """A results file without measurements."""
    results = new_results(Settings([], [], settings.rounds, threads=settings.threads, seed=settings.seed))
    del results["models"]
    return {
        **results,
        "format": FORMAT,
        "model": Checkpoint.read(resolve_model_path(settings.model)).as_dict(),
        "settings": {
            "streams": settings.streams,
            "new_tokens": settings.new_tokens,
            "rounds": settings.rounds,
            "threads": settings.threads,
            "seed": settings.seed,
        },
        "versions": {OURS.name: OURS.version()},
        "runs": [],
    }


def measure_own_cost(
    settings: OwnCostSettings, results: Results, keep: Callable[[Results], None] = lambda results: None
) -> Results:
    """Measure the rounds that `results` does not have yet. `keep` is called with them after each.

    EngineFailure if either side fails.
    """
    session = Session(settings.serve_settings())
    missing = range(len(results["runs"]), settings.rounds)
    if not missing:
        return results
    path = resolve_model_path(settings.model)
    with ExitStack() as stack:
        command = [sys.executable, "-m", "nanoinfer.bench.serve.own_cost_worker"]
        command.append(json.dumps({"model": str(path), "threads": settings.threads}))
        worker = stack.enter_context(
            Worker(launched(command), OURS.environment(settings.threads), timeout=settings.timeout)
        )
        server = session.start(OURS)
        stack.callback(server.close)
        stack.enter_context(frozen_heap())
        for number in tqdm([-1, *missing], desc="bench serve --own-cost", unit="round"):
            run = _round(session, settings, number, worker, server)
            if number >= 0:  # the first one is to warm up
                results["runs"].append(run)
                keep(results)
    return results


def _round(
    session: Session, settings: OwnCostSettings, number: int, worker: Worker, server: ServerProcess
) -> dict[str, Any]:
    found: dict[str, Any] = {"round": number}
    for part, name in enumerate((ENGINE, HTTP, AGAIN)):
        for attempt in range(ATTEMPTS):
            # The two runs of the AsyncEngine share no prompt, or the second would find the first one's in its cache.
            seed = f"{settings.seed}/{number}/{part == 2}/{attempt}"
            conversations = Conversations(session.writer, seed, seed, settings.streams)
            prompts = [conversations.prompt(i) for i in range(settings.streams)]
            pid = server.pid if name == HTTP else worker.pid
            cpu_before = cpu_seconds(pid)
            if name == HTTP:
                seconds, stall_s, client_s = asyncio.run(over_http(session, settings, server, prompts))
                found["client_s"] = client_s
            else:
                answer = worker.ask({"prompts": prompts, "new_tokens": settings.new_tokens})
                seconds, stall_s = answer["seconds"], answer["stall_s"]
                if answer["tokens"] != settings.streams * settings.new_tokens:
                    raise EngineFailure(f"the AsyncEngine gave {answer['tokens']} tokens")
            if stall_s < STALL_S:
                break
        found[name] = seconds
        cpu_after = cpu_seconds(pid)
        found[f"{name}, cpu"] = None if cpu_before is None or cpu_after is None else cpu_after - cpu_before
    return found


async def over_http(
    session: Session, settings: OwnCostSettings, server: ServerProcess, prompts: Sequence[str]
) -> tuple[float, float, float]:
    """Seconds from the first request to the end of the last answer, the longest stall, and the client's processor time.

    EngineFailure if an answer is not as it must be.
    """
    bodies = [OURS.body(prompt, settings.new_tokens, session.eos_id) for prompt in prompts]
    requests = [as_request("/v1/completions", body) for body in bodies]
    client = Client(server.port)
    with server, Stalls() as stalls:
        traffic, cpu = Traffic(0.0, time.perf_counter()), time.process_time()
        traffic.exchanges = [Exchange(traffic.began) for _ in requests]
        await asyncio.gather(*map(client.ask, requests, traffic.exchanges))
        seconds, cpu = time.perf_counter() - traffic.began, time.process_time() - cpu
        client.close()
        server.check()
    for result in read_results(traffic, settings.new_tokens):
        if not result.is_finished:
            raise EngineFailure(result.problem or "the server refused a request")
    return seconds, stalls.longest, cpu
