"""RotaryEmbedding: positions as rotations of query and key (Su et al., 2021)."""

import torch

from nanoinfer.model.rope import RopeScaling


class RotaryEmbedding:
    """Cosine and sine tables `[max_len, D/2]`, computed once. Pairs are (i, i + D/2), as in Hugging Face checkpoints."""

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
