"""`bench serve`: starts all servers, then puts each in turn under the same load, round by round, and sees what its clients
see."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from nanoinfer.bench.load import (
    WORDS,
    Conversations,
    Exchange,
    Lengths,
    Traffic,
    as_request,
    ask,
    closed_loop,
    open_loop,
)
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.processes import EngineFailure, ServerProcess, free_port
from nanoinfer.bench.report import by_round, cell, number_cell, page, ratio_cell, runs_of, table
from nanoinfer.bench.results import Keep, Results, new_results
from nanoinfer.bench.servers import MODEL, ServerSpec
from nanoinfer.bench.session import Settings, measure_rounds, reported

TOGETHER = 16  # conversations that take turns in an open loop
WARM_UP_S = 1.0  # per closed loop
SETTLE_S = 60.0
LEGEND = """\
Medians over rounds. ×: how many times as many tokens per second nanoinfer makes as this server, round by round.
≥: the percentile is a request without an answer. Client: the share of a core that the clients take."""
HEAD = (
    *("load", "server", "tok/s", "×", "req/s", "TTFT p50 ms", "p99 ms", "gap p50 ms", "p99 ms"),
    *("goodput /s", "429", "errors", "too late", "client"),
)


@dataclass(frozen=True)
class Goodput:
    """What a request must meet to count: milliseconds to the first token, and per token after it."""

    ttft_ms: float = 500.0
    tpot_ms: float = 100.0


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
    ValueError if none starts.
    """
    from transformers import AutoTokenizer

    checkpoint, tokenizer = Checkpoint.read(path), AutoTokenizer.from_pretrained(str(path))
    per_word = max(1.0, len(tokenizer.encode(" ".join(WORDS))) / len(WORDS))
    new_tokens, ours = loads.lengths.new_tokens, settings.engines[0].name

    def request(prompt: str, tokens: int = new_tokens) -> bytes:
        return as_request({"model": MODEL, "prompt": prompt, "max_tokens": tokens})

    def traffic(number: int, cell: Cell, server: ServerProcess, seconds: float) -> Traffic:
        seed = f"{settings.seed}/{number}"
        together = int(cell.level) if cell.kind == "closed" else TOGETHER
        prompts = Conversations(per_word, loads.lengths, seed, f"{seed}/{cell}", together)

        async def load() -> Traffic:
            # Once it has answered this, it is awake again, and done with requests whose clients have left.
            with suppress(TimeoutError):  # what is wrong will show in the measurement
                await asyncio.wait_for(ask(server.port, request("Hello", 2), Exchange(0.0)), SETTLE_S)
            if cell.kind == "closed":
                return await closed_loop(server.port, lambda i: request(prompts.prompt(i)), together, seconds)
            rate = cell.level * results["capacity"]
            return await open_loop(server.port, lambda i: request(prompts.prompt(i)), rate, seconds, f"{seed}/{cell}")

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
                traffic(-1, Cell("closed", clients), server, min(WARM_UP_S, loads.seconds))
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
        run = figures(traffic(number, cell, server, loads.seconds), new_tokens, loads.goodput)
        if not run["finished"] and run["errors"]:
            raise EngineFailure(run["first_error"])
        return {**run, "rate": cell.level * results["capacity"]} if cell.kind == "open" else run

    with ExitStack() as stack:
        servers = {spec.name: start(spec, stack) for spec in settings.engines}
        if all(isinstance(server, str) for server in servers.values()):
            raise ValueError("no server starts: " + "; ".join(f"{name}: {why}" for name, why in servers.items()))
        measure_rounds(results, loads.cells, settings, one_run, keep)
    return results


def problem(exchange: Exchange, new_tokens: int) -> str | None:
    """What is wrong with an answer that has been read; None if nothing is."""
    if exchange.error is not None:
        return exchange.error
    if not (exchange.has_reason and exchange.is_done):
        return "the answer ended without a finish reason and [DONE]"
    if exchange.tokens not in (None, new_tokens):
        return f"the answer has {exchange.tokens} tokens instead of {new_tokens}"
    return None if exchange.times else "the answer has no text"


