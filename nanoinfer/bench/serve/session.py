"""A session of `bench serve`: starts all servers, then puts each in turn under the same load, round by round."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.processes import EngineFailure, ServerProcess, free_port
from nanoinfer.bench.results import Keep, Results, new_results
from nanoinfer.bench.serve.client import Exchange, as_request, ask
from nanoinfer.bench.serve.figures import Goodput, figures, read_results
from nanoinfer.bench.serve.servers import NULL_SERVER, OURS, ServerSpec
from nanoinfer.bench.serve.traffic import WORDS, Conversations, Lengths, Traffic, closed_loop, open_loop
from nanoinfer.bench.session import reported

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
class ServeSettings:
    """What to measure. The first of the `servers` is nanoinfer, which the others are compared with. `clients`: of closed
    loops. `shares`: rates of open loops, as shares of the most requests per second that the first server served in a closed
    loop of the same run.

    `seconds`: for which requests are begun in each cell. `timeout`: how many seconds a server may take to start.
    """

    servers: Sequence[ServerSpec] = (OURS, NULL_SERVER)
    clients: Sequence[int] = (1, 8, 32, 128)
    shares: Sequence[float] = (0.5, 0.8, 0.95, 1.2)
    seconds: float = 5.0
    rounds: int = 3
    threads: int = 1
    seed: int = 0
    lengths: Lengths = field(default_factory=Lengths)
    goodput: Goodput = field(default_factory=Goodput)
    timeout: float = 600.0

    def __post_init__(self) -> None:
        if not self.clients:
            raise ValueError("--concurrency: must name at least one number of clients")
        for option, numbers in (
            ("--concurrency", self.clients),
            ("--rates", self.shares),
            ("--seconds", [self.seconds]),
        ):
            for number in numbers:
                if not number > 0:
                    raise ValueError(f"{option} {number:g}: must be above 0")
        if self.lengths.new_tokens < 2:
            raise ValueError(f"--new-tokens {self.lengths.new_tokens}: must be at least 2")
        names = [server.name for server in self.servers]
        if len(set(names)) < len(names):
            raise ValueError(
                f"--compare: one of {', '.join(names)} is given twice (nanoinfer itself is always measured)"
            )

    @property
    def cells(self) -> list[Cell]:
        """All loads of a round, closed loops first: they say which rates the open ones have."""
        closed = [Cell("closed", count) for count in sorted(set(self.clients))]
        return closed + [Cell("open", share) for share in sorted(set(self.shares))]

    def as_dict(self) -> dict[str, Any]:
        """What must be the same when a stopped run continues (except `rounds`)."""
        same = {name: getattr(self, name) for name in ("seconds", "rounds", "threads", "seed")}
        versions = {server.name: server.version() for server in self.servers}
        levels = {"clients": sorted(set(self.clients)), "shares": sorted(set(self.shares))}
        about = {"lengths": asdict(self.lengths), "goodput": asdict(self.goodput)}
        return {**same, "servers": [*versions], "versions": versions, **levels, **about}


def start_results(settings: ServeSettings, path: Path) -> Results:
    """Results without measurements. ValueError if the model's context is too short."""
    checkpoint = Checkpoint.read(path)
    if checkpoint.context_len < (longest := settings.lengths.longest):
        raise ValueError(
            f"--model {checkpoint.name}: its context is {checkpoint.context_len}; must be at least {longest}"
        )
    model = checkpoint.as_dict()
    # `capacity`: requests per second; the open loops' rates are shares of it
    return new_results(
        "serve", {**settings.as_dict(), "model": model}, model=model, capacity=None, failures={}, runs=[]
    )


