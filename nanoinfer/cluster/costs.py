"""PassCosts: how many seconds a pass takes, by what is in it. The router weighs with them; the simulation runs on them.

`published_costs` has those of accelerators that are not here, from published figures:

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

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from nanoinfer.model.forward_batch import ForwardBatch

FORMAT = "nanoinfer pass costs 1"
Kind = Literal["extend", "decode"]


@dataclass(frozen=True)
class PassCosts:
    """Seconds per part of a pass; a pass takes their sum. ValueError names a field that is not a number of at least 0.

    - `seconds_per_pass`: of every pass, however little is in it. `extra_seconds_per_extend`: what an EXTEND takes besides.
    - `seconds_per_prompt_token`: per token that an EXTEND computes. `seconds_per_extend_row`: per request in it.
    - `seconds_per_decode_row`: per request in a DECODE, each of which gets one token.
    - `seconds_per_context_token`: per token whose K/V a DECODE reads.
    - `seconds_per_attended_pair`: EXTEND's attention, per pair of a computed token and a token that it attends to.
    - `source`: where the figures come from, in words.
    """

    seconds_per_pass: float
    seconds_per_prompt_token: float
    seconds_per_decode_row: float
    seconds_per_context_token: float
    seconds_per_attended_pair: float = 0.0
    extra_seconds_per_extend: float = 0.0
    seconds_per_extend_row: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        for name in NAMES:
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ValueError(f"{name}={value!r}: must be a number of seconds, at least 0")
        if not self.seconds_per_pass + self.seconds_per_prompt_token > 0:
            raise ValueError("seconds_per_pass=0, seconds_per_prompt_token=0: one of them must be above 0")

    def extend_seconds(self, rows: int, new_tokens: int, pairs: float) -> float:
        """An EXTEND of `rows` requests that computes `new_tokens` tokens and `pairs` pairs (see `attended_pairs`)."""
        return (
            self.seconds_per_pass
            + self.extra_seconds_per_extend
            + rows * self.seconds_per_extend_row
            + new_tokens * self.seconds_per_prompt_token
            + pairs * self.seconds_per_attended_pair
        )

    def decode_seconds(self, rows: float, context_tokens: float) -> float:
        """A DECODE of `rows` requests that have `context_tokens` tokens together."""
        return (
            self.seconds_per_pass + rows * self.seconds_per_decode_row + context_tokens * self.seconds_per_context_token
        )

    def seconds(self, measured: "MeasuredPass") -> float:
        """What a pass like this one takes."""
        if measured.kind == "decode":
            return self.decode_seconds(measured.rows, measured.pairs)
        return self.extend_seconds(measured.rows, measured.new_tokens, measured.pairs)

    def prefill_seconds(self, prompt_tokens: int, cached_tokens: int = 0) -> float:
        """What a prompt adds to passes that are made anyway, if its first `cached_tokens` tokens are cached."""
        new = prompt_tokens - cached_tokens
        return (
            self.seconds_per_extend_row
            + new * self.seconds_per_prompt_token
            + attended_pairs(cached_tokens, prompt_tokens) * self.seconds_per_attended_pair
        )

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        Path(path).write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "PassCosts":
        """Read what `save` wrote. ValueError when the file is something else."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content.pop("format") != FORMAT:
                raise KeyError("format")
            return cls(**content)
        except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: is no file that PassCosts.save wrote ({error})") from error


NAMES = [field.name for field in fields(PassCosts) if field.name != "source"]


def attended_pairs(start: int, end: int) -> int:
    """How many pairs of tokens the attention of tokens `start .. end - 1` computes: each with itself and all before it."""
    return (end * (end + 1) - start * (start + 1)) // 2


@dataclass(frozen=True)
class MeasuredPass:
    """What was in a pass, and how long it took. Of a DECODE, `pairs` counts the tokens that were read; of an EXTEND, see
    `attended_pairs`. `new_tokens` of a DECODE equals its rows."""

    kind: Kind
    rows: int
    new_tokens: int
    pairs: int
    seconds: float

    def parts(self) -> list[float]:
        """What each cost is multiplied by, in the order of NAMES."""
        if self.kind == "decode":
            return [1, 0, self.rows, self.pairs, 0, 0, 0]
        return [1, self.new_tokens, 0, 0, self.pairs, 1, self.rows]


def pass_of(batch: "ForwardBatch", seconds: float = 0.0) -> MeasuredPass:
    """A pass of this batch, EXTEND or DECODE, which took so long."""
    seq_lens = batch.seq_lens.tolist()
    if batch.prefix_lens is None:
        return MeasuredPass("decode", len(seq_lens), len(seq_lens), sum(seq_lens), seconds)
    spans = list(zip(batch.prefix_lens.tolist(), seq_lens, strict=True))
    pairs = sum(attended_pairs(start, end) for start, end in spans)
    return MeasuredPass("extend", len(spans), sum(end - start for start, end in spans), pairs, seconds)


def fit(passes: Sequence[MeasuredPass], source: str = "") -> PassCosts:
    """The costs with the least sum of squared relative errors over `passes`, none of them negative.

    ValueError unless there are passes of both kinds, and each took time.
    """
    if not {each.kind for each in passes} == {"extend", "decode"}:
        raise ValueError(f"passes: {len(passes)}, must include EXTEND and DECODE passes")
    if short := [each for each in passes if not each.seconds > 0]:
        raise ValueError(f"seconds={short[0].seconds!r}: must be above 0")
    parts = np.array([each.parts() for each in passes], dtype=float)
    found = least_squares(parts / np.array([each.seconds for each in passes])[:, None], np.ones(len(passes)))
    return PassCosts(**dict(zip(NAMES, found.tolist(), strict=True)), source=source)


def least_squares(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """x >= 0 with the least `|matrix x - wanted|²`. Of the columns that it uses it is the plain solution, and there are so
    few columns that every choice of them can be tried. They may be dependent."""
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    scaled, x = matrix / scale, np.zeros(matrix.shape[1])
    least = np.linalg.norm(wanted)
    for choice in product((False, True), repeat=len(x)):
        used, trial = np.array(choice), np.zeros(len(x))
        trial[used] = np.linalg.lstsq(scaled[:, used], wanted, rcond=None)[0]
        distance = np.linalg.norm(scaled @ trial - wanted)
        if (trial >= 0).all() and distance < least:
            x, least = trial, distance
    return x / scale


# --- published figures -----------------------------------------------------------------------------------------------

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
