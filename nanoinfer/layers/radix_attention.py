"""RadixAttention: an attention layer whose keys and values live in the TokenToKVPool."""

import torch

from nanoinfer.input_metadata import ForwardMode, InputMetadata


class RadixAttention:
    """Stores the new tokens' K/V in their slots, then lets the attention backend attend over the pool.

    `sliding_window`: how many tokens back a token sees, itself included; None for all.
    """

    def __init__(
        self, layer_id: int, num_heads: int, num_kv_heads: int, head_dim: int, sliding_window: int | None = None
    ):
        self.layer_id, self.num_heads, self.num_kv_heads, self.head_dim = layer_id, num_heads, num_kv_heads, head_dim
        self.sliding_window = sliding_window
        self.scale = head_dim**-0.5

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, metadata: InputMetadata) -> torch.Tensor:
        """`q` [T, H, D], `k` and `v` [T, Hk, D] → [T, H, D]. Writes `k` and `v` into slots `out_cache_loc`."""
        metadata.token_to_kv_pool.set_kv_buffer(self.layer_id, metadata.out_cache_index, k, v)
        backend = metadata.attention_backend
        assert backend is not None
        if metadata.forward_mode is ForwardMode.EXTEND:
            return backend.forward_extend(q, self, metadata)
        return backend.forward_decode(q, self, metadata)
