"""Three ways to decode the same requests: one session after another, as a padded batch, and from the slots of a pool."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from tqdm.auto import tqdm

from nanoinfer.frontends.llm import LLM
from nanoinfer.model.attention import TorchNativeBackend
from nanoinfer.requests.request import Request
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.sessions.inference import InferenceEngine
from nanoinfer.sessions.offline_scheduler import OfflineScheduler
from nanoinfer.terminal import filled, side_by_side

SHORTEST_PROMPT = 8
LEGEND = """\
ratio: speed relative to the first row, median over rounds. passes: decode passes (the prompt's pass gives the first token).
moved: K/V copied into and out of a pass's rectangle, per token; in a pool, K/V stays in its slots. read: K/V that the
attention backend reads, per token. padding: its share of what is read (plain torch reads a rectangle, C++ only slots)."""


@dataclass
class DecodeResult:
    """The figures of one way, for decode passes only. Times are medians over rounds; bytes are bytes of K/V."""

    way: str
    tokens_per_second: float
    ratio: float  # tokens_per_second relative to the first way
    forwards: int
    bytes_copied_per_token: float  # to copy K/V into a pass's rectangle, and back
    bytes_read_per_token: float  # by attention, padding included
    padding_share: float  # of bytes_read_per_token
    tokens_equal: bool  # to the tokens of the first way


@dataclass
class Run:
    seconds: float
    outputs: list[list[int]]
    forwards: int
    bytes_copied: int
    bytes_used: int
    bytes_padding: int


def bench_decode(
    llm: LLM, num_requests: int = 16, new_tokens: int = 64, rounds: int = 5, use_tqdm: bool = True
) -> list[DecodeResult]:
    """Decode `num_requests` requests of mixed lengths greedily, once per way and round. Shows a progress bar unless
    `use_tqdm=False`.

    Only decode passes are timed; prompts are computed before. Flushes the engine's cache. Raises ValueError naming an
    argument that is out of range, or if the engine has other requests.
    """
    if llm.engine.has_unfinished():
        raise ValueError("llm: its engine has unfinished requests, which would be timed too")
    context, rng = llm.config.max_context_len, np.random.default_rng(0)
    for name, value, low, high in (
        ("num_requests", num_requests, 1, llm.config.max_running_requests),
        ("new_tokens", new_tokens, 2, context - SHORTEST_PROMPT),
        ("rounds", rounds, 1, 1000),
    ):
        if not low <= value <= high:
            raise ValueError(f"{name}={value}: must be in {low}..{high}")
    lengths = rng.integers(SHORTEST_PROMPT, min(256, context - new_tokens) + 1, size=num_requests)
    prompts = [rng.integers(0, llm.model.config.vocab_size, size=int(length)) for length in lengths]
    slots = sum(llm.engine.cache.whole_pages(len(prompt) + new_tokens - 1) for prompt in prompts)
    if slots > llm.config.max_total_tokens:
        raise ValueError(
            f"max_total_tokens={llm.config.max_total_tokens}: {num_requests} requests together need {slots} slots"
        )
    ways: dict[str, Callable[[Sequence[np.ndarray], int], Run]] = {
        "sessions, one by one": lambda prompts, new: _run_sessions(llm, prompts, new, batched=False),
        "sessions, padded batch": lambda prompts, new: _run_sessions(llm, prompts, new, batched=True),
        "pooled": lambda prompts, new: _run_pooled(llm, prompts, new),
    }
    for run in ways.values():  # warm up: a first pass allocates memory and starts threads
        run(prompts[:1], 2)
    every = [
        {way: run(prompts, new_tokens) for way, run in ways.items()}
        for _ in tqdm(range(rounds), desc="bench decode", unit="round", disable=not use_tqdm)
    ]
    first, num_tokens = [next(iter(each.values())) for each in every], num_requests * (new_tokens - 1)
    results = []
    for way in ways:
        runs = [each[way] for each in every]
        read = runs[0].bytes_used + runs[0].bytes_padding
        results.append(
            DecodeResult(
                way,
                num_tokens / median(run.seconds for run in runs),
                median(base.seconds / run.seconds for base, run in zip(first, runs, strict=True)),
                runs[0].forwards,
                runs[0].bytes_copied / num_tokens,
                read / num_tokens,
                runs[0].bytes_padding / read,
                all(run.outputs == first[0].outputs for run in runs),
            )
        )
    return results


def format_decode(results: Sequence[DecodeResult], limit: int | None = None) -> str:
    """The results as a table, in lines of at most `limit` characters."""
    heads = ("decode", "tok/s", "ratio", "passes", "moved", "read", "padding", "same tokens")
    cells = []
    for r in results:
        moved, read = (f"{size / 1024:.0f} KiB" for size in (r.bytes_copied_per_token, r.bytes_read_per_token))
        speed = (f"{r.tokens_per_second:.0f}", f"{r.ratio:.2f}", str(r.forwards))
        cells.append((r.way, *speed, moved, read, f"{r.padding_share:.0%}", "yes" if r.tokens_equal else "NO"))
    first, *others = (list(column) for column in zip(heads, *cells, strict=True))
    right = [[cell.rjust(max(map(len, column))) for cell in column] for column in others]
    legend = LEGEND if limit is None else filled(" ".join(LEGEND.split()), limit)
    return f"{side_by_side([first, *right], limit)}\n\n{legend}"


def _run_sessions(llm: LLM, prompts: Sequence[np.ndarray], new_tokens: int, batched: bool) -> Run:
    engine = InferenceEngine(llm.model)
    scheduler = OfflineScheduler(engine, batched)
    for prompt in prompts:
        scheduler.add_request(prompt, max_new_tokens=new_tokens, temperature=0.0, stop_on_eos=False)
    before, start = replace(engine.account), time.perf_counter()
    while scheduler.has_unfinished():
        scheduler.step()
    seconds, cost = time.perf_counter() - start, engine.account - before
    outputs = [session.generated_ids for session in scheduler.sessions.values()]
    return Run(seconds, outputs, cost.forwards, cost.bytes_copied, cost.decode_bytes_used, cost.decode_bytes_padding)


def _run_pooled(llm: LLM, prompts: Sequence[np.ndarray], new_tokens: int) -> Run:
    engine = llm.engine
    params = SamplingParams(max_new_tokens=new_tokens, temperature=0.0, ignore_eos=True)
    groups = [engine.prepare(Request(prompt, params)) for prompt in prompts]
    for group in groups:
        engine.submit(group)
    while engine.scheduler.waiting or engine.scheduler.prefilling:
        engine.step()
    rectangle = isinstance(engine.model_runner.attention_backend, TorchNativeBackend)
    held = padding = 0
    before, start = engine.stats()["decode_steps"], time.perf_counter()
    while engine.has_unfinished():
        engine.step()
        assert engine.last_batch is not None
        lens = engine.last_batch.seq_lens
        held += int(lens.sum())
        padding += int((lens.max() - lens).sum()) if rectangle else 0
    seconds = time.perf_counter() - start
    engine.flush_cache()
    kv_bytes = llm.model.config.kv_bytes_per_token(llm.model.dtype)
    outputs = [group.output().token_ids for group in groups]
    return Run(seconds, outputs, engine.stats()["decode_steps"] - before, 0, held * kv_bytes, padding * kv_bytes)
