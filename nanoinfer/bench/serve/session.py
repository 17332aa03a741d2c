"""A session of `bench serve`: starts all servers, then puts each in turn under the same load, round by round."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.processes import EngineFailure, ServerProcess, free_port
from nanoinfer.bench.results import Keep, Results, new_results
from nanoinfer.bench.serve.client import Exchange, as_request, ask
from nanoinfer.bench.serve.figures import Goodput, figures, read_results
from nanoinfer.bench.serve.servers import ServerSpec
from nanoinfer.bench.serve.traffic import WORDS, Conversations, Lengths, Traffic, closed_loop, open_loop
from nanoinfer.bench.session import Settings, measure_rounds, reported

TOGETHER = 16  # conversations that take turns in an open loop
WARM_UP_S = 1.0  # per closed loop
SETTLE_S = 60.0


@dataclass(frozen=True)
class Cell:
    """A load. `closed`: `level` clients. `open`: requests arrive at `level` times the rate that nanoinfer can serve."""

    kind: str
    level: float

    def __str__(self) -> str:
        return f"{self.kind} {self.level:g}"


@dataclass(frozen=True)
class Loads:
    """What servers are put under: so many `clients` in closed loops, which come first; open loops, whose rates are `shares`
    of the most requests per second that the first server served in a closed loop. `seconds`: for which requests are begun
    in each cell."""

    clients: Sequence[int] = (1, 8, 32, 128)
    shares: Sequence[float] = (0.5, 0.8, 0.95, 1.2)
    seconds: float = 5.0
    lengths: Lengths = field(default_factory=Lengths)
    goodput: Goodput = field(default_factory=Goodput)

    def __post_init__(self) -> None:
        for option, numbers, least in (
            ("--concurrency", self.clients, 1),
            ("--rates", self.shares, 0.01),
            ("--seconds", [self.seconds], 0.1),
            ("--new-tokens", [self.lengths.new_tokens], 2),
        ):
            for number in numbers:
                if not number >= least:
                    raise ValueError(f"{option} {number:g}: must be at least {least}")

    @property
    def cells(self) -> list[Cell]:
        return [Cell("closed", count) for count in self.clients] + [Cell("open", share) for share in self.shares]


def start_results(path: Path, loads: Loads, settings: Settings) -> Results:
    """Results without measurements. ValueError if the model's context is too short."""
    checkpoint = Checkpoint.read(path)
    if checkpoint.context_len < (longest := loads.lengths.longest):
        raise ValueError(
            f"--model {checkpoint.name}: its context is {checkpoint.context_len}; must be at least {longest}"
        )
    versions = {server.name: server.version() for server in settings.engines}
    same = {**settings.as_dict(), **asdict(loads), "versions": versions, "model": checkpoint.as_dict()}
    # `capacity`: requests per second; the open loops' rates are shares of it
    return new_results("serve", same, model=checkpoint.as_dict(), capacity=None, runs=[])


def measure_serve(
    path: Path, loads: Loads, settings: Settings, results: Results, keep: Keep = lambda results: None
) -> Results:
    """Measure what `results` does not have yet, and add it. The first of the `settings`' engines, which are servers, is
    nanoinfer, which the others are compared with.

    A server that does not start, dies, or answers nothing is reported and recorded; the others are measured all the same.
    EngineFailure if none starts.
    """
    from transformers import AutoTokenizer

    checkpoint, tokenizer = Checkpoint.read(path), AutoTokenizer.from_pretrained(str(path))
    per_word = max(1.0, len(tokenizer.encode(" ".join(WORDS))) / len(WORDS))

    def traffic(number: int, cell: Cell, spec: ServerSpec, server: ServerProcess, seconds: float) -> Traffic:
        seed = f"{settings.seed}/{number}"
        together = int(cell.level) if cell.kind == "closed" else TOGETHER
        prompts = Conversations(per_word, loads.lengths, seed, f"{seed}/{cell}", together)

        def request(number: int) -> bytes:
            return as_request("/v1/completions", spec.body(prompts.prompt(number), loads.lengths.new_tokens))

        async def load() -> Traffic:
            # Once it has answered this, it is awake again, and done with requests whose clients have left.
            probe = ask(server.port, as_request("/v1/completions", spec.body("Hello", 2)), Exchange(0.0))
            with suppress(TimeoutError):  # what is wrong will show in the measurement
                await asyncio.wait_for(probe, SETTLE_S)
            if cell.kind == "closed":
                return await closed_loop(server.port, request, together, seconds)
            rate = cell.level * results["capacity"]
            return await open_loop(server.port, request, rate, seconds, f"{seed}/{cell}")

        with server.running():
            done = asyncio.run(load())
            server.check()
        return done

    def start(spec: ServerSpec, stack: ExitStack) -> ServerProcess | str:
        port = free_port()
        try:
            command, env = spec.command(checkpoint, settings.threads, port), spec.environment(settings.threads)
            server = stack.enter_context(ServerProcess(command, env, port, settings.timeout))
            for clients in loads.clients:
                traffic(-1, Cell("closed", clients), spec, server, min(WARM_UP_S, loads.seconds))
        except EngineFailure as failure:
            return reported(spec, failure)
        return server

    def one_run(number: int, cell: Cell, spec: ServerSpec) -> dict[str, Any]:
        server = servers[spec.name]
        if isinstance(server, str):
            raise EngineFailure(server)
        if cell.kind == "open" and results["capacity"] is None:
            speeds = [run["requests_s"] for run in results["runs"] if run["engine"] == ours and run.get("requests_s")]
            if not speeds:
                raise EngineFailure(f"no rate is known: {ours} served nothing in a closed loop")
            results["capacity"] = max(speeds)
        found = traffic(number, cell, spec, server, loads.seconds)
        run = figures(found, read_results(found, loads.lengths.new_tokens), loads.goodput)
        if not run["finished"] and run["errors"]:
            raise EngineFailure(run["first_error"])
        return {**run, "rate": cell.level * results["capacity"]} if cell.kind == "open" else run

    with ExitStack() as stack:
        ours = settings.engines[0].name
        servers = {spec.name: start(spec, stack) for spec in settings.engines}
        if all(isinstance(server, str) for server in servers.values()):
            raise EngineFailure("; ".join(f"{name}: {why}" for name, why in servers.items()))
        measure_rounds(results, loads.cells, settings, one_run, keep)
    return results
