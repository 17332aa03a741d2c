"""A measuring session: loads every engine once, then runs every workload of every round on each of them in turn."""

import datetime
import random
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from nanoinfer.bench.engines import EngineFailure, EngineSpec, Worker
from nanoinfer.bench.machine import Checkpoint, describe_machine, read_bandwidth
from nanoinfer.bench.metrics import first_difference, same_requests, summary
from nanoinfer.bench.workloads import Job, Workload, default_gap, describe, make_job, shape, warm_up

FORMAT = 1


@dataclass(frozen=True)
class Settings:
    """What to measure. Engines named in `once` run only in the first of the `rounds`.

    `gap`: mean seconds between staggered arrivals; None: depends on the model's size. `timeout`: how many seconds an engine
    may take for one answer.
    """

    workloads: Sequence[Workload]
    engines: Sequence[EngineSpec]
    rounds: int = 3
    once: Collection[str] = ()
    threads: int = 1
    seed: int = 0
    gap: float | None = None
    timeout: float = 600.0
    bandwidth_bytes: int = 2**30  # read to measure the memory's bandwidth; far larger than any cache


def new_results(settings: Settings) -> dict[str, Any]:
    """A results file without measurements; each measured model is appended to its `models`."""
    return {
        "format": FORMAT,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "nanoinfer", *map(_without_folders, sys.argv[1:])]),
        "machine": describe_machine(),
        "threads": settings.threads,
        "rounds": settings.rounds,
        "seed": settings.seed,
        "models": [],
    }


def _without_folders(argument: str) -> str:
    """Absolute paths shortened to their last part, because this machine's folders mean nothing elsewhere."""
    return re.sub(r"(?<![\w.~])/[^=,]*/([^/=,]+)", r"\1", argument)


def _reported(spec: EngineSpec, failure: EngineFailure) -> str:
    """Print a failure in full at once. Returns the message to record, without the names of folders."""
    tqdm.write(f"{spec.name}: {failure}", file=sys.stderr)
    return re.sub(r"(?<![\w.~/:])(?:/[^/\s'\",:=]+)+/([^/\s'\",:=]+)", r"\1", str(failure))


def measure_model(path: Path, dtype: str | None, settings: Settings) -> dict[str, Any]:
    """All runs of one model in one dtype (None: the checkpoint's), including failed runs, as an entry of `models`."""
    checkpoint = Checkpoint.read(path)
    dtype = dtype or checkpoint.dtype
    gap = default_gap(checkpoint.parameters) if settings.gap is None else settings.gap
    result = {
        **checkpoint.as_dict(),
        "dtype": dtype,
        "decode_bytes": checkpoint.decode_bytes(dtype),
        "gap_s": gap,
        "workloads": {w.name: _workload_facts(w, checkpoint.context_len, gap) for w in settings.workloads},
        "bandwidth_gb_s": [],
        "engines": [],
        "runs": [],
    }
    engines = settings.engines if settings.rounds else ()  # without rounds no engine is needed
    rounds = [[e for e in engines if n == 0 or e.name not in settings.once] for n in range(settings.rounds)]
    total = len(engines) + sum(map(len, rounds)) * len(settings.workloads)

    def bandwidth_now() -> float:
        return read_bandwidth(settings.threads, settings.bandwidth_bytes)

    with ExitStack() as stack, tqdm(total=total, desc=f"bench {checkpoint.name} {dtype}", unit="run") as bar:
        result["bandwidth_gb_s"].append(bandwidth_now())
        workers = {}
        for spec in engines:
            bar.set_postfix_str(f"loading {spec.name}")
            about, worker = _start(spec, checkpoint, dtype, settings)
            if worker is not None:
                workers[spec.name] = stack.enter_context(worker)
            result["engines"].append(about)
            bar.update(1)
        for number, taking_part in enumerate(rounds):
            for workload in settings.workloads:
                seed = settings.seed + number
                job = make_job(workload, seed, checkpoint.context_len, checkpoint.vocab_size, gap)
                order = list(taking_part)
                random.Random(f"{workload.name}/{seed}").shuffle(order)
                result["runs"] += _one_round(number, workload, job, order, workers, bandwidth_now, bar)
        result["bandwidth_gb_s"].append(bandwidth_now())
    return result


def _workload_facts(workload: Workload, context_len: int, gap: float) -> dict[str, Any]:
    shared, lengths, scaled = shape(workload, context_len)
    facts = {"shared": shared, "lengths": lengths, "scaled": scaled}
    return {"description": describe(workload, context_len, gap), **facts}


def _start(
    spec: EngineSpec, checkpoint: Checkpoint, dtype: str, settings: Settings
) -> tuple[dict[str, Any], Worker | None]:
    """Load an engine and warm it up. Returns its description and its worker, which is None if it failed."""
    about: dict[str, Any] = {"name": spec.name, "ours": spec.is_ours, "options": dict(spec.options)}
    worker = None
    try:
        if spec.converts and dtype != checkpoint.dtype:
            raise EngineFailure(f"dtype {dtype}: this engine reads a converted file, whose dtype is {checkpoint.dtype}")
        command, env = spec.command(checkpoint.path, dtype, settings.threads), spec.environment(settings.threads)
        worker = Worker(command, env, settings.timeout)
        about.update(worker.about)
        worker.ask(warm_up(checkpoint.context_len, checkpoint.vocab_size).as_message())
    except EngineFailure as failure:
        about["error"] = _reported(spec, failure)
        if worker is not None:
            worker.close()
        return about, None
    except BaseException:  # interrupted: only this frame knows the worker, which would otherwise stay stopped forever
        if worker is not None:
            worker.close()
        raise
    return about, worker


def _one_round(
    number: int,
    workload: Workload,
    job: Job,
    order: Sequence[EngineSpec],
    workers: Mapping[str, Worker],
    bandwidth_now: Callable[[], float],
    bar: "tqdm[Any]",
) -> list[dict[str, Any]]:
    """Run one workload on all engines; returns one dictionary per run, in the order of the runs."""
    runs, tokens = [], {}
    for place, spec in enumerate(order):
        bar.set_postfix_str(f"{workload.name}, {spec.name}")
        run: dict[str, Any] = {"round": number, "workload": workload.name, "engine": spec.name, "place": place}
        worker = workers.get(spec.name)
        if worker is not None and workload.primed and not worker.about["prefix_cache"]:
            run["skipped"] = "has no prefix cache"
        elif worker is not None:
            try:
                bandwidth = [bandwidth_now()] if workload.bound_by_memory else []
                answer = worker.ask(job.as_message())
                tokens[spec.name] = answer["tokens"]
                run.update(summary(job.requests, answer))
                if workload.bound_by_memory:  # on a shared machine the bandwidth changes from minute to minute
                    run["bandwidth_gb_s"] = [*bandwidth, bandwidth_now()]
            except EngineFailure as failure:
                run["error"] = _reported(spec, failure)
        else:
            run["error"] = "not loaded"
        runs.append(run)
        bar.update(1)
    ours = next((spec.name for spec in _listed_first(order) if spec.name in tokens), None)
    for run in runs:
        if ours is not None and run["engine"] in tokens:
            others = tokens[run["engine"]]
            run["same_requests"] = [same_requests(tokens[ours], others), len(others)]
            run["first_difference"] = first_difference(tokens[ours], others)
    return runs


def _listed_first(order: Sequence[EngineSpec]) -> list[EngineSpec]:
    """nanoinfer's engines, the one without options first. The others' tokens are compared with its tokens."""
    return sorted((spec for spec in order if spec.is_ours), key=lambda spec: len(spec.options))
