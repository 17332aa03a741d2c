"""Measures how costs grow: of bookkeeping with requests and slots, of the radix tree with its size, and of the time to the
first token with the number of cached tokens.

    python -m nanoinfer.bench.scaling            prints tables, writes scaling.json and scaling.png to data/bench

The first two run without a model, the third with the bundled model.
"""

import argparse
import datetime
import json
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from nanoinfer import LLM, SamplingParams
from nanoinfer.bench.machine import describe_machine
from nanoinfer.bench.markdown import table
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.config import EngineConfig
from nanoinfer.engine.engine import Engine
from nanoinfer.model.attention import AttentionLayer
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.layers.logits_processor import LogitsOutput
from nanoinfer.model.model_runner import ModelRunner

REQUESTS = (1, 16, 64, 256)
POOLS = (1024, 100_000, 1_000_000)
SHORT = 4  # tokens per sequence, so few that even 256 sequences fit into the smallest pool
LONG = 512  # tokens per sequence
TREES = (1000, 10_000, 100_000)
ENTRY = 500  # tokens of one sequence in the tree
FRACTIONS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95)
VOCAB_SIZE = 1024
GREEDY = {"temperature": 0.0, "ignore_eos": True}


class NoModel:
    """Takes the place of the model: returns the same logits for every request, without computing anything."""

    def __init__(self, max_batch: int):
        self.logits = torch.zeros(max_batch, VOCAB_SIZE)

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor, input_metadata: InputMetadata) -> LogitsOutput:
        return LogitsOutput(self.logits[: input_metadata.batch_size])


