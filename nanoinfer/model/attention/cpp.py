"""CppAttention: paged attention in C++, straight from the slots."""

import torch

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.kernels.cpp import kernel
from nanoinfer.model.attention.base import AttentionLayer
from nanoinfer.model.input_metadata import InputMetadata


class CppAttention:
    """The same kernel for both passes: a decode is an extend of one token.

    K/V is read where it lies, block by block of 64 tokens; nothing is gathered into a rectangle first. A token's result
    is the same bits however its request was split into passes and whatever else is in them.
    KernelsUnavailableError when the kernels cannot be built or have nothing for `dtype`, and of a layer with a softcap.
    """

    def __init__(self, dtype: torch.dtype):
        self._attention, self._dtype = kernel("attention", dtype), dtype

    def init_forward(self, metadata: InputMetadata) -> None:
        """Nothing to prepare: the kernel reads the CSR description. ValueError when K/V is of another dtype."""
        if metadata.token_to_kv_pool.dtype is not self._dtype:
            raise ValueError(f"token_to_kv_pool: {metadata.token_to_kv_pool.dtype}, must be {self._dtype} as the model")

    def forward_extend(self, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> torch.Tensor:
        """`q` [T, H, D], the heads of a token side by side in memory, tokens at any stride → [T, H, D]."""
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
