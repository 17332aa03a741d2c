"""The interface between the model's attention layers and whoever computes attention over the pool."""

from typing import Protocol

import torch

from nanoinfer.model.input_metadata import InputMetadata


class AttentionLayer:
    """One attention layer as a backend sees it. `sliding_window`: how many tokens back a token sees, itself included; None
    for all. `scale` multiplies the scores (by default 1 / √D); `softcap · tanh(scores / softcap)` then bounds them."""

    def __init__(
        self,
        layer_id: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        sliding_window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ):
        self.layer_id, self.num_heads, self.num_kv_heads, self.head_dim = layer_id, num_heads, num_kv_heads, head_dim
        self.sliding_window, self.softcap = sliding_window, softcap
        self.scale = head_dim**-0.5 if scale is None else scale


class AttentionBackend(Protocol):
    """Attends over K/V in the TokenToKVPool. The K/V of the new tokens is there already when `forward_*` is called."""

    def init_forward(self, metadata: InputMetadata) -> None:
        """Called once a pass, before the first layer: put what all layers share into `metadata.attention_plan`."""

    def forward_extend(self, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> torch.Tensor:
        """`q` [T, H, D] → [T, H, D]: each new token attends to its request's tokens up to and including itself."""
        ...

    def forward_decode(self, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> torch.Tensor:
        """`q` [B, H, D] → [B, H, D]: the newest token of each request attends to all tokens of that request."""
        ...
