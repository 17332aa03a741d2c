"""What adapters cost: the same batch of requests with the base model alone, and with one or many distinct LoRA adapters.

Every engine is loaded once without adapters, for the base batch, and once per rank with adapters, because some engines are
slower with adapters even where no request uses one. Within a round, an engine serves all its batches one after another, so
that a batch and the base batch that it is compared with are seconds apart.
"""

import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from nanoinfer.bench.engines import EngineFailure, EngineSpec, Worker, parse_engine
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.metrics import same_requests, summary
from nanoinfer.bench.random_adapters import adapter_parameters, make_adapters
from nanoinfer.bench.session import reported
from nanoinfer.bench.settings import Settings, new_results
from nanoinfer.bench.workloads import NUM_REQUESTS, Job, Workload, describe, make_job

WORKLOAD = Workload("adapters", "many adapters in one batch", lambda rng: [(32, 64)] * NUM_REQUESTS)
WITHOUT = ("transformers", "openvino", "llamacpp")  # peers that read no adapters
FORMAT = "adapters"
Results = dict[str, Any]


@dataclass(frozen=True)
class Batch:
    """`adapters` distinct adapters of `rank`, which the requests have in turn. None of any rank is the base batch."""

    rank: int = 0
    adapters: int = 0

    def __str__(self) -> str:
        return f"rank {self.rank}, {self.adapters} adapter{'s'[: self.adapters > 1]}" if self.adapters else "base"


BASE = Batch()


def adapter_engines(compare: Sequence[str]) -> list[EngineSpec]:
    """nanoinfer and the engines of `--compare`. ValueError naming one that cannot be compared with, or is named twice."""
    engines = [parse_engine(text) for text in ("nanoinfer", *compare)]
    for spec in engines:
        if spec.file.stem in WITHOUT:
            instead = "; peft is transformers with adapters" if spec.file.stem == "transformers" else ""
            raise ValueError(f"--compare {spec.name}: reads no adapters here{instead}")
        if "adapters" in spec.options:
            raise ValueError(f"--compare {spec.name}: adapters are made by this command")
        if [other.name for other in engines].count(spec.name) > 1:
            raise ValueError(f"--compare {spec.name}: given twice (nanoinfer itself is always measured)")
    return engines


def measure_adapters(
    path: Path,
    dtype: str | None,
    settings: Settings,
    ranks: Sequence[int] = (8, 64),
    counts: Sequence[int] = (1, 4, 16),
    keep: Callable[[Results], None] = lambda results: None,
) -> Results:
    """Measure `settings.rounds` rounds per rank. `counts`: numbers of distinct adapters. `dtype` None: the checkpoint's.

    Random adapters for all projections are written to a temporary folder. `keep` is called with the results after every
    round. ValueError naming an option that is out of range, before anything is loaded.
    """
    for name, values, most in (("--ranks", ranks, 4096), ("--adapters", counts, NUM_REQUESTS)):
        for value in values:
            if not 1 <= value <= most:
                raise ValueError(f"{name} {value}: must be in 1..{most}")
    for name, value in (("--rounds", settings.rounds), ("--threads", settings.threads)):
        if value < 1:
            raise ValueError(f"{name} {value}: must be at least 1")
    checkpoint = Checkpoint.read(path)
    ranks, counts, dtype = sorted(set(ranks)), sorted(set(counts)), dtype or checkpoint.dtype
    batches = {rank: [BASE, *(Batch(rank, count) for count in counts)] for rank in ranks}
    results = {
        **new_results(settings),
        "format": FORMAT,
        "model": {**checkpoint.as_dict(), "dtype": dtype},
        "description": describe(WORKLOAD, checkpoint.context_len, 0.0),
        "adapter_parameters": {str(rank): adapter_parameters(path, rank) for rank in ranks},
        "batches": list(dict.fromkeys(str(batch) for rank in ranks for batch in batches[rank])),
        "engines": [{"name": spec.name, "ours": spec.is_ours} for spec in settings.engines],
        "runs": [],
    }
    del results["models"]
    total = len(settings.engines) * (1 + len(ranks) * (1 + settings.rounds * (1 + len(counts))))
    with ExitStack() as stack, tqdm(total=total, desc=f"bench adapters {checkpoint.name}", unit="run") as bar:
        loading = _Loading(checkpoint, dtype, settings, results, bar)
        base = loading.workers(stack, {}, BASE)
        for place, rank in enumerate(ranks):
            with tempfile.TemporaryDirectory() as folder, ExitStack() as of_rank:
                made = make_adapters(path, Path(folder), rank, counts[-1], dtype, settings.seed)
                adapters = {name: str(where) for name, where in made.items()}
                with_adapters = loading.workers(of_rank, adapters, batches[rank][-1])
                for number in range(place * settings.rounds, (place + 1) * settings.rounds):
                    seed = settings.seed + number
                    jobs = {batch: _job(batch, list(adapters), checkpoint, seed) for batch in batches[rank]}
                    results["runs"] += _one_round(number, settings.engines, jobs, base, with_adapters, bar)
                    keep(results)
    return results


