"""The same requests computed by one process, and by two that split the model: what the split costs and brings.

    python -m nanoinfer bench parallel --model models/mid-bfloat16

Each way serves the same prompts in each round, one way after another, so that what else the machine does meets all of them.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from nanoinfer.frontends.llm import LLM
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.terminal import filled, side_by_side

LEGEND = """\
prefill: prompt tokens per second, of one prompt. decode: output tokens per second. ratio: relative to the first row, median
over rounds. A split model makes two all-reduces per layer and pass, whatever it computes between them."""


@dataclass(frozen=True)
class Way:
    """`processes` that compute on `threads` processors each."""

    processes: int
    threads: int

    @property
    def name(self) -> str:
        return f"{_count(self.processes, 'process', 'es')}, {_count(self.threads, 'thread', 's')} each"


WAYS = (Way(1, 1), Way(2, 1), Way(1, 2))


@dataclass
class ParallelResult:
    """Speeds of one way: medians over rounds. A ratio is relative to the first way, in the same round."""

    way: str
    prefill_tokens_per_second: float
    prefill_ratio: float
    decode_tokens_per_second: float
    decode_ratio: float
    tokens_equal: bool  # to the tokens of the first way


@dataclass
class Run:
    prefill_seconds: float
    decode_seconds: float
    tokens: list[list[int]]


def bench_parallel(
    model: str | Path,
    num_requests: int = 4,
    prompt_tokens: int = 256,
    new_tokens: int = 32,
    rounds: int = 5,
    use_tqdm: bool = True,
    **options: Any,
) -> list[ParallelResult]:
    """Serve one prompt of `prompt_tokens` (prefill), then `num_requests` of them with `new_tokens` each (decode), greedily,
    once per way and round. `options` of LLM, the same for all ways.

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
    engines: list[LLM] = []
    try:
        for way in WAYS:
            torch.set_num_threads(way.processes * way.threads)  # a split model divides them among its processes
            engines.append(LLM(model, tensor_parallel_size=way.processes, disable_radix_cache=True, **options))
        vocabulary = engines[0].model.config.vocab_size
        prompts = np.random.default_rng(0).integers(0, vocabulary, (num_requests, prompt_tokens)).tolist()
        runs = _run_rounds(engines, prompts, new_tokens, rounds, use_tqdm)
    finally:
        torch.set_num_threads(before)
        for llm in engines:
            llm.shutdown()
    return _results(runs, prompt_tokens, num_requests * (new_tokens - 1))


def format_parallel(results: Sequence[ParallelResult], limit: int | None = None) -> str:
    """The results as a table, in lines of at most `limit` characters."""
    cells = [
        (
            r.way,
            f"{r.prefill_tokens_per_second:.0f}",
            f"{r.prefill_ratio:.2f}",
            f"{r.decode_tokens_per_second:.0f}",
            f"{r.decode_ratio:.2f}",
            "yes" if r.tokens_equal else "NO",
        )
        for r in results
    ]
    heads = ("parallel", "prefill tok/s", "ratio", "decode tok/s", "ratio", "same tokens")
    first, *others = (list(column) for column in zip(heads, *cells, strict=True))
    right = [[cell.rjust(max(map(len, column))) for cell in column] for column in others]
    legend = LEGEND if limit is None else filled(" ".join(LEGEND.split()), limit)
    return f"{side_by_side([first, *right], limit)}\n\n{legend}"


def as_json(results: Sequence[ParallelResult]) -> list[dict[str, object]]:
    """The results as plain dictionaries."""
    return [asdict(result) for result in results]


def _run_rounds(
    engines: Sequence[LLM], prompts: list[list[int]], new_tokens: int, rounds: int, use_tqdm: bool
) -> list[list[Run]]:
    """For each way, its runs. The first round warms up, and does not count."""
    runs: list[list[Run]] = [[] for _ in engines]
    with tqdm(total=(rounds + 1) * len(engines), desc="bench parallel", unit="run", disable=not use_tqdm) as bar:
        for turn in range(rounds + 1):
            for way, llm, several in zip(WAYS, engines, runs, strict=True):
                torch.set_num_threads(way.threads)
                run = _run(llm, prompts, new_tokens)
                several.extend([run] * (turn > 0))
                bar.update(1)
    return runs


def _run(llm: LLM, prompts: list[list[int]], new_tokens: int) -> Run:
    engine, start = llm.engine, time.perf_counter()
    llm.generate(prompts[0], SamplingParams(max_new_tokens=1, temperature=0, ignore_eos=True))
    prefill_seconds = time.perf_counter() - start
    params = SamplingParams(max_new_tokens=new_tokens, temperature=0, ignore_eos=True)
    ids = [engine.add_request(prompt, params) for prompt in prompts]
    outputs: dict[int, list[int]] = {}
    while engine.scheduler.waiting or engine.scheduler.prefilling:
        outputs |= {out.request_id: out.token_ids for out in engine.step()}
    start = time.perf_counter()
    while engine.has_unfinished():
        outputs |= {out.request_id: out.token_ids for out in engine.step()}
    return Run(prefill_seconds, time.perf_counter() - start, [outputs[i] for i in ids])


def _results(runs: list[list[Run]], prompt_tokens: int, decoded: int) -> list[ParallelResult]:
    first = runs[0]
    return [
        ParallelResult(
            way.name,
            prompt_tokens / median(run.prefill_seconds for run in several),
            median(base.prefill_seconds / run.prefill_seconds for base, run in zip(first, several, strict=True)),
            decoded / median(run.decode_seconds for run in several),
            median(base.decode_seconds / run.decode_seconds for base, run in zip(first, several, strict=True)),
            all(run.tokens == first[0].tokens for run in several),
        )
        for way, several in zip(WAYS, runs, strict=True)
    ]


def _count(number: int, thing: str, plural: str) -> str:
    return f"{number} {thing}{plural if number > 1 else ''}"
