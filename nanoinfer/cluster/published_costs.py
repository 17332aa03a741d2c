"""Costs of accelerators that are not here, from published figures. The figures are named; the arithmetic is below.

**Measured throughput.** TensorRT-LLM's page "Performance overview" (docs/source/performance/perf-overview.md, v1.0) has
the output tokens per second of Llama 3.1 8B in FP8 on one GPU, offline, with as many requests as fit: ten pairs of
prompt and output length, THROUGHPUT below.

**Data sheets.** H100 SXM: 80 GB at 3.35 TB/s; H200 SXM: 141 GB at 4.8 TB/s (NVIDIA). Llama 3.1 8B has 8.03e9
parameters, 32 layers, 8 key/value heads of 128 numbers (its config.json), so that a token's K/V takes 2 · 32 · 8 · 128
= 65,536 bytes in FP8.

A request with a prompt of `i` tokens and `o` output tokens takes `i` prompt tokens, `o` decode rows, `o · (i + o / 2)`
context tokens and `i² / 2` attended pairs. With `b` requests in memory at the same time, it takes `o / b` passes, each
of which reads all weights: seconds_per_pass is the time that takes by the data sheet. The rest is fitted to the ten
figures.
"""

from functools import cache

import numpy as np

from nanoinfer.cluster.costs import PassCosts, attended_pairs, least_squares

LENGTHS = (
    *((128, 128), (128, 2048), (128, 4096), (500, 2000), (1000, 1000)),
    *((1000, 2000), (2048, 128), (2048, 2048), (5000, 500), (20000, 2000)),
)
THROUGHPUT = {  # output tokens per second, in the order of LENGTHS
    "h100-llama-8b": (28312, 22714, 14325, 17660, 15220, 13899, 3450, 9305, 3459, 1351),
    "h200-llama-8b": (27911, 26221, 18027, 20770, 17744, 16828, 3538, 12194, 3902, 1804),
}
MEMORY = {"h100-llama-8b": (80e9, 3.35e12), "h200-llama-8b": (141e9, 4.8e12)}  # bytes, bytes per second
WEIGHT_BYTES, KV_BYTES_PER_TOKEN = 8.03e9, 65_536
SHARE_FOR_KV = 0.9  # of the memory that the weights leave: TensorRT-LLM's default
MOST_REQUESTS = 2048  # in one pass: its default max_batch_size
SOURCE = "fitted to TensorRT-LLM's published throughput of Llama 3.1 8B FP8 (performance overview v1.0)"


@cache
def published_costs(name: str) -> PassCosts:
    """The costs of `h100-llama-8b` or `h200-llama-8b`. ValueError for any other name."""
    _check(name)
    seconds_per_pass = WEIGHT_BYTES / MEMORY[name][1]
    rows, wanted = [], []
    for (prompt, output), tokens_per_second in zip(LENGTHS, THROUGHPUT[name], strict=True):
        context = output * (prompt + output / 2)
        together = min(kv_slots(name) / (prompt + output / 2), MOST_REQUESTS)
        seconds = output / tokens_per_second - output / together * seconds_per_pass
        rows.append(np.array([prompt, output, context, attended_pairs(0, prompt)]) / seconds)
        wanted.append(1.0)
    prompt_token, decode_row, context_token, pair = least_squares(np.array(rows), np.array(wanted)).tolist()
    return PassCosts(seconds_per_pass, prompt_token, decode_row, context_token, pair, source=f"{name}: {SOURCE}")


def kv_slots(name: str) -> int:
    """How many tokens' K/V fits into the memory that the weights leave. ValueError as `published_costs`."""
    _check(name)
    return int((MEMORY[name][0] - WEIGHT_BYTES) * SHARE_FOR_KV / KV_BYTES_PER_TOKEN)


def _check(name: str) -> None:
    if name not in THROUGHPUT:
        raise ValueError(f"costs={name!r}: must be {', '.join(THROUGHPUT)}, or a file that PassCosts.save wrote")
