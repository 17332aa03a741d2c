"""A measuring session: loads every engine once, then runs every workload of every round on each of them in turn."""

import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from nanoinfer.bench.engines import EngineFailure, EngineSpec, Worker
from nanoinfer.bench.load import Load
from nanoinfer.bench.machine import Checkpoint, read_bandwidth
from nanoinfer.bench.metrics import first_difference, same_requests, summary
from nanoinfer.bench.settings import Settings
from nanoinfer.bench.workloads import Job, Workload, default_gap, describe, make_job, shape, warm_up


def reported(spec: EngineSpec, failure: EngineFailure) -> str:
    """Print a failure in full at once. Returns the message to record, without the names of folders."""
    tqdm.write(f"{spec.name}: {failure}", file=sys.stderr)
    return without_folders(str(failure))


def without_folders(text: str) -> str:
    """Absolute paths shortened to their last part, because this machine's folders mean nothing elsewhere."""
    return re.sub(r"(?<![\w.~/:])(?:/[^/\s'\",:=]+)+/([^/\s'\",:=]+)", r"\1", text)


def measure_model(
    path: Path,
    dtype: str | None,
    settings: Settings,
    earlier: Mapping[str, Any] | None = None,
    keep: Callable[[dict[str, Any]], None] = lambda model: None,
) -> dict[str, Any]:
    """All runs of one model in one dtype (None: the checkpoint's), including failed runs, as an entry of `models`.

    `earlier`: the entry of a run that was stopped; its rounds are not measured again. `keep` is called with the entry after
    every workload of every round. ValueError if the checkpoint or an engine's version is another than in `earlier`.
    """
    checkpoint = Checkpoint.read(path)
    for name, value in checkpoint.as_dict().items():
        if earlier is not None and name != "dtype" and earlier.get(name) != value:
            raise ValueError(f"{path}: {name} is {value}, but {earlier.get(name)} where the run is to be continued")
    dtype = dtype or checkpoint.dtype
    gap = default_gap(checkpoint.parameters) if settings.gap is None else settings.gap
    result: dict[str, Any] = {
        **checkpoint.as_dict(),
        "dtype": dtype,
        "decode_bytes": checkpoint.decode_bytes(dtype),
        "gap_s": gap,
        "workloads": {
            w.name: _workload_facts(w, checkpoint.context_len, gap, settings.busy) for w in settings.workloads
        },
        "bandwidth_gb_s": [],
        "engines": [],
        "runs": [],
        **(earlier or {}),
    }
    done = {(run["round"], run["workload"]) for run in result["runs"]}
    blocks = [
        (number, workload, [e for e in settings.engines if number == 0 or e.name not in settings.once])
        for number in range(settings.rounds)
        for workload in settings.workloads
        if (number, workload.name) not in done
    ]
    if settings.rounds and not blocks:
        return result
    needed = [spec for spec in settings.engines if any(spec in block[2] for block in blocks)]
    total = len(needed) + sum(len(block[2]) for block in blocks)

    def bandwidth_now() -> float:
        return read_bandwidth(settings.threads, settings.bandwidth_bytes)

    with ExitStack() as stack, tqdm(total=total, desc=f"bench {checkpoint.name} {dtype}", unit="run") as bar:
        result["bandwidth_gb_s"].append(bandwidth_now())
        workers = {}
        for spec in needed:
            bar.set_postfix_str(f"loading {spec.name}")
            about, worker = _start(spec, checkpoint, dtype, settings)
            if worker is not None:
                workers[spec.name] = stack.enter_context(worker)
            _describe_engine(result["engines"], about)
            bar.update(1)
        for number, workload, taking_part in blocks:
            seed = settings.seed + number
            job = make_job(workload, seed, checkpoint.context_len, checkpoint.vocab_size, gap)
            order = list(taking_part)
            random.Random(f"{workload.name}/{seed}").shuffle(order)
            busy = settings.busy if workload.busy else 0
            result["runs"] += _one_round(number, workload, job, order, workers, bandwidth_now, bar, busy)
            keep(result)
        result["bandwidth_gb_s"].append(bandwidth_now())
    keep(result)
    return result