def _job(batch: Batch, names: Sequence[str], checkpoint: Checkpoint, seed: int | str) -> Job:
    """The batch's requests. Prompts differ by batch and seed, or they would be cached."""
    workload = replace(WORKLOAD, name=f"{WORKLOAD.name}, {batch}, {seed}")
    job = make_job(workload, 0, checkpoint.context_len, checkpoint.vocab_size, 0.0)
    if not batch.adapters:
        return job
    requests = enumerate(job.requests)
    return replace(job, requests=[replace(each, adapter=names[i % batch.adapters]) for i, each in requests])


@dataclass(frozen=True)
class _Loading:
    """Loads engines. What they say about themselves goes into `results`."""

    checkpoint: Checkpoint
    dtype: str
    settings: Settings
    results: Results
    bar: "tqdm[Any]"

    def workers(self, stack: ExitStack, adapters: Mapping[str, str], batch: Batch) -> dict[str, Worker | str]:
        """Name → a worker that has loaded `adapters` and served `batch` once, so that first passes and compilation are not
        measured; or why there is none. The `stack` closes them."""
        found: dict[str, Worker | str] = {}
        threads = self.settings.threads
        for spec, about in zip(self.settings.engines, self.results["engines"], strict=True):
            what = f"{len(adapters)} adapters" if adapters else "no adapters"
            self.bar.set_postfix_str(f"loading {spec.name}, {what}")
            options = {**spec.options, "adapters": adapters} if adapters else spec.options
            command = replace(spec, options=options).command(self.checkpoint.path, self.dtype, threads)
            try:
                worker = stack.enter_context(Worker(command, spec.environment(threads), self.settings.timeout))
                worker.ask(_job(batch, list(adapters), self.checkpoint, "warm up").as_message())
                found[spec.name] = worker
                about["versions"] = worker.about["versions"]
            except EngineFailure as failure:
                found[spec.name] = f"{what}: {reported(spec, failure)}"
            self.bar.update(1)
        return found


def _one_round(
    number: int,
    engines: Sequence[EngineSpec],
    jobs: Mapping[Batch, Job],
    base: Mapping[str, Worker | str],
    with_adapters: Mapping[str, Worker | str],
    bar: "tqdm[Any]",
) -> list[dict[str, Any]]:
    """All batches on all engines in shuffled order; returns one dictionary per run."""
    runs, tokens = [], {}
    rng = random.Random(f"{WORKLOAD.name}/{number}")
    for spec in rng.sample(engines, len(engines)):
        for batch, job in rng.sample(list(jobs.items()), len(jobs)):
            bar.set_postfix_str(f"{batch}, {spec.name}")
            run: dict[str, Any] = {"round": number, "workload": str(batch), "engine": spec.name}
            worker = (with_adapters if batch.adapters else base)[spec.name]
            try:
                if isinstance(worker, str):
                    run["error"] = worker
                else:
                    answer = worker.ask(job.as_message())
                    run.update(summary(job.requests, answer))
                    tokens[spec.name, str(batch)] = answer["tokens"]
            except EngineFailure as failure:
                run["error"] = reported(spec, failure)
            runs.append(run)
            bar.update(1)
    ours = next(spec.name for spec in engines if spec.is_ours)
    for run in runs:
        first, other = (tokens.get((name, run["workload"])) for name in (ours, run["engine"]))
        if first is not None and other is not None:
            run["same_requests"] = [same_requests(first, other), len(other)]
    return runs
