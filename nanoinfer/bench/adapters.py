"""What adapters cost: the same batch of requests with the base model alone, and with one or many distinct LoRA adapters.

Every engine is loaded once per rank without adapters, for the base batch, and once with adapters, because some engines are
slower with adapters even where no request uses one. The adapters are random, for all projections, in PEFT's format.
"""

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nanoinfer.bench.engines import EngineSpec
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.metrics import by_round, summary
from nanoinfer.bench.processes import EngineFailure, Worker
from nanoinfer.bench.report import cell, failures, heading, model_title
from nanoinfer.bench.results import Keep, Results, new_results
from nanoinfer.bench.session import Settings, measure_rounds, reported
from nanoinfer.bench.tables import ratio_cell, table
from nanoinfer.bench.workloads import NUM_REQUESTS, Job, Workload, make_job

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
    """`adapters` distinct adapters of `rank`, which the requests have in turn. None: the base batch."""

    rank: int
    adapters: int

    def __str__(self) -> str:
        return f"rank {self.rank}, {self.adapters} adapter{'s'[: self.adapters > 1]}" if self.adapters else self.base

    @property
    def base(self) -> str:
        return f"base, beside rank {self.rank}"

    def job(self, names: Sequence[str], checkpoint: Checkpoint, seed: int) -> Job:
        """The batch's requests."""
        workload = Workload(f"adapters, {self}", lambda rng: LENGTHS)
        job = make_job(workload, seed, checkpoint.context_len, checkpoint.vocab_size, 0.0)
        if not self.adapters:
            return job
        numbered = enumerate(job.requests)
        return replace(job, requests=[replace(each, adapter=names[i % self.adapters]) for i, each in numbered])


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
    dtype = dtype or checkpoint.dtype
    model = {**checkpoint.as_dict(), "dtype": dtype}
    results = new_results("adapters", settings.as_dict(), model=model, versions={}, runs=[])
    for rank in ranks:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            made = make_adapters(path, Path(folder), rank, max(counts), dtype, settings.seed)
            run = _Rank(checkpoint, settings, results, {name: str(where) for name, where in made.items()}, stack)
            measure_rounds(results, [Batch(rank, count) for count in (0, *counts)], settings, run, keep)
    return results


@dataclass
class _Rank:
    """Runs batches of one rank, on engines that are loaded when they are first needed; the `stack` closes them."""

    checkpoint: Checkpoint
    settings: Settings
    results: Results
    adapters: dict[str, str]
    stack: ExitStack
    workers: dict[tuple[str, bool], Worker | str] = field(default_factory=dict)

    def __call__(self, number: int, batch: Batch, spec: EngineSpec) -> dict[str, Any]:
        key = spec.name, batch.adapters > 0
        if key not in self.workers:
            self.workers[key] = self._load(batch, spec)
        worker = self.workers[key]
        if isinstance(worker, str):
            raise EngineFailure(worker)
        job = batch.job([*self.adapters], self.checkpoint, self.settings.seed + number)
        return summary(job.requests, worker.ask(job.as_message()))

    def _load(self, batch: Batch, spec: EngineSpec) -> Worker | str:
        chosen = spec.with_options(adapters=self.adapters) if batch.adapters else spec
        dtype, settings = self.results["model"]["dtype"], self.settings
        try:
            started = chosen.start(self.checkpoint.path, dtype, settings.threads, settings.timeout)
            worker = self.stack.enter_context(started)
            self.results["versions"][spec.name] = worker.about["versions"]
            worker.ask(batch.job([*self.adapters], self.checkpoint, -1).as_message())  # first passes are not measured
        except EngineFailure as failure:
            return reported(spec, failure)
        return worker


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
    parts = [heading(results), model_title(results["model"]), table(head, rows), "\n".join(failures(results)), LEGEND]
    return "\n\n".join(part for part in parts if part)


def projection_shapes(path: Path) -> dict[str, tuple[int, int]]:
    """The projections in the layers of the checkpoint in the folder `path`: name → (outputs, inputs). Those that are stored
    as one tensor count as one, as in adapters of such models. ValueError if there are none."""
    from safetensors import safe_open

    shapes = {}
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 - it is no mapping
                if (found := PROJECTION.fullmatch(key)) is not None:
                    outputs, inputs = tensors.get_slice(key).get_shape()
                    shapes[found[1]] = (outputs, inputs)
    if not shapes:
        raise ValueError(f"{path}: has no projections named model.layers.0.self_attn.q_proj and so on")
    return shapes


def make_adapters(path: Path, folder: Path, rank: int, count: int, dtype: str, seed: int = 0) -> dict[str, Path]:
    """Write `count` adapters of the checkpoint `path`, each with other numbers and for all projections, to folders inside
    `folder`. Returns name → folder. ValueError as in `projection_shapes`."""
    import torch
    from safetensors.torch import save_file

    shapes = projection_shapes(path)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": path.name,
        "r": rank,
        "lora_alpha": SCALE * rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in shapes}),
        "bias": "none",
        "inference_mode": True,
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
        where = made[f"rank{rank}-{number}"] = folder / f"rank{rank}-{number}"
        where.mkdir(parents=True)
        save_file(tensors, where / "adapter_model.safetensors", {"format": "pt"})
        (where / "adapter_config.json").write_text(json.dumps(config))
    return made
