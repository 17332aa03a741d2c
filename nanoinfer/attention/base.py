"""The interface between the model's attention layers and whoever computes attention over the pool."""

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from nanoinfer.input_metadata import InputMetadata
    from nanoinfer.layers.radix_attention import RadixAttention


class AttentionBackend(Protocol):
    """Attends over K/V in the TokenToKVPool. The K/V of the new tokens is there already when `forward_*` is called."""

    def init_forward(self, metadata: "InputMetadata") -> None:
        """Called once a pass, before the first layer: put what all layers share into `metadata.attention_plan`."""

    def forward_extend(self, q: torch.Tensor, layer: "RadixAttention", metadata: "InputMetadata") -> torch.Tensor:
        """`q` [T, H, D] → [T, H, D]: each new token attends to its request's tokens up to and including itself."""
        ...

    def forward_decode(self, q: torch.Tensor, layer: "RadixAttention", metadata: "InputMetadata") -> torch.Tensor:
        """`q` [B, H, D] → [B, H, D]: the newest token of each request attends to all tokens of that request."""
        ...
