"""RadixAttention: an attention layer whose keys and values are in the TokenToKVPool."""

import torch

from nanoinfer.model.attention.base import AttentionBackend, AttentionLayer
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.input_metadata import InputMetadata


class RadixAttention(AttentionLayer):
    """Stores the new tokens' K/V in their slots, then lets the attention backend attend over the pool."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, metadata: InputMetadata) -> torch.Tensor:
        """`q` [T, H, D], `k` and `v` [T, Hk, D] → [T, H, D]. Writes `k` and `v` into slots `out_cache_loc`."""
        backend: AttentionBackend = metadata.attention_backend
        if hasattr(backend, "store"):  # in a way of its own
            backend.store(k, v, self, metadata)
        else:
            metadata.token_to_kv_pool.set_kv_buffer(self.layer_id, metadata.out_cache_index, k, v)
        if metadata.forward_mode is ForwardMode.DECODE:
            return backend.forward_decode(q, self, metadata)
        return backend.forward_extend(q, self, metadata)