class NoAttention:
    """Takes the place of the attention backend."""

    def init_forward(self, metadata: InputMetadata) -> None:
        """Nothing to prepare."""

    def forward_extend(self, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> torch.Tensor:
        return q

    def forward_decode(self, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> torch.Tensor:
        return q


class BookkeepingCase:
    """An engine without a model, and the times of its decode steps, in seconds."""

    def __init__(self, requests: int, slots: int, seq_len: int):
        self.requests, self.slots, self.seq_len = requests, slots, seq_len
        self.new_tokens = min(32, seq_len - 1)
        rows = ReqToTokenPool(requests, seq_len + 1)
        pool = TokenToKVPool(slots, torch.float32, 1, 1, 1)
        config = EngineConfig(
            requests, slots, seq_len + 1, max_prefill_tokens=requests * seq_len, chunked_prefill_size=None
        )
        self.engine = Engine(ModelRunner(NoModel(requests), rows, pool, NoAttention()), config, VOCAB_SIZE)
        self.times: list[float] = []

    def run(self, rng: np.random.Generator) -> None:
        """Serve all requests once, from an empty tree. Keeps the times of the steps in which every request decodes."""
        self.engine.flush_cache()
        prompt_len = self.seq_len - self.new_tokens
        params = SamplingParams(max_new_tokens=self.new_tokens + 1, **GREEDY)  # type: ignore[arg-type]
        for prompt in rng.integers(0, VOCAB_SIZE, (self.requests, prompt_len)):
            self.engine.add_request(prompt, params)
        while self.engine.has_unfinished():
            start = time.perf_counter()
            outputs = self.engine.step()
            seconds = time.perf_counter() - start
            if len(outputs) == self.requests and all(len(out.token_ids) > 1 for out in outputs):
                self.times.append(seconds)


def measure_bookkeeping(
    requests: Sequence[int] = REQUESTS, pools: Sequence[int] = POOLS, long: int = LONG, repeats: int = 25
) -> list[dict[str, Any]]:
    """Milliseconds per decode step without the model: schedule, Batch, InputMetadata, sampling, processing.

    It is measured for every number of requests in every pool, with sequences of SHORT tokens, and in the largest pool also
    with sequences of `long` tokens.
    """
    shapes = [(n, slots, SHORT) for slots in pools for n in requests if n * SHORT <= slots]
    shapes += [(n, max(pools), long) for n in requests if n * long <= max(pools)]
    cases = [BookkeepingCase(*shape) for shape in shapes]
    rng = np.random.default_rng(0)
    for _ in tqdm(range(repeats + 1), desc="bookkeeping", unit="round"):
        for case in cases:
            case.run(rng)
    return [
        {
            "requests": case.requests,
            "slots": case.slots,
            "seq_len": case.seq_len,
            "ms": median(case.times[case.new_tokens :]) * 1000,  # without the first round, which warms up
        }
        for case in cases
    ]


def measure_radix(sizes: Sequence[int] = TREES, entry: int = ENTRY, repeats: int = 50) -> list[dict[str, Any]]:
    """Microseconds to match and to insert a sequence of `entry` tokens, in trees that hold `sizes` tokens."""
    rng = np.random.default_rng(0)
    results = []
    for size in tqdm(sizes, desc="radix tree", unit="tree"):
        pool = TokenToKVPool(size + entry, torch.float32, 1, 1, 1)
        tree = RadixCache(ReqToTokenPool(1, 1), pool, policy="fifo")
        known: deque[np.ndarray] = deque()
        match, insert = [], []

        def grow(pool: TokenToKVPool = pool, tree: RadixCache = tree, known: deque[np.ndarray] = known) -> float:
            tokens, slots = rng.integers(0, 32000, entry), pool.alloc(entry)
            assert slots is not None
            start = time.perf_counter()
            tree.insert(tokens, slots)
            seconds = time.perf_counter() - start
            known.append(tokens)
            return seconds

        for _ in range(size // entry):
            grow()
        for _ in range(repeats):
            tokens = known[int(rng.integers(len(known)))]
            start = time.perf_counter()
            found = tree.match_prefix(tokens)
            match.append(time.perf_counter() - start)
            assert len(found.indices) == entry
            insert.append(grow())
            tree.evict(entry)  # evicts the oldest, which keeps the size
            known.popleft()
        results.append({"tokens": size, "match_us": median(match) * 1e6, "insert_us": median(insert) * 1e6})
    return results


def measure_ttft(llm: LLM, fractions: Sequence[float] = FRACTIONS, repeats: int = 7) -> list[dict[str, Any]]:
    """Milliseconds to the first token of a prompt that fills the context, for each cached fraction of it.

    Flushes the engine's cache.
    """
    rng = np.random.default_rng(0)
    length = min(llm.config.max_context_len, llm.config.max_total_tokens) - 1
    params = SamplingParams(max_new_tokens=1, **GREEDY)  # type: ignore[arg-type]
    times: dict[float, list[float]] = {fraction: [] for fraction in fractions}
    cached: dict[float, int] = {}
    for _ in tqdm(range(repeats + 1), desc="TTFT", unit="round"):
        for fraction in fractions:
            llm.engine.flush_cache()
            prompt = rng.integers(0, llm.model.config.vocab_size, length)
            if start := int(fraction * length):
                llm.generate(prompt[:start], params)
            (output,) = llm.generate(prompt, params)
            assert output.ttft is not None
            times[fraction].append(output.ttft)
            cached[fraction] = output.cached_tokens
    return [
        {
            "fraction": fraction,
            "prompt_tokens": length,
            "cached_tokens": cached[fraction],
            "ttft_ms": median(times[fraction][1:]) * 1000,
        }
        for fraction in fractions
    ]


def format_scaling(results: dict[str, Any]) -> str:
    """The results as three tables."""
    steps = results["bookkeeping"]
    requests = sorted({step["requests"] for step in steps})
    rows = []
    for slots, seq_len in dict.fromkeys((step["slots"], step["seq_len"]) for step in steps):
        ms = {s["requests"]: s["ms"] for s in steps if (s["slots"], s["seq_len"]) == (slots, seq_len)}
        rows.append(
            [f"{slots:,} slots, {seq_len} tokens each", *(f"{ms[n]:.2f}" if n in ms else "–" for n in requests)]
        )
    radix = [[f"{r['tokens']:,}", f"{r['match_us']:.0f}", f"{r['insert_us']:.0f}"] for r in results["radix"]]
    ttft = [[f"{r['fraction']:.0%}", str(r["cached_tokens"]), f"{r['ttft_ms']:.1f}"] for r in results["ttft"]]
    prompt = results["ttft"][0]["prompt_tokens"]
    return "\n\n".join(
        [
            "Bookkeeping of a decode step, ms",
            table(["running requests", *map(str, requests)], rows),
            f"Radix tree, a sequence of {results['entry']} tokens, µs",
            table(["tokens in the tree", "match", "insert"], radix),
            f"Time to the first token, {prompt} prompt tokens, ms",
            table(["cached", "tokens", "TTFT"], ttft),
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure all three, print the tables, write the JSON and the figure."""
    parser = argparse.ArgumentParser(prog="python -m nanoinfer.bench.scaling", description="Measure how costs grow.")
    parser.add_argument("--out", type=Path, default=Path("data/bench"), help="output folder (default: data/bench)")
    parser.add_argument("--no-figure", action="store_true", help="don't draw a figure (then matplotlib isn't needed)")
    args = parser.parse_args(argv)
    if not args.no_figure:
        import matplotlib  # noqa: F401 - fails here, before the measurement, where it is not installed
    args.out.mkdir(parents=True, exist_ok=True)
    results = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "bookkeeping": measure_bookkeeping(),
        "entry": ENTRY,
        "radix": measure_radix(),
        "ttft": measure_ttft(LLM("story")),
    }
    (args.out / "scaling.json").write_text(json.dumps(results, indent=1) + "\n")
    print(format_scaling(results))
    if not args.no_figure:
        from nanoinfer.bench.scaling_figure import draw

        draw(results, args.out / "scaling.png")


if __name__ == "__main__":
    main()
