"""decode_bytes: what a DECODE pass reads, weights or K/V, by how many requests share it and how long they are."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nanoinfer.frontends.llm import LLM
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.llama import LlamaForCausalLM
from nanoinfer.viz.words import count, num_bytes, percent
from notebooks.course.explore.control import Control
from notebooks.course.explore.explorable import Explorable, Frame
from notebooks.course.explore.panels.bars import Bar, Bars
from notebooks.course.explore.panels.numbers import Number, Numbers

REQUESTS = (1, 4, 8, 16, 32, 64, 128, 256)
LENGTHS = (64, 256, 1024, 4096, 16384, 65536)
DTYPES = (torch.bfloat16, torch.float32)
GB = 10**9

# From the models' config.json.
LLAMA: dict[str, Any] = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama-3-8B": LLAMA | {"vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8},
    "Llama-2-7B": LLAMA | {"vocab_size": 32000, "intermediate_size": 11008, "num_key_value_heads": 32},
    "Qwen3-0.6B": {"vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28}
    | {"head_dim": 128, "num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True},
}


@dataclass(frozen=True)
class Size:
    """A model's bytes: of all `weights`, and of the K/V of one token in all layers (`per_token`)."""

    weights: int
    per_token: int

    @property
    def border(self) -> float:
        """How many tokens have as many bytes of K/V as there are of weights, whichever requests they belong to."""
        return self.weights / self.per_token


def size_of(config: ModelConfig, dtype: torch.dtype) -> Size:
    """Counted by the package. On `meta`, tensors have shapes but no numbers."""
    weights = LlamaForCausalLM(config, 1, dtype, torch.device("meta")).num_parameters * dtype.itemsize
    return Size(weights, config.kv_bytes_per_token(dtype))


def configs(llm: LLM) -> dict[str, ModelConfig]:
    """The public models, and the bundled one."""
    from transformers import LlamaConfig, Qwen3Config

    made = {}
    for name, fields in PUBLISHED.items():
        family = Qwen3Config if name.startswith("Qwen3") else LlamaConfig
        made[name] = ModelConfig.from_hf_config(family(**fields, architectures=[f"{family.__name__[:-6]}ForCausalLM"]))
    return made | {"the bundled model": llm.model.config}


def decode_bytes(llm: LLM, requests: Sequence[int] = REQUESTS, lengths: Sequence[int] = LENGTHS) -> Explorable:
    """A DECODE pass of so many `requests`, each with so many tokens of K/V, for each model and dtype.

    ValueError for a number of requests or a length below 1.
    """
    if min((*requests, *lengths)) < 1:
        raise ValueError(f"requests={tuple(requests)}, lengths={tuple(lengths)}: must be at least 1")
    models = configs(llm)
    sizes = [[size_of(config, dtype) for dtype in DTYPES] for config in models.values()]
    settings = itertools.product(range(len(requests)), range(len(lengths)), range(len(models)), range(len(DTYPES)))
    frames = {(i, j, m, d): _frame(sizes[m][d], requests[i], lengths[j]) for i, j, m, d in settings}
    controls = [
        Control("requests", "requests in the pass", list(requests), start=min(4, len(requests) - 1)),
        Control(
            "length", "tokens of each request", list(lengths), list(map(_short, lengths)), min(3, len(lengths) - 1)
        ),
        Control("model", "model", list(models)),
        Control("dtype", "numbers", [f"{str(dtype)[6:]}: {dtype.itemsize} bytes each" for dtype in DTYPES]),
    ]
    return Explorable(
        "What does a DECODE pass read: weights or K/V?",
        "A pass reads all weights once, and the K/V of each of its requests. Add requests, or make them longer, and see "
        "when K/V becomes more than half. Then choose other numbers: does that change the shares?",
        controls,
        frames,
        height=840,
        source="Counted by the package from the shapes of the models, also for texts longer than they were trained for.",
    )


def _frame(size: Size, requests: int, length: int) -> Frame:
    tokens = requests * length
    kv = tokens * size.per_token
    read = size.weights + kv
    shares = [
        Bar(name, round(part / read, 4), f"{num_bytes(part)}, {percent(part, read)}", look=look)
        for name, part, look in (("weights", size.weights, "bar"), ("K/V", kv, "in-use"))
    ]
    enough = size.weights // (size.per_token * length) + 1
    numbers = [
        Number("weights ÷ K/V of one token", f"{size.border:,.0f} tokens"),
        Number("K/V is more than half from", f"{count(enough, 'request')} of this length on", strong=True),
        Number("K/V of one token", num_bytes(size.per_token)),
        Number("K/V of one request", num_bytes(size.per_token * length)),
        Number("requests that fit into 1 GB", _round(GB / (size.per_token * length))),
    ]
    panels = [Bars("What the pass reads", shares, 1), Numbers("Where K/V becomes more than half", numbers)]
    said = f"{count(requests, 'request')} of {count(length, 'token')}: {tokens:,} in all"
    return Frame(panels, f"{said}. K/V is {'more' if kv > size.weights else 'less'} than half of what the pass reads.")


def _short(length: int) -> str:
    """`4k` for 4,096: there is little room beneath a slider."""
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else str(length)


def _round(value: float) -> str:
    """Two digits where it is small, so that a tenth of a request is not 0."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
