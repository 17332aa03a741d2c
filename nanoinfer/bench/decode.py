"""Three ways to decode the same requests: one session after another, as a padded batch, and from the slots of a pool."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from nanoinfer.frontends.llm import LLM
from nanoinfer.model.attention import TorchNativeBackend
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.sessions.inference import InferenceEngine
from nanoinfer.sessions.offline_scheduler import OfflineScheduler
from nanoinfer.terminal import table

SHORTEST_PROMPT, LONGEST_PROMPT = 8, 256
LEGEND = """\
ratio: speed relative to the first row, median over rounds. passes: decode passes (the prompt's pass gives the first token).
moved: K/V copied into and out of a pass's rectangle, per token; in a pool, K/V stays in its slots. read: K/V that the
attention backend reads, per token. padding: its share of what is read (plain torch reads a rectangle, C++ only slots)."""


@dataclass
class DecodeResult:
    """One way's decode passes; bytes are of K/V. `ratio`: of its speed to that of the first way."""

    way: str
    outputs: list[list[int]]
    seconds: float
    forwards: int
    bytes_copied: int  # into a pass's rectangle, and back
    bytes_used: int  # that attention reads
    bytes_padding: int  # that it reads besides
    ratio: float = 1.0
    tokens_equal: bool = True  # to those of the first way

    @property
    def tokens(self) -> int:
        return sum(len(tokens) - 1 for tokens in self.outputs)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def bench_decode(llm: LLM, num_requests: int = 16, new_tokens: int = 64, rounds: int = 5) -> list[DecodeResult]:
    """Decode `num_requests` requests of mixed lengths greedily, once per way and round; times are medians. Only decode
    passes are timed; prompts are computed before. ValueError if the requests do not fit into the pool together."""
    rng, longest = np.random.default_rng(0), min(LONGEST_PROMPT, llm.config.max_context_len - new_tokens)
    lengths = rng.integers(SHORTEST_PROMPT, longest + 1, size=num_requests)
    prompts = [rng.integers(0, llm.model.config.vocab_size, size=int(length)) for length in lengths]
    slots = sum(llm.engine.cache.whole_pages(len(prompt) + new_tokens - 1) for prompt in prompts)
    if num_requests > llm.config.max_running_requests or slots > llm.config.max_total_tokens:
        raise ValueError(f"num_requests={num_requests}: together they need as many running requests, and {slots} slots")
    ways: Sequence[Callable[[Sequence[np.ndarray], int], DecodeResult]] = (
        lambda prompts, new: _run_sessions(llm, prompts, new, batched=False),
        lambda prompts, new: _run_sessions(llm, prompts, new, batched=True),
        lambda prompts, new: _run_pooled(llm, prompts, new),
    )
    for run in ways:  # warm up: a first pass allocates memory and starts threads
        run(prompts[:1], 2)
    every = [[run(prompts, new_tokens) for run in ways] for _ in range(rounds)]
    first = [runs[0] for runs in every]
    return [
        replace(
            runs[0],
            seconds=median(run.seconds for run in runs),
            ratio=median(base.seconds / run.seconds for base, run in zip(first, runs, strict=True)),
            tokens_equal=all(run.outputs == first[0].outputs for run in runs),
        )
        for runs in zip(*every, strict=True)
    ]


def format_decode(results: Sequence[DecodeResult]) -> str:
    """The results as a table."""
    head = ("decode", "tok/s", "ratio", "passes", "moved", "read", "padding", "same tokens")
    rows = []
    for r in results:
        read = r.bytes_used + r.bytes_padding
        moved, each = (f"{size / r.tokens / 1024:.0f} KiB" for size in (r.bytes_copied, read))
        speed = (f"{r.tokens_per_second:.0f}", f"{r.ratio:.2f}", r.forwards)
        rows.append((r.way, *speed, moved, each, f"{r.bytes_padding / read:.0%}", "yes" if r.tokens_equal else "NO"))
    return f"{table(head, rows)}\n\n{LEGEND}"


def _run_sessions(llm: LLM, prompts: Sequence[np.ndarray], new_tokens: int, batched: bool) -> DecodeResult:
    engine = InferenceEngine(llm.model)
    scheduler = OfflineScheduler(engine, batched)
    for prompt in prompts:
        scheduler.add_request(prompt, max_new_tokens=new_tokens, temperature=0.0, stop_on_eos=False)
    before, start = replace(engine.account), time.perf_counter()
    while scheduler.has_unfinished():
        scheduler.step()
    seconds, cost = time.perf_counter() - start, engine.account - before
    outputs = [session.generated_ids for session in scheduler.sessions.values()]
    way = f"sessions, {'padded batch' if batched else 'one by one'}"
    moved = cost.bytes_copied, cost.decode_bytes_used, cost.decode_bytes_padding
    return DecodeResult(way, outputs, seconds, cost.forwards, *moved)


def _run_pooled(llm: LLM, prompts: Sequence[np.ndarray], new_tokens: int) -> DecodeResult:
    engine = llm.engine
    params = SamplingParams(max_new_tokens=new_tokens, temperature=0.0, ignore_eos=True)
    outputs = {engine.add_request(prompt, params): list[int]() for prompt in prompts}
    while not all(outputs.values()):
        outputs.update({each.request_id: each.token_ids for each in engine.step()})
    rectangle = isinstance(engine.model_runner.attention_backend, TorchNativeBackend)
    held = padding = forwards = 0
    start = time.perf_counter()
    while engine.has_unfinished():
        outputs.update({each.request_id: each.token_ids for each in engine.step()})
        assert engine.last_batch is not None
        lens = engine.last_batch.seq_lens
        forwards += 1
        held += int(lens.sum())
        padding += int((lens.max() - lens).sum()) if rectangle else 0
    seconds = time.perf_counter() - start
    engine.flush_cache()
    kv_bytes = llm.model.config.kv_bytes_per_token(llm.model.dtype)
    return DecodeResult("pooled", [*outputs.values()], seconds, forwards, 0, held * kv_bytes, padding * kv_bytes)
