"""CppAttention: paged attention in C++ that reads K/V straight from the slots."""

import torch

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.kernels.cpp import kernel
from nanoinfer.model.attention.base import AttentionLayer
from nanoinfer.model.input_metadata import InputMetadata


class CppAttention:
    """The same kernel for both passes: a decode is an extend of one token.

    K/V is read in place, in blocks of 64 tokens, and is not gathered into a rectangle first. A token's result is the same
    to the last bit, however its request was split into passes and whatever else is in those passes.
    KernelsUnavailableError when the kernels cannot be built or do not support `dtype`, and for a layer with a softcap.
    """

    def __init__(self, dtype: torch.dtype):
        self._attention, self._dtype = kernel("attention", dtype), dtype

    def init_forward(self, metadata: InputMetadata) -> None:
        """There is nothing to prepare: the kernel reads the CSR description. ValueError when K/V has another dtype."""
        if metadata.token_to_kv_pool.dtype is not self._dtype:
            raise ValueError(f"token_to_kv_pool: {metadata.token_to_kv_pool.dtype}, must be the model's {self._dtype}")

    def forward_extend(self, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> torch.Tensor:
        """`q` [T, H, D] → [T, H, D]. A token's heads must be contiguous in memory; tokens may have any stride."""
        if layer.softcap is not None:
            raise KernelsUnavailableError(
                f"layer {layer.layer_id}: softcap={layer.softcap}, must be None for the C++ attention; use torch_native"
            )
        assert q.dtype is self._dtype
        assert q.stride()[1:] == (layer.head_dim, 1)
        pool = metadata.token_to_kv_pool
        out = q.new_empty(q.shape)
        self._attention(
            q.data_ptr(),
            pool.get_key_buffer(layer.layer_id).data_ptr(),
            pool.get_value_buffer(layer.layer_id).data_ptr(),
            out.data_ptr(),
            metadata.kv_indices.data_ptr(),
            metadata.kv_indptr.data_ptr(),
            metadata.qo_indptr.data_ptr(),
            metadata.batch_size,
            layer.num_heads,
            layer.num_kv_heads,
            layer.head_dim,
            q.stride(0),
            layer.scale,
            layer.sliding_window or 0,
        )
        return out

    forward_decode = forward_extend
