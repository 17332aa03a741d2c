"""The same requests computed by one process, and by several that split the model: what the split costs and brings.

    python -m nanoinfer bench parallel --model models/mid-bfloat16
    torchrun --nproc-per-node 2 -m nanoinfer bench parallel         the same with the processes that torchrun has started

Each way serves the same prompts in each round, one way after another, so that what else the machine does meets all of them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from nanoinfer.bench.machine import own_memory_mib
from nanoinfer.bench.tables import number_cell, table
from nanoinfer.frontends.llm import LLM
from nanoinfer.model.layers.kept_weights import weight_bytes
from nanoinfer.parallel.torchrun import torchrun_rank
from nanoinfer.requests.sampling_params import SamplingParams

LEGEND = """\
prefill: prompt tokens per second, of one prompt. decode: output tokens per second. ratio: relative to the first row, median
over rounds. waits: the share of rank 0's time in which it exchanges numbers with the others, or waits for a slower one.
weights: MiB of weights in each process. memory: MiB by which rank 0 has grown once all is loaded and has run. same tokens:
as the first row's; a split promises them in float32. A split model makes two all-reduces per layer and pass."""


@dataclass(frozen=True)
class Way:
    """`processes` that compute on `threads` processors each."""

    processes: int
    threads: int

    @property
    def name(self) -> str:
        processes = f"{self.processes} process{'es' * (self.processes > 1)}"
        return f"{processes}, {self.threads} thread{'s' * (self.threads > 1)} each"


WAYS = (Way(1, 1), Way(2, 1), Way(1, 2), Way(2, 2))


@dataclass
class Run:
    """Seconds of a way in a round, and how many of these it waited."""

    prefill: float
    prefill_waits: float
    decode: float
    decode_waits: float
    tokens: list[list[int]]


