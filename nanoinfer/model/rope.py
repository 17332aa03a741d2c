"""Rotary embeddings (Su et al., 2021), and RopeScaling, which stretches their frequencies (linear, llama3 or yarn) for
contexts longer than those seen in training."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from nanoinfer.errors import UnsupportedModelError

# The kinds of scaling, and what a config must say for each. Optional for yarn: OPTIONAL_NUMBERS, and `truncate`.
REQUIRED_NUMBERS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
OPTIONAL_NUMBERS = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched. `rope_type` is a key of REQUIRED_NUMBERS; it determines which fields matter."""

    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0  # multiplies cosines and sines, so it multiplies scores by its square

    def stretch(self, inv_freq: torch.Tensor, theta: float) -> torch.Tensor:
        """Stretch `inv_freq` float32 `[D/2]`: the radians per token of each pair, as trained with base `theta`.

        `linear` slows all pairs down by `factor`. `llama3` slows down the pairs that turn less than `low_freq_factor` times
        within the original context, keeps those that turn more than `high_freq_factor` times, and blends in between
        (Llama 3.1). `yarn` does the same with `beta_slow` and `beta_fast` turns, but blends evenly from pair to pair (Peng
        et al., 2023).
        """
        if self.rope_type == "linear":
            return inv_freq / self.factor
        if self.rope_type == "llama3":
            turns = self.original_max_position_embeddings * inv_freq / (2 * math.pi)
            low, high = self.low_freq_factor, self.high_freq_factor
            keep = ((turns - low) / (high - low)).clamp(0, 1)
            return (1 - keep) * inv_freq / self.factor + keep * inv_freq
        if self.rope_type == "yarn":
            # Rounded step by step as in transformers: far into a context, one last bit makes a visible difference.
            head_dim = 2 * len(inv_freq)
            slowed = 1.0 / (self.factor * theta ** (torch.arange(0, head_dim, 2).float() / head_dim))
            first, last = self._blended_pairs(head_dim, theta)
            keep = 1 - ((torch.arange(len(inv_freq)).float() - first) / (last - first)).clamp(0, 1)
            return slowed * (1 - keep) + inv_freq * keep
        return inv_freq

    def _blended_pairs(self, head_dim: int, theta: float) -> tuple[float, float]:
        """For yarn: the pair that turns `beta_fast` times within the original context, and the one that turns `beta_slow`
        times; whole numbers with `truncate`. Pairs before the first are kept, pairs after the last are slowed down."""

        def pair(turns: float) -> float:
            tokens_per_turn = self.original_max_position_embeddings / turns
            return head_dim * math.log(tokens_per_turn / (2 * math.pi)) / (2 * math.log(theta))

        first, last = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, head_dim - 1)
        return first, last + 0.001 if first == last else last

    def context_len(self, max_position_embeddings: int) -> int:
        """How many positions the model serves. A config with yarn often still has the old `max_position_embeddings` (Qwen
        advises adding `rope_scaling` and nothing else), so this is at least what yarn stretches the original context to."""
        if self.rope_type != "yarn":
            return max_position_embeddings
        return max(max_position_embeddings, int(self.factor * self.original_max_position_embeddings))


def read_rope_scaling(rope: dict[str, Any], max_position_embeddings: int) -> RopeScaling:
    """Read transformers' `rope_parameters`. UnsupportedModelError naming what is missing, wrong or not supported."""
    kind = rope.get("rope_type", "default")
    if kind not in REQUIRED_NUMBERS:
        raise UnsupportedModelError(f"rope_type={kind!r}: must be one of {', '.join(REQUIRED_NUMBERS)}")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError(f"partial_rotary_factor={rope['partial_rotary_factor']}: must be 1.0")
    rope = {"original_max_position_embeddings": max_position_embeddings, **rope}
    missing = [name for name in REQUIRED_NUMBERS[kind] if name not in rope]
    if missing:
        raise UnsupportedModelError(f"rope_type={kind!r}: {', '.join(missing)} missing from the checkpoint's config")
    fields: dict[str, Any] = {name: _number(rope, name) for name in REQUIRED_NUMBERS[kind]}
    if kind == "yarn":
        fields.update(_yarn_options(rope))
    scaling = RopeScaling(kind, **fields)
    if not scaling.factor >= 1:
        raise UnsupportedModelError(f"rope factor={scaling.factor}: must be at least 1")
    if not 0 < scaling.low_freq_factor < scaling.high_freq_factor:
        raise UnsupportedModelError(
            f"rope high_freq_factor={scaling.high_freq_factor}: must exceed low_freq_factor={scaling.low_freq_factor} > 0"
        )
    if not 0 < scaling.beta_slow <= scaling.beta_fast:
        raise UnsupportedModelError(
            f"rope beta_fast={scaling.beta_fast}: must be at least beta_slow={scaling.beta_slow} > 0"
        )
    for name in ("original_max_position_embeddings", "attention_factor"):
        if not getattr(scaling, name) > 0:
            raise UnsupportedModelError(f"rope {name}={getattr(scaling, name)}: must be above 0")
    if kind == "yarn" and not rope.get("rope_theta", 10000.0) > 1:
        raise UnsupportedModelError(f"rope_theta={rope['rope_theta']}: must be above 1 with yarn")
    return scaling


def _yarn_options(rope: dict[str, Any]) -> dict[str, Any]:
    """The optional values. As in transformers, zero means the same as absent, except for `attention_factor`."""
    said = {name: _number(rope, name) for name in OPTIONAL_NUMBERS if rope.get(name) is not None}
    attention_factor = said.pop("attention_factor", None)
    mscale, mscale_all_dim = said.pop("mscale", 0), said.pop("mscale_all_dim", 0)
    if attention_factor is None and mscale and mscale_all_dim:
        attention_factor = _mscale(rope["factor"], mscale) / _mscale(rope["factor"], mscale_all_dim)
    elif attention_factor is None:
        attention_factor = _mscale(rope["factor"], 1)
    betas = {name: value for name, value in said.items() if value}
    truncate = rope.get("truncate", True)
    if not isinstance(truncate, bool):
        raise UnsupportedModelError(f"rope truncate={truncate!r}: must be true or false")
    return {"attention_factor": float(attention_factor), "truncate": truncate, **betas}


def _mscale(factor: float, weight: float) -> float:
    """Longer contexts spread attention more thinly; this factor sharpens it again (YaRN, section 3.4)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _number(rope: dict[str, Any], name: str) -> float:
    value: Any = rope[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UnsupportedModelError(f"rope {name}={value!r}: must be a number")
    return value


class RotaryEmbedding:
    """Positions as rotations of query and key: cosine and sine tables `[max_len, D/2]`, computed once. Pairs are
    (i, i + D/2), as in Hugging Face checkpoints."""

    def __init__(
        self,
        head_dim: int,
        max_len: int,
        theta: float,
        scaling: RopeScaling,
        dtype: torch.dtype,
        device: torch.device,
    ):
        angles = torch.outer(torch.arange(max_len).float(), inverse_frequencies(head_dim, theta, scaling))
        self.cos = (angles.cos() * scaling.attention_factor).to(dtype).to(device)
        self.sin = (angles.sin() * scaling.attention_factor).to(dtype).to(device)


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling) -> torch.Tensor:
    """Radians per token for each pair, float32 `[D/2]`: those of the training, stretched by `scaling`."""
    inv_freq = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    return scaling.stretch(inv_freq, theta)
