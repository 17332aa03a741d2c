"""A session: every round takes every case through all engines, one after another in shuffled order.

`measure_model` is `bench run`: engines that are loaded once, and workloads. Other measurements bring their own cases.
"""

import random
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from nanoinfer.bench.engines import CONVERTED, EngineSpec
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.metrics import summary
from nanoinfer.bench.processes import EngineFailure, Worker
from nanoinfer.bench.results import Keep, Results, without_folders
from nanoinfer.bench.texts import TextWorkload
from nanoinfer.bench.workloads import Job, Workload, default_gap, describe, make_job, shape, warm_up
from nanoinfer.frontends.llm import LLM


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
    every workload of every round. ValueError if the checkpoint or an engine's version is another than in `earlier`.
    """
    checkpoint = Checkpoint.read(path)
    for name, value in checkpoint.as_dict().items():
        if earlier is not None and name != "dtype" and earlier.get(name) != value:
            raise ValueError(f"{path}: {name} is {value}, but {earlier.get(name)} where the run is to be continued")
    dtype, gap = dtype or checkpoint.dtype, default_gap(checkpoint.parameters)
    results: Results = {
        **checkpoint.as_dict(),
        "dtype": dtype,
        "gap_s": gap,
        "workloads": {str(each): _facts(each, checkpoint.context_len, gap) for each in workloads},
        "engines": [],
        "runs": [],
        **(earlier or {}),
    }
    if len({(run["round"], run["workload"]) for run in results["runs"]}) >= settings.rounds * len(workloads):
        return results
    texts = [each for each in workloads if isinstance(each, TextWorkload)]
    writer = LLM(path, dtype=dtype) if texts else None
    if texts:
        specs = [spec.with_options(tokenizer=True) if spec.is_ours else spec for spec in settings.engines]
        settings = replace(settings, engines=specs)

    def one_run(number: int, workload: Workload | TextWorkload, spec: EngineSpec) -> dict[str, Any]:
        seed, worker = settings.seed + number, workers[spec.name]
        if isinstance(worker, str):
            raise EngineFailure("not loaded")
        if isinstance(workload, TextWorkload):
            assert writer is not None
            job = workload.make_job(writer, seed)
            if not spec.is_ours and any(request.sampling for request in job.requests):
                return {"skipped": "is not asked for JSON or samples"}
            return summary(job.requests, worker.ask(job.as_message()))
        job = make_job(workload, seed, checkpoint.context_len, checkpoint.vocab_size, gap)
        if workload.primed and not worker.about["prefix_cache"]:
            return {"skipped": "has no prefix cache"}
        return summary(job.requests, worker.ask(job.as_message()))

    with ExitStack() as stack:
        first = [warm_up(checkpoint.context_len, checkpoint.vocab_size)]
        learning = [each.make_job(writer, -1) for each in texts] if writer else []  # what drafts bring, and passes cost
        workers = {
            spec.name: _load(spec, checkpoint, dtype, settings, results, stack, first + learning * spec.is_ours)
            for spec in settings.engines
        }
        measure_rounds(results, workloads, settings, one_run, keep)
    keep(results)
    return results


def _facts(workload: Workload | TextWorkload, context_len: int, gap: float) -> dict[str, Any]:
    if isinstance(workload, TextWorkload):
        return {"description": f"texts, {workload.together} at a time"}
    shared, lengths, scaled = shape(workload, context_len)
    text = describe(workload, context_len, gap)
    return {"description": text, "shared": shared, "lengths": lengths, "scaled": scaled}


def _load(
    spec: EngineSpec,
    checkpoint: Checkpoint,
    dtype: str,
    settings: Settings,
    results: Results,
    stack: ExitStack,
    warm: Sequence[Job],
) -> Worker | str:
    """Load an engine and have it serve what is `warm`; the `stack` closes it. Its description goes into
    `results`. Returns the reason if it failed."""
    about: dict[str, Any] = {
        "name": spec.name,
        "ours": spec.is_ours,
        "options": dict(spec.options),
        "weights": spec.weights,
    }
    loaded: Worker | str
    try:
        if spec.file.stem in CONVERTED and dtype != checkpoint.dtype:
            raise EngineFailure(f"dtype {dtype}: this engine reads a converted file, whose dtype is {checkpoint.dtype}")
        loaded = stack.enter_context(spec.start(checkpoint.path, dtype, settings.threads, settings.timeout))
        about.update(loaded.about)
        for job in warm:
            loaded.ask(job.as_message())
    except EngineFailure as failure:
        loaded = about["error"] = reported(spec, failure)
    before: dict[str, Any] = next((each for each in results["engines"] if each["name"] == spec.name), {})
    then, now = before.get("versions"), about.get("versions")
    if then and now and then != now:
        raise ValueError(f"--resume: {spec.name} is {now} now, but the earlier rounds ran with {then}")
    results["engines"] = [each for each in results["engines"] if each is not before] + [about]
    return loaded
