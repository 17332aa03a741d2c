"""What a split would be on accelerators that are not here: data sheets, and arithmetic.

A pass reads all weights once, and multiplies each by every token: on one device, the longer of the two takes the time. Over
k devices, each does a k-th of it. Then there are the sums: two per layer, and one of the embedding. A ring passes 2 (k - 1)
messages per sum, one after the other, each with a k-th of the tokens' hidden states.

    NVIDIA's data sheet of the H100 SXM: 3.35 TB/s of memory, 989 TFLOP/s in bfloat16 (dense), 80 GB; NVLink 900 GB/s and
    PCIe 5 x16 128 GB/s, both directions together, so that half of it counts. Ethernet: 100 Gb/s.
    NCCL's table of latencies (src/graph/tuning.cc, commit 01afd20): 3.6 µs per sum, and 0.47 µs (NVLink), 1.0 µs (PCIe) or
    2.7 µs (network) per message of a ring, with the protocol for short messages.

These are the best that the hardware could do: attention, norms, sampling and starting kernels take no time here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanoinfer.bench.tables import table

MEMORY, MULTIPLY = 3.35e12, 989e12  # bytes and operations per second, of one device
DEVICE_BYTES = 80e9
SUM_SECONDS = 3.6e-6
BYTES = 2  # per number: bfloat16
PROMPT = 2048  # tokens of the prefill

LEGEND = f"""\
H100s on paper, bfloat16: what memory, multiplication and links allow at most. decode: one token of one request; prefill: a
prompt of {PROMPT:,} tokens. gain: relative to one device. sums: their share of the time."""


@dataclass(frozen=True)
class Link:
    """Between two devices: bytes per second in one direction, and seconds until a short message is there."""

    name: str
    bytes_per_second: float
    message_seconds: float


LINKS = (Link("NVLink 4", 450e9, 0.47e-6), Link("PCIe 5", 64e9, 1.0e-6), Link("100 Gb/s Ethernet", 12.5e9, 2.7e-6))


@dataclass(frozen=True)
class PaperModel:
    """What counts of a model."""

    name: str
    parameters: float
    layers: int
    hidden_size: int


KNOWN = (PaperModel("Llama 3.1 8B", 8.03e9, 32, 4096), PaperModel("Llama 3.1 70B", 70.6e9, 80, 8192))


@dataclass(frozen=True)
class PaperResult:
    """One model over `devices`: milliseconds per pass, how many times as fast as one device, and the share of the sums.
    `fits`: whether a device has room for its part of the weights."""

    model: str
    devices: int
    link: str
    decode_ms: float
    decode_gain: float
    decode_sums_share: float
    prefill_ms: float
    prefill_gain: float
    prefill_sums_share: float
    fits: bool


def pass_seconds(model: PaperModel, tokens: int, devices: int, link: Link | None) -> tuple[float, float]:
    """Seconds that a pass over `tokens` computes, and seconds for its sums. No `link`: one device, which needs none."""
    reads = model.parameters * BYTES / MEMORY
    multiplies = 2 * model.parameters * tokens / MULTIPLY
    compute = max(reads, multiplies) / devices
    if link is None or devices == 1:
        return compute, 0.0
    messages = 2 * (devices - 1)
    size = tokens * model.hidden_size * BYTES / devices
    each = SUM_SECONDS + messages * (link.message_seconds + size / link.bytes_per_second)
    return compute, (2 * model.layers + 1) * each


def on_paper(models: Sequence[PaperModel], sizes: Sequence[int] = (2, 8)) -> list[PaperResult]:
    """Every model on one device, then over each number of `sizes` with each link."""
    return [
        _result(model, devices, link)
        for model in models
        for devices, link in [(1, None), *((size, link) for size in sizes for link in LINKS)]
    ]


def _result(model: PaperModel, devices: int, link: Link | None) -> PaperResult:
    def figures(tokens: int) -> tuple[float, float, float]:
        alone = sum(pass_seconds(model, tokens, 1, None))
        compute, sums = pass_seconds(model, tokens, devices, link)
        return 1e3 * (compute + sums), alone / (compute + sums), sums / (compute + sums)

    fits = model.parameters * BYTES / devices <= DEVICE_BYTES
    return PaperResult(model.name, devices, "" if link is None else link.name, *figures(1), *figures(PROMPT), fits)


def format_paper(results: Sequence[Mapping[str, Any]]) -> str:
    """The results as a table."""
    heads = ("on paper", "devices", "link", "decode ms", "gain", "sums", "prefill ms", "gain", "sums", "")
    rows = []
    for each in results:
        row = [each["model"], str(each["devices"]), each["link"] or "–"]
        for kind in ("decode", "prefill"):
            row += [f"{each[f'{kind}_ms']:.2f}", f"{each[f'{kind}_gain']:.2f}", f"{each[f'{kind}_sums_share']:.0%}"]
        rows.append([*row, "" if each["fits"] else "does not fit"])
    return f"{table(heads, rows)}\n\n{LEGEND}"