def figures(traffic: Traffic, new_tokens: int, goodput: Goodput) -> dict[str, Any]:
    """Figures of the window in which requests began.

    Tokens and requests per second: those that came or ended in it. `ttft_ms`, `gap_ms` (between two pieces of text of an
    answer) and goodput: of all requests that began in it, which also have some time after it. A request without a first
    token has waited at least until the measurement was over: a percentile that falls on one is in `at_least`.
    """
    end, over = traffic.began + traffic.seconds, traffic.began + traffic.wall_s
    answered, unfinished, refused, problems = list[Exchange](), list[Exchange](), 0, list[str]()
    for each in traffic.exchanges:
        each.read()
        if each.status == 429:
            refused += 1
        elif each.ended is None and each.error is None:  # there was no time left for it
            unfinished.append(each)
        elif (wrong := problem(each, new_tokens)) is not None:
            problems.append(wrong)
        else:
            answered.append(each)
    served = [*answered, *unfinished]
    waits = [(1e3 * ((x.times[0] if x.times else over) - x.due), not x.times) for x in served]
    gaps = [(1e3 * (b - a), False) for x in served for a, b in pairwise(x.times)]

    def mean(name: str) -> float | None:
        values = [getattr(x, name) for x in served if getattr(x, name) is not None]
        return sum(values) / len(values) if values else None

    def tokens_until_end(x: Exchange) -> float:
        """Pieces that came later have their share of the tokens."""
        return x.output_tokens * sum(time <= end for time in x.times) / len(x.times) if x.times else 0.0

    def is_good(x: Exchange) -> bool:
        tpot = (x.times[-1] - x.times[0]) / max(1, x.output_tokens - 1)
        return 1e3 * (x.times[0] - x.due) <= goodput.ttft_ms and 1e3 * tpot <= goodput.tpot_ms

    return {
        "requests": len(traffic.exchanges),
        "finished": len(answered),
        "refused": refused,
        "unfinished": len(unfinished),
        "errors": len(problems),
        "first_error": problems[0] if problems else None,
        "tokens_s": sum(map(tokens_until_end, served)) / traffic.seconds,
        "requests_s": sum((x.ended or 0) <= end for x in answered) / traffic.seconds,
        "goodput": sum(map(is_good, answered)) / traffic.seconds,
        "ttft_ms": percentiles(waits),
        "gap_ms": percentiles(gaps),
        "prompt_tokens": mean("prompt_tokens"),
        "cached_tokens": mean("cached_tokens"),
        "client_share": traffic.client_s / traffic.wall_s,
    }


def percentiles(values: Sequence[tuple[float, bool]]) -> dict[str, Any] | None:
    """p50 and p99 (nearest rank) of values, each with whether it is only a lower bound. None without values."""
    if not values:
        return None
    ranked = sorted(values)
    chosen = {f"p{percent}": ranked[max(0, math.ceil(percent / 100 * len(ranked)) - 1)] for percent in (50, 99)}
    bounds = [name for name, (_, is_bound) in chosen.items() if is_bound]
    return {name: value for name, (value, _) in chosen.items()} | ({"at_least": bounds} if bounds else {})


def format_serve(results: Mapping[str, Any]) -> str:
    """The machine, a row for each load and server, and what failed."""
    settings = results["settings"]
    lengths, limits = settings["lengths"], settings["goodput"]
    about = (
        f"Conversations of three turns: a system prompt of about {lengths['system']} tokens, questions of "
        f"{lengths['question']}, answers of {lengths['answer']} in between; {lengths['new_tokens']} tokens asked for, for "
        f"{settings['seconds']:g} s. Goodput: TTFT up to {limits['ttft_ms']:g} ms, then {limits['tpot_ms']:g} ms per token."
    )
    found = [run for run in results["runs"] if run.get("cached_tokens") is not None]
    if found:
        prompt, cached = (median(run[key] for run in found) for key in ("prompt_tokens", "cached_tokens"))
        about += f" A prompt has {prompt:.0f} tokens, of which {cached:.0f} were cached."
    cells = Loads(settings["clients"], settings["shares"]).cells
    rows = [_row(results, each, name) for each in cells for name in settings["engines"]]
    wrong = [run for run in results["runs"] if run.get("errors")]
    errors = dict.fromkeys(f"- errors: {run['engine']}, {run['workload']}: {run['first_error']}" for run in wrong)
    return page(results, about, table(HEAD, rows), "\n".join(errors), legend=LEGEND)


def _row(results: Mapping[str, Any], load: Cell, server: str) -> list[str]:
    """A server's figures under a load."""
    title = f"{load.level:g} client{'s'[: load.level > 1]}"
    if load.kind == "open":
        title = f"{load.level:.0%}: {load.level * (results['capacity'] or 0):.1f}/s"
    good = [run for run in runs_of(results, str(load), server) if "error" not in run]
    if not good:
        return [title, server, cell(results, str(load), server, "tokens_s"), *[""] * (len(HEAD) - 3)]

    def time(key: str, part: str) -> str:
        found = [run[key] for run in good if run[key] is not None]
        bound = any(part in each.get("at_least", ()) for each in found)
        return "≥ " * bound + number_cell(median(each[part] for each in found)) if found else ""

    first = results["settings"]["engines"][0]
    ours, theirs = (by_round(results, str(load), name, "tokens_s") for name in (first, server))
    ratios = [ours[number] / theirs[number] for number in ours if theirs.get(number)]
    totals = [sum(run[key] for run in good) for key in ("refused", "errors", "unfinished")]
    return [
        *(title, server, cell(results, str(load), server, "tokens_s"), "" if server == first else ratio_cell(ratios)),
        cell(results, str(load), server, "requests_s"),
        *(time(key, part) for key in ("ttft_ms", "gap_ms") for part in ("p50", "p99")),
        cell(results, str(load), server, "goodput"),
        *(str(total) if total else "" for total in totals),
        f"{median(run['client_share'] for run in good):.0%}",
    ]
