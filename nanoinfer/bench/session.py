"""A session: every round takes every case through all engines, one after another in shuffled order.

`measure_model` is `bench run`: engines that are loaded once, and workloads. Other measurements bring their own cases.
"""

import hashlib
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

from tqdm.auto import tqdm

from nanoinfer.bench.engines import CONVERTED, EngineSpec
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.processes import EngineFailure, Worker
from nanoinfer.bench.results import Keep, Results, without_folders
from nanoinfer.bench.texts import TextWorkload
from nanoinfer.bench.workloads import Job, Request, Workload, warm_up
from nanoinfer.llm import LLM


@dataclass(frozen=True)
class Settings:
    """What all measurements have in common. `timeout`: how many seconds an engine may take for one answer."""

    engines: Sequence[Any]  # EngineSpec, or ServerSpec
    rounds: int = 3
    threads: int = 1
    seed: int = 0
    timeout: float = 600.0

    def as_dict(self) -> dict[str, Any]:
        """What must be the same when a stopped run continues (except `rounds`)."""
        engines = [engine.name for engine in self.engines]
        return {"engines": engines, "rounds": self.rounds, "threads": self.threads, "seed": self.seed}


def measure_rounds(
    results: Results,
    cases: Sequence[Any],
    settings: Settings,
    one_run: Callable[[int, Any, Any], dict[str, Any]],
    keep: Keep = lambda results: None,
) -> None:
    """Add to `results["runs"]` what it does not have yet: a dictionary of `one_run(round, case, engine)` per round, case
    and engine, failed ones included. `keep` is called after every case of every round.

    `tokens` of a run are compared with those of nanoinfer, as it is listed first with the same kind of weights.
    """
    done = {(run["round"], run["workload"]) for run in results["runs"]}
    blocks = [(number, case) for number in range(settings.rounds) for case in cases if (number, str(case)) not in done]
    with tqdm(total=len(blocks) * len(settings.engines), desc="bench", unit="run") as bar:
        for number, case in blocks:
            runs, tokens = [], {}
            rng = random.Random(f"{case}/{settings.seed + number}")
            for spec in rng.sample(settings.engines, len(settings.engines)):
                bar.set_postfix_str(f"{case}, {spec.name}")
                run: dict[str, Any] = {"round": number, "workload": str(case), "engine": spec.name}
                try:
                    run |= one_run(number, case, spec)
                    tokens[spec.name] = run.pop("tokens", None)
                except EngineFailure as failure:
                    run["error"] = reported(spec, failure)
                runs.append(run)
                bar.update(1)
            kinds = {spec.name: spec.weights for spec in settings.engines}
            for run in runs:
                same_kind = [e.name for e in settings.engines if e.is_ours and e.weights == kinds[run["engine"]]]
                ours, others = (tokens.get(name) for name in ("".join(same_kind[:1]), run["engine"]))
                if ours and others:
                    run["same_requests"] = [sum(a == b for a, b in zip(ours, others, strict=True)), len(others)]
            results["runs"] += runs
            keep(results)


def reported(spec: Any, failure: EngineFailure) -> str:
    """Print a failure in full at once. Returns the message to record, without the names of folders."""
    tqdm.write(f"{spec.name}: {failure}", file=sys.stderr)
    return without_folders(str(failure))


