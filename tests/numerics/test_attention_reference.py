"""Attention in C++ in a pool's rows: equal to plain torch, and the same bits however a request is cut into passes."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.model.attention import TorchNativeBackend
from nanoinfer.model.attention.cpp import CppAttention
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.layers.radix_attention import RadixAttention
from tests.helpers.kernels import DTYPES, assert_close, need_cpp, random


class Pools:
    """Stands in for a model runner: pools with random K/V in them."""

    def __init__(self, dtype: torch.dtype, kv_heads: int, dim: int, size: int = 640):
        self.req_to_token_pool, self.token_to_kv_pool = (
            ReqToTokenPool(8, 300),
            TokenToKVPool(size, dtype, kv_heads, dim, 1),
        )
        for seed, buffer in enumerate(
            (self.token_to_kv_pool.get_key_buffer(0), self.token_to_kv_pool.get_value_buffer(0))
        ):
            buffer.copy_(random(size, kv_heads, dim, dtype=dtype, seed=seed))

    def attend(
        self, backend: object, q: torch.Tensor, layer: RadixAttention, prefix_lens: list[int], seq_lens: list[int]
    ) -> torch.Tensor:
        """The new tokens of requests whose slots are those of `rows`."""
        new = np.concatenate([self.rows[i, a:b] for i, (a, b) in enumerate(zip(prefix_lens, seq_lens, strict=True))])
        metadata = InputMetadata.create(
            self, 1, ForwardMode.EXTEND, list(range(len(seq_lens))), seq_lens, prefix_lens, new
        )
        backend.init_forward(metadata)
        return backend.forward_extend(q, layer, metadata)

    @property
    def rows(self) -> np.ndarray:
        return self.req_to_token_pool.req_to_token.numpy()


def cpp_attention(dtype: torch.dtype) -> CppAttention:
    need_cpp(dtype)
    return CppAttention(dtype)


@pytest.mark.parametrize("window", [None, 1, 37, 64, 100])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(4, 2, 16), (14, 2, 64), (3, 3, 48), (8, 1, 128), (4, 4, 4), (2, 1, 6), (66, 1, 8)]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_is_the_reference(dtype: torch.dtype, heads: int, kv_heads: int, dim: int, window: int | None):
    pools = Pools(dtype, kv_heads, dim)
    shuffled = np.random.default_rng(0).permutation(640).astype(np.int32)
    lens, prefixes = [1, 64, 65, 130, 200], [0, 0, 64, 129, 93]
    for row, (start, end) in enumerate(pairwise(np.concatenate(([0], np.cumsum(lens))))):
        pools.rows[row, : lens[row]] = shuffled[start:end]
    layer = RadixAttention(0, heads, kv_heads, dim, window)
    q = random(sum(lens) - sum(prefixes), heads + 2, dim, dtype=dtype, seed=3)[:, :heads]  # a part of wider rows
    got = pools.attend(cpp_attention(dtype), q, layer, prefixes, lens)
    exact = Pools(torch.float32, kv_heads, dim)
    exact.rows[:] = pools.rows
    for name in ("get_key_buffer", "get_value_buffer"):
        getattr(exact.token_to_kv_pool, name)(0).copy_(getattr(pools.token_to_kv_pool, name)(0))
    wanted = exact.attend(TorchNativeBackend(), q.float(), layer, prefixes, lens)
    assert_close(got, wanted.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_a_token_gets_is_the_same_bits_however_its_request_is_cut(dtype: torch.dtype):
    backend, pools, layer = cpp_attention(dtype), Pools(dtype, 2, 32), RadixAttention(0, 6, 2, 32)
    pools.rows[0, :200] = np.random.default_rng(1).permutation(640)[:200]
    q = random(200, 6, 32, dtype=dtype)
    whole = pools.attend(backend, q, layer, [0], [200])
    for size in (1, 7, 63, 64, 130):
        starts = range(0, 200, size)
        parts = [pools.attend(backend, q[i : i + size], layer, [i], [min(i + size, 200)]) for i in starts]
        assert torch.equal(torch.cat(parts), whole)
    moved = Pools(dtype, 2, 32)
    moved.rows[0, :200] = np.arange(200)
    for name in ("get_key_buffer", "get_value_buffer"):
        getattr(moved.token_to_kv_pool, name)(0)[:200] = getattr(pools.token_to_kv_pool, name)(0)[pools.rows[0, :200]]
    assert torch.equal(moved.attend(backend, q, layer, [0], [200]), whole)


def test_leftovers_in_slots_of_no_request_do_not_reach_a_result():
    pools, layer = Pools(torch.float32, 1, 16), RadixAttention(0, 2, 1, 16)
    pools.rows[0, :70] = np.arange(70)
    q = random(70, 2, 16, dtype=torch.float32)
    clean = pools.attend(cpp_attention(torch.float32), q, layer, [0], [70])
    for buffer in (pools.token_to_kv_pool.get_key_buffer(0), pools.token_to_kv_pool.get_value_buffer(0)):
        buffer[70:] = torch.nan
    assert torch.equal(pools.attend(cpp_attention(torch.float32), q, layer, [0], [70]), clean)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_of_python_compute_side_by_side(dtype: torch.dtype):
    kernels = need_cpp(dtype)
    backend, pools, layer = CppAttention(dtype), Pools(dtype, 2, 32), RadixAttention(0, 6, 2, 32)
    pools.rows[0, :200] = np.arange(200)
    q, packed = random(200, 6, 32, dtype=dtype), kernels.pack(random(96, 192, dtype=dtype, seed=1))

    def compute(_: int) -> torch.Tensor:
        return kernels.linear(pools.attend(backend, q, layer, [0], [200]).view(200, -1), packed, None, 96)

    alone = compute(0)
    with ThreadPoolExecutor(4) as threads:
        assert all(torch.equal(out, alone) for out in threads.map(compute, range(24)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kv_of_another_dtype_is_refused(dtype: torch.dtype):
    need_cpp(dtype)
    pools = Pools(torch.bfloat16 if dtype is torch.float32 else torch.float32, 2, 16)
    pools.rows[0, :3] = 0, 1, 2
    with pytest.raises(ValueError, match=f"token_to_kv_pool: .*must be the model's {dtype}"):
        pools.attend(CppAttention(dtype), random(3, 2, 16, dtype=dtype), RadixAttention(0, 2, 2, 16), [0], [3])