class Candidate:
    """A way with its engine, which begins empty, and its runs."""

    def __init__(self, way: Way, model: str | Path, options: dict[str, Any], before: "Candidate | None"):
        """`before`: another way with one process, whose engine this one can use, too. (Other ranks keep their threads.)"""
        self.way, self.runs, self.waits = way, list[Run](), 0.0
        torch.set_num_threads(way.processes * way.threads)  # a split model divides them among its processes
        options = {"tensor_parallel_size": way.processes, "disable_radix_cache": True, **options}
        self.llm: LLM = LLM(model, **options) if before is None else before.llm
        self.memory_mib: float | None = None if before is None else before.memory_mib
        split: Any = self.llm.model.split
        if split is not None:  # sending, receiving, and waiting for a slower rank
            for name in ("gather_all", "gather", "broadcast"):
                setattr(split.communicator, name, self._timed(getattr(split.communicator, name)))

    def _timed(self, exchange: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return exchange(*arguments)
            finally:
                self.waits += time.perf_counter() - start

        return timed

    def run(self, prompts: list[list[int]], new_tokens: int) -> Run:
        """Serve the first prompt for one token, then all for `new_tokens`."""
        torch.set_num_threads(self.way.threads)
        engine, start, waits = self.llm.engine, time.perf_counter(), self.waits
        self.llm.generate(prompts[0], SamplingParams(max_new_tokens=1, temperature=0, ignore_eos=True))
        prefill = time.perf_counter() - start, self.waits - waits
        params = SamplingParams(max_new_tokens=new_tokens, temperature=0, ignore_eos=True)
        ids = [engine.add_request(prompt, params) for prompt in prompts]
        outputs: dict[int, list[int]] = {}
        while engine.scheduler.waiting or engine.scheduler.prefilling:
            outputs |= {out.request_id: out.token_ids for out in engine.step()}
        start, waits = time.perf_counter(), self.waits
        while engine.has_unfinished():
            outputs |= {out.request_id: out.token_ids for out in engine.step()}
        return Run(*prefill, time.perf_counter() - start, self.waits - waits, [outputs[i] for i in ids])

    def result(self, first: "Candidate", prompt_tokens: int, decoded: int) -> dict[str, Any]:
        """Medians over rounds. A ratio is relative to the `first` way, in the same round. What cannot be measured here is
        None: the waits of one process, memory without Linux."""
        runs, pairs = self.runs, list(zip(first.runs, self.runs, strict=True))
        is_split = self.llm.model.split is not None
        return {
            "way": self.way.name,
            "prefill_tokens_per_second": prompt_tokens / median(run.prefill for run in runs),
            "prefill_ratio": median(base.prefill / run.prefill for base, run in pairs),
            "prefill_waits_share": median(run.prefill_waits / run.prefill for run in runs) if is_split else None,
            "decode_tokens_per_second": decoded / median(run.decode for run in runs),
            "decode_ratio": median(base.decode / run.decode for base, run in pairs),
            "decode_waits_share": median(run.decode_waits / run.decode for run in runs) if is_split else None,
            "weights_mib": weight_bytes(self.llm.model.model) / 2**20,
            "memory_mib": self.memory_mib,
            "tokens_equal": all(run.tokens == first.runs[0].tokens for run in runs),
        }


def bench_parallel(
    model: str | Path,
    num_requests: int = 4,
    prompt_tokens: int = 256,
    new_tokens: int = 32,
    rounds: int = 5,
    **options: Any,
) -> list[dict[str, Any]]:
    """Serve one prompt of `prompt_tokens` (prefill), then `num_requests` of them with `new_tokens` each (decode), greedily,
    once per way and round. `options` of LLM, the same for all ways. Returns a dictionary per way.

    Under torchrun, the ways are one process and torchrun's, each with as many threads as this process has now.
    Changes the number of torch's threads, and puts it back. ValueError naming an argument that is out of range.
    """
    for name, value, low in (
        ("num_requests", num_requests, 1),
        ("prompt_tokens", prompt_tokens, 2),
        ("new_tokens", new_tokens, 2),
        ("rounds", rounds, 1),
    ):
        if value < low:
            raise ValueError(f"{name}={value}: must be at least {low}")
    before = torch.get_num_threads()
    shard = torchrun_rank()
    ways = WAYS if shard is None else (Way(1, before), Way(shard.size, before))
    options = {"max_total_tokens": num_requests * (prompt_tokens + new_tokens), **options}
    candidates: list[Candidate] = []
    try:
        for way in ways:
            alone = next((each for each in candidates if each.way.processes == way.processes == 1), None)
            memory = own_memory_mib()
            candidates.append(candidate := Candidate(way, model, options, alone))
            if alone is None:
                candidate.run([[1, 2]], 2)
                if memory is not None and (now := own_memory_mib()) is not None:
                    candidate.memory_mib = now - memory
        vocabulary = candidates[0].llm.model.config.vocab_size
        prompts = np.random.default_rng(0).integers(0, vocabulary, (num_requests, prompt_tokens)).tolist()
        for turn in tqdm(range(rounds + 1), desc="bench parallel", unit="round"):
            for candidate in candidates:
                run = candidate.run(prompts, new_tokens)
                candidate.runs.extend([run] * (turn > 0))  # the first round warms up
        decoded = num_requests * (new_tokens - 1)
        return [each.result(candidates[0], prompt_tokens, decoded) for each in candidates]
    finally:
        torch.set_num_threads(before)
        for each in candidates:
            each.llm.shutdown()


def format_parallel(measured: Sequence[dict[str, Any]]) -> str:
    """What was measured as a table."""
    heads = ("prefill tok/s", "ratio", "waits", "decode tok/s", "ratio", "waits", "weights", "memory", "same tokens")
    rows = []
    for each in measured:
        way, *figures, equal = each.values()
        shares = {2: figures[2], 5: figures[5]}
        cells = [("–" if v is None else f"{v:.0%}") if i in shares else number_cell(v) for i, v in enumerate(figures)]
        rows.append([way, *cells, "yes" if equal else "NO"])
    return f"{table(['parallel', *heads], rows)}\n\n{LEGEND}"