def measure_serve(settings: ServeSettings, path: Path, results: Results, keep: Keep = lambda results: None) -> Results:
    """Measure what `results` does not have yet, and add it. `keep` is called with them after every run.

    A server that does not start, dies, or answers nothing is reported and recorded; the others are measured all the same.
    EngineFailure if none starts.
    """
    session = Session(settings, path)
    done = {(run["round"], run["load"], run["server"]) for run in results["runs"]}
    missing = [
        (number, cell, spec)
        for number in range(settings.rounds)
        for cell in settings.cells
        for spec in random.Random(f"{settings.seed}/{number}/{cell}").sample(settings.servers, len(settings.servers))
        if (number, str(cell), spec.name) not in done
    ]
    with ExitStack() as stack, tqdm(total=len(missing), desc="bench serve", unit="run") as bar:
        servers: dict[str, ServerProcess] = {}
        for spec in settings.servers if missing else ():
            bar.set_postfix_str(f"starting {spec.name}")
            try:
                servers[spec.name] = stack.enter_context(session.start(spec))
            except EngineFailure as failure:
                results["failures"][spec.name] = reported(spec, failure)
        if missing and not servers:
            raise EngineFailure("; ".join(f"{name}: {why}" for name, why in results["failures"].items()))
        for number, cell, spec in missing:
            bar.set_postfix_str(f"{cell}, {spec.name}")
            run: dict[str, Any] = {"round": number, "load": str(cell), "server": spec.name}
            try:
                if spec.name not in servers:
                    raise EngineFailure("did not start")
                if cell.kind == "open":
                    results["capacity"] = results["capacity"] or capacity(results)
                run |= session.measure(number, cell, spec, servers[spec.name], results["capacity"] or 0.0)
            except EngineFailure as failure:
                run["error"] = reported(spec, failure) if spec.name in servers else str(failure)
            results["runs"].append(run)
            keep(results)
            bar.update(1)
    return results


def capacity(results: Results) -> float:
    """The most requests per second that the first server served in a closed loop. EngineFailure if it served none."""
    ours = results["settings"]["servers"][0]
    speeds = [run["requests_s"] for run in results["runs"] if run["server"] == ours and run.get("requests_s")]
    if not speeds:
        raise EngineFailure(f"no rate is known: {ours} served nothing in a closed loop")
    return max(speeds)


class Session:
    """What all runs need: the checkpoint, and how many tokens its tokenizer makes of a word."""

    def __init__(self, settings: ServeSettings, path: Path):
        from transformers import AutoTokenizer

        self.settings, self.checkpoint = settings, Checkpoint.read(path)
        tokenizer = AutoTokenizer.from_pretrained(str(path))
        self.per_word = max(1.0, len(tokenizer.encode(" ".join(WORDS))) / len(WORDS))

    def start(self, spec: ServerSpec) -> ServerProcess:
        """Start a server and warm it up. EngineFailure if it does not start or answer."""
        settings, port = self.settings, free_port()
        command = spec.command(self.checkpoint, settings.threads, port)
        server = ServerProcess(command, spec.environment(settings.threads), port, settings.timeout)
        try:
            for cell in settings.cells:
                if cell.kind == "closed":
                    self._load(-1, cell, spec, server, 0.0, min(WARM_UP_S, settings.seconds))
        except BaseException:
            server.close()
            raise
        return server

    def measure(self, number: int, cell: Cell, spec: ServerSpec, server: ServerProcess, rate: float) -> dict[str, Any]:
        """The figures of one run. EngineFailure if the server died or answered nothing as it must."""
        traffic = self._load(number, cell, spec, server, rate, self.settings.seconds)
        results = read_results(traffic, self.settings.lengths.new_tokens)
        found = figures(traffic, results, self.settings.goodput)
        if not found["finished"] and found["errors"]:
            raise EngineFailure(found["first_error"])
        return {**found, "rate": cell.level * rate} if cell.kind == "open" else found

    def _load(
        self, number: int, cell: Cell, spec: ServerSpec, server: ServerProcess, rate: float, seconds: float
    ) -> Traffic:
        seed = f"{self.settings.seed}/{number}"
        together = int(cell.level) if cell.kind == "closed" else TOGETHER
        prompts = Conversations(self.per_word, self.settings.lengths, seed, f"{seed}/{cell}", together)

        def request(number: int) -> bytes:
            body = spec.body(prompts.prompt(number), self.settings.lengths.new_tokens)
            return as_request("/v1/completions", body)

        async def load() -> Traffic:
            # Once it has answered this, it is awake again, and done with requests whose clients have left.
            probe = ask(server.port, as_request("/v1/completions", spec.body("Hello", 2)), Exchange(0.0))
            with suppress(TimeoutError):  # what is wrong will show in the measurement
                await asyncio.wait_for(probe, SETTLE_S)
            if cell.kind == "closed":
                return await closed_loop(server.port, request, together, seconds)
            return await open_loop(server.port, request, cell.level * rate, seconds, f"{seed}/{cell}")

        with server.running():
            traffic = asyncio.run(load())
            server.check()
        return traffic
