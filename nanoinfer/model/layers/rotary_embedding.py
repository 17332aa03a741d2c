"""RotaryEmbedding: positions as rotations of query and key (Su et al., 2021), with linear and llama3 scaling."""

import math

import torch

from nanoinfer.model.config import RopeScaling


class RotaryEmbedding:
    """Cosine and sine tables `[max_len, D/2]`, made once. Pairs are (i, i + D/2), as in Hugging Face checkpoints."""

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
        self.cos = angles.cos().to(dtype).to(device)
        self.sin = angles.sin().to(dtype).to(device)


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling) -> torch.Tensor:
    """Radians per token for each pair, float32 `[D/2]`.

    `linear` slows all pairs down by `factor`. `llama3` slows down by `factor` the pairs that turn less than
    `low_freq_factor` times within the original context, leaves those that turn more than `high_freq_factor` times, and
    blends in between (Llama 3.1).
    """
    inv_freq = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    if scaling.rope_type == "linear":
        return inv_freq / scaling.factor
    if scaling.rope_type == "llama3":
        turns = scaling.original_max_position_embeddings * inv_freq / (2 * math.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        keep = ((turns - low) / (high - low)).clamp(0, 1)
        return (1 - keep) * inv_freq / scaling.factor + keep * inv_freq
    return inv_freq