def measure_model(
    path: Path,
    dtype: str | None,
    workloads: Sequence[Workload | TextWorkload],
    settings: Settings,
    earlier: Results | None = None,
    keep: Keep = lambda model: None,
) -> Results:
    """All runs of one model in one dtype (None: the checkpoint's), including failed runs, as an entry of `models`.

    `earlier`: the entry of a run that was stopped; its rounds are not measured again. `keep` is called with the entry after
    every workload of every round. ValueError if an engine's version is another than in `earlier`.
    """
    checkpoint = Checkpoint.read(path)
    dtype = dtype or checkpoint.dtype
    described = {str(each): {"description": each.describe(checkpoint)} for each in workloads}
    fresh = {**checkpoint.as_dict(), "dtype": dtype, "workloads": described, "runs": []}
    results = {**fresh, "engines": [], **(earlier or {})}
    if len({(run["round"], run["workload"]) for run in results["runs"]}) >= settings.rounds * len(workloads):
        return results
    versions = {each["name"]: each.get("versions") for each in results["engines"]}
    results["engines"] = []
    texts = [each for each in workloads if isinstance(each, TextWorkload)]
    writer = LLM(path, dtype=dtype) if texts else None
    if any(each.name == "json" for each in texts):  # grammars need one
        specs = [spec.with_options(tokenizer=True) if spec.is_ours else spec for spec in settings.engines]
        settings = replace(settings, engines=specs)

    def make_job(workload: Workload | TextWorkload, seed: int) -> Job:
        if isinstance(workload, Workload):
            return workload.make_job(checkpoint, seed)
        assert writer is not None
        return workload.make_job(writer, seed)

    def load(spec: EngineSpec) -> Worker | str:
        """Its process, which has served a few requests; the reason if it fails. Its description goes into `results`."""
        about: dict[str, Any] = {"name": spec.name, "ours": spec.is_ours, "weights": spec.weights}
        about["options"] = dict(spec.options)
        loaded: Worker | str
        try:
            if spec.file.stem in CONVERTED and dtype != checkpoint.dtype:
                raise EngineFailure(f"dtype {dtype}: this engine reads a converted file, which is {checkpoint.dtype}")
            loaded = stack.enter_context(spec.start(checkpoint.path, dtype, settings.threads, settings.timeout))
            about |= loaded.about
            loaded.ask(asdict(warm_up(checkpoint)))
            for each in texts if spec.is_ours else ():  # it learns what drafts bring, and passes cost
                loaded.ask(asdict(make_job(each, -1)))
        except EngineFailure as failure:
            loaded = about["error"] = reported(spec, failure)
        then, now = versions.get(spec.name), about.get("versions")
        if then and now and then != now:
            raise ValueError(f"--resume: {spec.name} is {now} now, but the earlier rounds ran with {then}")
        results["engines"].append(about)
        return loaded

    def one_run(number: int, workload: Workload | TextWorkload, spec: EngineSpec) -> dict[str, Any]:
        worker, job = workers[spec.name], make_job(workload, settings.seed + number)
        if isinstance(worker, str):
            raise EngineFailure("not loaded")
        if isinstance(workload, Workload) and workload.primed and not worker.about["prefix_cache"]:
            return {"skipped": "has no prefix cache"}
        if not spec.is_ours and any(request.sampling for request in job.requests):
            return {"skipped": "is not asked for JSON or samples"}
        return summary(job.requests, worker.ask(asdict(job)))

    with ExitStack() as stack:
        workers = {spec.name: load(spec) for spec in settings.engines}
        measure_rounds(results, workloads, settings, one_run, keep)
    keep(results)
    return results


def summary(requests: Sequence[Request], answer: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one run.

    `ttft_s`: seconds from arrival to the first token, median over requests. `tpot_ms`: milliseconds between two tokens
    of a request, percentiles over all such gaps of all requests. `ms_per_token`: the mean gap of a request, median over
    requests. The last two are None when no request generates a second token.
    """
    times, wall, cached = answer["times"], answer["wall_s"], answer["cached_tokens"]
    gaps = [[1000 * (b - a) for a, b in pairwise(values)] for values in times if len(values) > 1]
    every = [gap for some in gaps for gap in some]
    centiles = quantiles(every, n=100, method="inclusive") if len(every) > 1 else every * 99
    first = [round(values[0] - request.arrival, 6) for request, values in zip(requests, times, strict=True)]
    return {
        "wall_s": wall,
        "output_tok_s": sum(map(len, answer["tokens"])) / wall,
        "input_tok_s": sum(len(request.prompt) for request in requests) / wall,
        "ttft_s": median(first),
        "ttft_each_s": first,
        "ms_per_token": median(map(mean, gaps)) if gaps else None,
        "tpot_ms": {"p50": centiles[49], "p99": centiles[98]} if every else None,
        "peak_memory_mb": answer["peak_memory_mb"],
        "cached_tokens": None if None in cached else sum(cached),
        "digest": hashlib.sha256(json.dumps(answer["tokens"]).encode()).hexdigest()[:16],
        "tokens": answer["tokens"],
    }