def _describe_engine(engines: list[dict[str, Any]], about: dict[str, Any]) -> None:
    """Add `about` to `engines`, or replace the description that an earlier run left."""
    place = next((i for i, other in enumerate(engines) if other["name"] == about["name"]), None)
    if place is None:
        engines.append(about)
        return
    then, now = engines[place].get("versions"), about.get("versions")
    if then and now and then != now:
        words = [" ".join(f"{name} {version}" for name, version in each.items()) for each in (now, then)]
        raise ValueError(f"--resume: {about['name']} is {words[0]} now, but the earlier rounds ran with {words[1]}")
    engines[place] = about


def _workload_facts(workload: Workload, context_len: int, gap: float, busy: int) -> dict[str, Any]:
    shared, lengths, scaled = shape(workload, context_len)
    facts = {"shared": shared, "lengths": lengths, "scaled": scaled}
    return {"description": describe(workload, context_len, gap, busy), **facts}


def _start(
    spec: EngineSpec, checkpoint: Checkpoint, dtype: str, settings: Settings
) -> tuple[dict[str, Any], Worker | None]:
    """Load an engine and warm it up. Returns its description and its worker, which is None if it failed."""
    about: dict[str, Any] = {
        "name": spec.name,
        "ours": spec.is_ours,
        "options": dict(spec.options),
        "weights": spec.weights,
        "decode_bytes": checkpoint.decode_bytes(dtype, spec.weights),
    }
    worker = None
    try:
        if spec.converts and dtype != checkpoint.dtype:
            raise EngineFailure(f"dtype {dtype}: this engine reads a converted file, whose dtype is {checkpoint.dtype}")
        command, env = spec.command(checkpoint.path, dtype, settings.threads), spec.environment(settings.threads)
        worker = Worker(command, env, settings.timeout)
        about.update(worker.about)
        worker.ask(warm_up(checkpoint.context_len, checkpoint.vocab_size).as_message())
    except EngineFailure as failure:
        about["error"] = reported(spec, failure)
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
    busy: int,
) -> list[dict[str, Any]]:
    """Run one workload on all engines, beside `busy` other processes; returns one dictionary per run, in their order."""
    runs, tokens = [], {}
    for place, spec in enumerate(order):
        bar.set_postfix_str(f"{workload.name}, {spec.name}")
        run: dict[str, Any] = {"round": number, "workload": workload.name, "engine": spec.name, "place": place}
        if busy:
            run["busy"] = busy
        worker = workers.get(spec.name)
        if worker is not None and workload.primed and not worker.about["prefix_cache"]:
            run["skipped"] = "has no prefix cache"
        elif worker is not None:
            try:
                bandwidth = [bandwidth_now()] if workload.bound_by_memory else []
                with Load(busy) if busy else nullcontext():
                    answer = worker.ask(job.as_message())
                tokens[spec.name] = answer["tokens"]
                run.update(summary(job.requests, answer))
                if workload.bound_by_memory:  # on a shared machine the bandwidth changes from minute to minute
                    run["bandwidth_gb_s"] = [*bandwidth, bandwidth_now()]
            except EngineFailure as failure:
                run["error"] = reported(spec, failure)
        else:
            run["error"] = "not loaded"
        runs.append(run)
        bar.update(1)
    kinds = {spec.name: spec.weights for spec in order}
    for run in runs:
        ours = next((spec.name for spec in _listed_first(order, kinds[run["engine"]]) if spec.name in tokens), None)
        if ours is not None and run["engine"] in tokens:
            others = tokens[run["engine"]]
            run["same_requests"] = [same_requests(tokens[ours], others), len(others)]
            run["first_difference"] = first_difference(tokens[ours], others)
    return runs


def _listed_first(order: Sequence[EngineSpec], weights: str | None) -> list[EngineSpec]:
    """nanoinfer's engines with this kind of weights, the one with the fewest options first. The others' tokens are compared
    with its tokens."""
    ours = [spec for spec in order if spec.is_ours and spec.weights == weights]
    return sorted(ours, key=lambda spec: len(spec.options))
