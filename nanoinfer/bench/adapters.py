"""What adapters cost: the same batch of requests with the base model alone, and with one or many distinct LoRA adapters.

Every engine is loaded once per rank without adapters, for the base batch, and once with adapters, because some engines are
slower with adapters even where no request uses one. The adapters are random, for all projections, in PEFT's format.
"""

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from nanoinfer.bench.engines import EngineSpec
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.processes import EngineFailure, Worker
from nanoinfer.bench.report import by_round, cell, page, ratio_cell, table
from nanoinfer.bench.results import Keep, Results, new_results
from nanoinfer.bench.session import Settings, measure_rounds, reported, summary
from nanoinfer.bench.workloads import NUM_REQUESTS, Job, Workload

PROJECTION = re.compile(r"(model\.layers\.\d+\.(?:self_attn|mlp)\.(\w+_proj))\.weight")
SCALE = 2  # alpha / rank
SHARE = 0.1  # of what a projection computes is about what the adapter adds to it
LENGTHS = [(32, 64)] * NUM_REQUESTS
LEGEND = """\
How many times as long a batch takes as the base batch of the same engine and round, from the first prompt to the last
token: median (lowest..highest); and output tokens per second. Every adapter is for all projections; the requests have
them in turn. Prompts differ by batch and round, or they would be cached."""


@dataclass(frozen=True)
class Batch:
    """`adapters` distinct adapters of `rank`, which the requests have in turn. 0: the base batch."""

    rank: int
    adapters: int

    def __str__(self) -> str:
        counted = f"rank {self.rank}, {self.adapters} adapter{'s'[: self.adapters > 1]}"
        return counted if self.adapters else f"base, beside rank {self.rank}"

    def job(self, names: Sequence[str], checkpoint: Checkpoint, seed: int) -> Job:
        """The batch's requests."""
        job = Workload(f"adapters, {self}", lambda rng: LENGTHS).make_job(checkpoint, seed)
        chosen = [names[i % self.adapters] if self.adapters else None for i in range(len(job.requests))]
        pairs = zip(job.requests, chosen, strict=True)
        return replace(job, requests=[replace(each, adapter=adapter) for each, adapter in pairs])


def measure_adapters(
    path: Path,
    dtype: str | None,
    settings: Settings,
    ranks: Sequence[int] = (8, 64),
    counts: Sequence[int] = (1, 4, 16),
    keep: Keep = lambda results: None,
) -> Results:
    """Measure `settings.rounds` rounds per rank. `counts`: numbers of distinct adapters. `dtype` None: the checkpoint's."""
    checkpoint = Checkpoint.read(path)
    model = {**checkpoint.as_dict(), "dtype": dtype or checkpoint.dtype}
    results = new_results("adapters", settings.as_dict(), model=model, versions={}, runs=[])
    for rank in ranks:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            made = make_adapters(path, Path(folder), rank, max(counts), model["dtype"], settings.seed)
            one_run = _runner(checkpoint, settings, results, made, stack)
            measure_rounds(results, [Batch(rank, count) for count in (0, *counts)], settings, one_run, keep)
    return results


def _runner(
    checkpoint: Checkpoint, settings: Settings, results: Results, made: Mapping[str, str], stack: ExitStack
) -> Callable[[int, Batch, EngineSpec], dict[str, Any]]:
    """Runs batches of one rank, on engines that are loaded when they are first needed; the `stack` closes them."""
    workers = dict[tuple[str, bool], Worker | str]()

    def load(batch: Batch, spec: EngineSpec) -> Worker | str:
        chosen = spec.with_options(adapters=made) if batch.adapters else spec
        dtype = results["model"]["dtype"]
        try:
            worker = stack.enter_context(chosen.start(checkpoint.path, dtype, settings.threads, settings.timeout))
            results["versions"][spec.name] = worker.about["versions"]
            worker.ask(asdict(batch.job([*made], checkpoint, -1)))  # first passes are not measured
        except EngineFailure as failure:
            return reported(spec, failure)
        return worker

    def one_run(number: int, batch: Batch, spec: EngineSpec) -> dict[str, Any]:
        key = spec.name, batch.adapters > 0
        if key not in workers:
            workers[key] = load(batch, spec)
        if isinstance(worker := workers[key], str):
            raise EngineFailure(worker)
        job = batch.job([*made], checkpoint, settings.seed + number)
        return summary(job.requests, worker.ask(asdict(job)))

    return one_run


def format_adapters(results: Mapping[str, Any]) -> str:
    """The machine, and a table with a row per batch and two columns per engine."""
    names = results["settings"]["engines"]
    rows = []
    for batch in dict.fromkeys(run["workload"] for run in results["runs"]):
        row = [batch]
        for name in names:
            base = f"base, beside {batch.partition(',')[0]}"
            seconds, alone = (by_round(results, each, name, "wall_s") for each in (batch, base))
            ratios = [seconds[number] / alone[number] for number in seconds if number in alone]
            row += [ratio_cell(ratios) if batch != base else "", cell(results, batch, name, "output_tok_s")]
        rows.append(row)
    head = [f"{NUM_REQUESTS} requests", *(text for name in names for text in (f"{name}, time", "tok/s"))]
    return page(results, table(head, rows), legend=LEGEND)


def make_adapters(path: Path, folder: Path, rank: int, count: int, dtype: str, seed: int = 0) -> dict[str, str]:
    """Write `count` adapters of the checkpoint `path`, each with other numbers and for all projections in its layers, to
    folders inside `folder`. Returns name → folder. ValueError if there are no projections."""
    shapes = {}  # those that are stored as one tensor count as one, as in adapters of such models
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, "pt") as stored:
            found = [each for each in map(PROJECTION.fullmatch, stored.keys()) if each]
            shapes.update({each[1]: stored.get_slice(each[0]).get_shape() for each in found})
    if not shapes:
        raise ValueError(f"{path}: has no projections named model.layers.0.self_attn.q_proj and so on")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": path.name,
        "r": rank,
        "lora_alpha": SCALE * rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in shapes}),
    }
    made = {}
    for number in range(count):
        generator = torch.Generator().manual_seed(seed * 1000 + number)
        tensors = {}
        for name, (outputs, inputs) in shapes.items():
            sizes = {"A": (rank, inputs, inputs**-0.5), "B": (outputs, rank, SHARE / SCALE * rank**-0.5)}
            for part, (rows, columns, deviation) in sizes.items():
                drawn = torch.randn(rows, columns, generator=generator) * deviation
                tensors[f"base_model.model.{name}.lora_{part}.weight"] = drawn.to(getattr(torch, dtype))
        where = folder / f"rank{rank}-{number}"
        where.mkdir(parents=True)
        save_file(tensors, where / "adapter_model.safetensors", {"format": "pt"})
        (where / "adapter_config.json").write_text(json.dumps(config))
        made[where.name] = str(where)
    return made
