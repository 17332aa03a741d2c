"""CppAttention: paged attention in C++ that reads K/V straight from the slots."""

import torch

from nanoinfer.cache.kv_storage import Int8KVStorage
from nanoinfer.cache.memory_pool import TokenToKVPool
from nanoinfer.model.attention.base import INT8_KV, SOFTCAP, AttentionLayer
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.kernels.functions import function


class CppAttention:
    """The same kernel for both passes: a decode is an extend of one token.

    K/V is read in place, in blocks of 64 tokens, and is not gathered into a rectangle first. A token's result is the same
    to the last bit, however its request was split into passes and whatever else is in those passes. K/V in int8 gives the
    bits that plain buffers with the numbers of `token_to_kv_pool.read` would give.
    KernelsUnavailableError when the kernels cannot be built or do not support `dtype`.
    """

    features = frozenset({SOFTCAP, INT8_KV})
    recordable = True  # a Program can be made of its calls

    def __init__(self, dtype: torch.dtype):
        self._attention, self._store, self._dtype = function("attention", dtype), function("store_rows"), dtype
        self._store_int8 = function("store_int8", dtype)

    def init_forward(self, metadata: InputMetadata) -> None:
        """There is nothing to prepare: the kernel reads the CSR description. ValueError when K/V has another dtype, or is
        not in the CPU's memory."""
        pool = metadata.token_to_kv_pool
        if pool.dtype is not self._dtype or pool.device.type != "cpu":
            raise ValueError(
                f"token_to_kv_pool: {pool.dtype} on {pool.device}, must be the model's {self._dtype} on cpu"
            )

    def store(self, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> None:
        """One call for keys and values. Their tokens may have any stride, but both the same."""
        pool = metadata.token_to_kv_pool
        if type(pool) is not TokenToKVPool or k.stride() != v.stride() or k.stride()[1:] != (layer.head_dim, 1):
            pool.set_kv_buffer(layer.layer_id, metadata.out_cache_index, k, v)
            return
        heads, dim = layer.num_kv_heads, layer.head_dim
        given = k.data_ptr(), v.data_ptr(), metadata.out_cache_loc.data_ptr()
        keys, values, key_scales, value_scales = _buffers(pool, layer)
        assert k.dtype is v.dtype is self._dtype
        if key_scales:
            scales = key_scales, value_scales
            self._store_int8(*given, keys, values, *scales, len(k), heads, dim, k.stride(0))
        else:
            self._store(*given, keys, values, len(k), heads * dim * k.itemsize, k.stride(0) * k.itemsize)

    def forward_extend(self, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> torch.Tensor:
        """`q` [T, H, D] → [T, H, D]. A token's heads must be contiguous in memory; tokens may have any stride."""
        assert q.dtype is self._dtype
        assert q.stride()[1:] == (layer.head_dim, 1)
        out = q.new_empty(q.shape)
        self._attention(
            q.data_ptr(),
            *_buffers(metadata.token_to_kv_pool, layer),
            out.data_ptr(),
            metadata.kv_indices.data_ptr(),
            metadata.kv_indptr.data_ptr(),
            metadata.seq_lens.data_ptr(),
            metadata.qo_indptr.data_ptr(),
            metadata.batch_size,
            layer.num_heads,
            layer.num_kv_heads,
            layer.head_dim,
            q.stride(0),
            layer.scale,
            layer.sliding_window or 0,
            layer.softcap or 0.0,
        )
        return out

    forward_decode = forward_extend


def _buffers(pool: TokenToKVPool, layer: AttentionLayer) -> tuple[int, int, int, int]:
    """The addresses of a layer's keys and values, and those of their scales, or 0 if they have none. ValueError when the
    pool was made for another model, before anything is written beyond its buffers."""
    storage, i = getattr(pool, "kv_storage", None), layer.layer_id
    if type(storage) is Int8KVStorage:
        keys, values = storage.key_numbers[i], storage.value_numbers[i]
        scales = storage.key_scales[i].data_ptr(), storage.value_scales[i].data_ptr()
    else:
        keys, values, scales = pool.get_key_buffer(i), pool.get_value_buffer(i), (0, 0)
    if keys.shape[1:] != (layer.num_kv_heads, layer.head_dim) or values.shape[1:] != keys.shape[1:]:
        raise ValueError(
            f"token_to_kv_pool: {list(keys.shape[1:])} numbers per slot, must be [{layer.num_kv_heads}, {layer.head_dim}]"
        )
    return keys.data_ptr(), values.data_ptr(), *scales
