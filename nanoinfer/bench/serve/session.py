"""A session of `bench serve`: starts all servers, then puts each in turn under the same load, round by round."""

import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tqdm.auto import tqdm

from nanoinfer.bench.engines import EngineFailure
from nanoinfer.bench.frozen_heap import frozen_heap
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.serve.client import as_request
from nanoinfer.bench.serve.conversations import Conversations, Writer
from nanoinfer.bench.serve.figures import figures, read_results
from nanoinfer.bench.serve.process import ServerProcess, free_port
from nanoinfer.bench.serve.servers import ServerSpec
from nanoinfer.bench.serve.settings import Cell, Results, ServeSettings
from nanoinfer.bench.serve.stalls import ATTEMPTS, STALL_S
from nanoinfer.bench.serve.traffic import Requests, Traffic, closed_loop, open_loop, settle
from nanoinfer.bench.session import without_folders
from nanoinfer.model.loader import resolve_model_path

TOGETHER = 16  # conversations that take turns in an open loop
WARM_UP_S = 1.0  # per closed loop


def measure_serve(
    settings: ServeSettings, results: Results, keep: Callable[[Results], None] = lambda results: None
) -> Results:
    """Measure what `results` does not have yet, and add it. `keep` is called with them after every run.

    A server that does not start, dies, or answers nothing is reported and recorded; the others are measured all the same.
    EngineFailure if none starts.
    """
    session = Session(settings)
    done = {(run["round"], run["load"], run["server"]) for run in results["runs"]}
    missing = [
        (number, cell, spec)
        for number in range(settings.rounds)
        for cell in settings.cells
        for spec in _shuffled(settings, number, cell)
        if (number, str(cell), spec.name) not in done
    ]
    if not missing:
        return results
    needed = [spec for spec in settings.servers if any(spec is each[2] for each in missing)]
    with ExitStack() as stack, tqdm(total=len(missing), desc="bench serve", unit="run") as bar:
        servers: dict[str, ServerProcess] = {}
        for spec in needed:
            bar.set_postfix_str(f"starting {spec.name}")
            try:
                server = session.start(spec)
            except EngineFailure as failure:
                results["failures"][spec.name] = reported(spec, failure)
                continue
            stack.callback(server.close)
            results["failures"].pop(spec.name, None)
            servers[spec.name] = server
        if not servers:
            raise EngineFailure("; ".join(f"{name}: {why}" for name, why in results["failures"].items()))
        stack.enter_context(frozen_heap())
        for number, cell, spec in missing:
            bar.set_postfix_str(f"{cell}, {spec.name}")
            if cell.kind == "open" and results["capacity"] is None:
                results["capacity"] = capacity(results)
            run: dict[str, Any] = {"round": number, "load": str(cell), "server": spec.name}
            try:
                if spec.name not in servers:
                    raise EngineFailure("did not start")
                if cell.kind == "open" and not results["capacity"]:
                    raise EngineFailure(f"no rate is known: {settings.servers[0].name} served nothing in a closed loop")
                run |= session.measure(number, cell, spec, servers[spec.name], results["capacity"])
            except EngineFailure as failure:
                run["error"] = reported(spec, failure) if spec.name in servers else str(failure)
            results["runs"].append(run)
            keep(results)
            bar.update(1)
    return results


def capacity(results: Results) -> float:
    """The most requests per second that the first server served in a closed loop; 0 if it served none."""
    ours = results["settings"]["servers"][0]
    speeds = [run["requests_s"] for run in results["runs"] if run["server"] == ours and "requests_s" in run]
    return max(speeds, default=0.0)


def reported(spec: ServerSpec, failure: EngineFailure) -> str:
    """Print a failure in full at once. Returns the message to record, without the names of folders."""
    tqdm.write(f"{spec.name}: {failure}", file=sys.stderr)
    return without_folders(str(failure))


@dataclass
class Session:
    """What all runs need: the model's tokenizer, to write prompts, and its end token."""

    settings: ServeSettings

    def __post_init__(self) -> None:
        from transformers import AutoTokenizer

        path = resolve_model_path(self.settings.model)
        self.checkpoint = Checkpoint.read(path)
        tokenizer = AutoTokenizer.from_pretrained(str(path))
        self.eos_id: int | None = tokenizer.eos_token_id
        self.writer = Writer(lambda text: len(tokenizer.encode(text)), self.settings.lengths)

    def start(self, spec: ServerSpec) -> ServerProcess:
        """Start a server and warm it up. EngineFailure if it does not start or answer."""
        settings, port = self.settings, free_port()
        command = spec.command(self.checkpoint, settings.threads, port)
        server = ServerProcess(command, spec.environment(settings.threads), port, settings.timeout)
        try:
            for cell in settings.cells:
                if cell.kind == "closed":
                    self._load(-1, cell, spec, server, None, min(WARM_UP_S, settings.seconds))
        except BaseException:
            server.close()
            raise
        return server

    def measure(
        self, number: int, cell: Cell, spec: ServerSpec, server: ServerProcess, rate: float | None
    ) -> dict[str, Any]:
        """The figures of one run. EngineFailure if the server died or answered nothing as it must."""
        for attempt in range(1, ATTEMPTS + 1):
            traffic = self._load(number, cell, spec, server, rate, self.settings.seconds, attempt)
            if traffic.stall_s < STALL_S:
                break
        results = read_results(traffic, self.settings.lengths.new_tokens)
        found = figures(traffic, results, self.settings.goodput)
        if not found["finished"] and found["errors"]:
            raise EngineFailure(found["first_error"])
        if cell.kind == "open":
            found["rate"] = cell.level * (rate or 0)
        if attempt > 1:
            found["attempts"] = attempt
        return found

    def _load(
        self,
        number: int,
        cell: Cell,
        spec: ServerSpec,
        server: ServerProcess,
        rate: float | None,
        seconds: float,
        attempt: int = 1,
    ) -> Traffic:
        seed = f"{self.settings.seed}/{number}"
        requests = self._requests(spec, cell, seed, f"{seed}/{cell}/{attempt}")
        probe = as_request("/v1/completions", spec.body("Hello", 2, self.eos_id))

        async def load() -> Traffic:
            await settle(server.port, probe)
            if cell.kind == "closed":
                return await closed_loop(server.port, requests, int(cell.level), seconds)
            return await open_loop(server.port, requests, cell.level * (rate or 0), seconds, f"{seed}/{cell}")

        with server:
            traffic = asyncio.run(load())
            server.check()
        return traffic

    def _requests(self, spec: ServerSpec, cell: Cell, shared_seed: str, seed: str) -> Requests:
        together = int(cell.level) if cell.kind == "closed" else TOGETHER
        prompts = Conversations(self.writer, shared_seed, seed, together)
        new_tokens = self.settings.lengths.new_tokens

        def request(number: int) -> bytes:
            return as_request("/v1/completions", spec.body(prompts.prompt(number), new_tokens, self.eos_id))

        return request


def _shuffled(settings: ServeSettings, number: int, cell: Cell) -> Sequence[ServerSpec]:
    """All servers, in another order for each load."""
    order = list(settings.servers)
    random.Random(f"{settings.seed}/{number}/{cell}").shuffle(order)
    return order
