"""Attention in C++: equal to plain torch, and the same bits for a token whoever is computed beside it."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nanoinfer.cache.memory_pool import TokenToKVPool
from nanoinfer.model.attention import TorchNativeBackend
from nanoinfer.model.attention.base import AttentionLayer
from nanoinfer.model.attention.cpp import CppAttention
from nanoinfer.model.forward_batch import ForwardMode
from tests.helpers.kernels import DTYPES, TOLERANCE, need_cpp, random

SHAPES = [(4, 4, 32), (6, 2, 48), (8, 2, 64), (7, 1, 80), (5, 1, 96), (6, 1, 128), (8, 1, 256), (40, 2, 36), (2, 1, 6)]
LENGTH = 200


def cpp_attention(dtype: torch.dtype) -> CppAttention:
    need_cpp(dtype)
    return CppAttention(dtype)


def int32(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


class Sequence:
    """One sequence of LENGTH tokens in a pool, in slots that lie anywhere, and the queries of all its tokens."""

    def __init__(self, dtype: torch.dtype, heads: int, kv_heads: int, dim: int, kv_cache_dtype: str | None = None):
        self.pool = TokenToKVPool(2 * LENGTH, dtype, kv_heads, dim, 1, kv_cache_dtype=kv_cache_dtype)
        kv = (random(2 * LENGTH, kv_heads, dim, dtype=dtype, seed=seed) for seed in (1, 2))
        self.pool.set_kv_buffer(0, slice(0, 2 * LENGTH), *kv)
        shuffled = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(3)).int()
        self.slots = torch.cat(
            (torch.arange(LENGTH, LENGTH + 70).int(), shuffled[: LENGTH - 70])
        )  # neighbours, then not
        self.q = random(LENGTH, heads + 2, dim, dtype=dtype)[:, :heads]  # a part of wider rows

    def attend(self, backend: Any, layer: AttentionLayer, spans: list[tuple[int, int]]) -> torch.Tensor:
        """Tokens start..end - 1 for each (start, end) of `spans`, each span as a request of its own in the same pass."""
        ends, lens = [end for _, end in spans], [end - start for start, end in spans]
        metadata = SimpleNamespace(
            forward_mode=ForwardMode.EXTEND,
            token_to_kv_pool=self.pool,
            kv_indices=torch.cat([self.slots[:end] for end in ends]),
            kv_indptr=int32(0, *torch.tensor(ends).cumsum(0)),
            qo_indptr=int32(0, *torch.tensor(lens).cumsum(0)),
            seq_lens=int32(*ends),
            batch_size=len(spans),
        )
        backend.init_forward(metadata)
        parts = [self.q[start:end] for start, end in spans]
        return backend.forward_extend(torch.cat(parts) if len(parts) > 1 else parts[0], layer, metadata)

    def exact(self, layer: AttentionLayer, spans: list[tuple[int, int]]) -> torch.Tensor:
        """The reference: plain torch in float32, of the K/V that the pool gives back."""
        heads, dim = self.q.shape[1:]
        other = Sequence(torch.float32, heads, layer.num_kv_heads, dim)
        kept = self.pool.read(0, slice(0, 2 * LENGTH))
        other.pool.set_kv_buffer(0, slice(0, 2 * LENGTH), kept[0].float(), kept[1].float())
        other.q = self.q.float()
        return other.attend(TorchNativeBackend(), layer, spans)


def assert_near(got: torch.Tensor, wanted: torch.Tensor, least: float = 0) -> None:
    error = (got.float() - wanted).abs().max() / wanted.abs().max()
    assert error <= max(TOLERANCE[got.dtype], least)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [*SHAPES, (4, 4, 4), (66, 1, 8)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_do_not_depend_on_what_is_computed_together(dtype: torch.dtype, heads: int, kv_heads: int, dim: int):
    backend, sequence = cpp_attention(dtype), Sequence(dtype, heads, kv_heads, dim)
    for window in (None, 1, 50, 64, 130):
        layer = AttentionLayer(0, heads, kv_heads, dim, window)
        whole = sequence.attend(backend, layer, [(0, LENGTH)])
        assert_near(whole, sequence.exact(layer, [(0, LENGTH)]))
        for size in (1, 3, 7, 64, 133):
            spans = [(i, min(i + size, LENGTH)) for i in range(0, LENGTH, size)]
            assert torch.equal(sequence.attend(backend, layer, spans), whole)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_last_tokens_of_a_sequence_are_the_same_bits_whatever_their_number(dtype: torch.dtype):
    backend, sequence = cpp_attention(dtype), Sequence(dtype, 6, 2, 64)
    layer = AttentionLayer(0, 6, 2, 64)
    whole = sequence.attend(backend, layer, [(0, LENGTH)])
    for new in range(1, 71):
        assert torch.equal(sequence.attend(backend, layer, [(LENGTH - new, LENGTH)]), whole[-new:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_do_not_depend_on_the_number_of_threads(dtype: torch.dtype):
    backend, sequence = cpp_attention(dtype), Sequence(dtype, 6, 2, 64)
    layer, before, results = AttentionLayer(0, 6, 2, 64), torch.get_num_threads(), []
    spans = [(end - 1, end) for end in range(150, 156)], [(0, LENGTH), (190, LENGTH)]
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append([sequence.attend(backend, layer, some) for some in spans])
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_padding_cost_nothing_and_are_left_alone(dtype: torch.dtype):
    """A captured graph gives the kernel the table of all rows, and where each request's row starts."""
    backend, sequence = cpp_attention(dtype), Sequence(dtype, 6, 2, 64)
    layer = AttentionLayer(0, 6, 2, 64)
    alone = sequence.attend(backend, layer, [(LENGTH - 1, LENGTH)])
    table = torch.full((3, LENGTH + 5), 2**30, dtype=torch.int32)  # slots that must not be read
    table[2, :LENGTH] = sequence.slots
    q = torch.cat((sequence.q[-1:], sequence.q[-1:], torch.full_like(sequence.q[:1], torch.nan)))
    metadata = SimpleNamespace(
        token_to_kv_pool=sequence.pool,
        kv_indices=table,
        kv_indptr=int32(0, 2 * (LENGTH + 5), LENGTH + 5),
        qo_indptr=int32(0, 1, 2, 3),
        seq_lens=int32(0, LENGTH, 0),
        batch_size=3,
    )
    assert torch.equal(backend.forward_decode(q, layer, metadata)[1:2], alone)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tokens_of_one_request_that_share_its_row_have_the_bits_of_each_alone(
    dtype: torch.dtype, heads: int, kv_heads: int, dim: int
):
    """A captured VERIFY gives a request once per token. Rows that follow each other are computed together; a jump, a step
    back, the same length again, padding and another request's row end that."""
    backend, (sequence, other) = cpp_attention(dtype), (Sequence(dtype, heads, kv_heads, dim) for _ in range(2))
    other.slots = other.slots.flip(0)
    table = torch.stack([torch.full_like(sequence.slots, 2**30), sequence.slots, other.slots])
    places = [*((1, end) for end in (*range(60, 69), 120, 121, 120, 120)), (0, 0), (1, 1), (1, 2), (0, 0)]
    places += [(1, 198), (2, 199), (2, 200), (1, 199), (1, 200), (0, 0), (0, 0)]
    q = torch.stack([sequence.q[end - 1] for _, end in places])
    metadata = SimpleNamespace(
        token_to_kv_pool=sequence.pool,
        kv_indices=table,
        kv_indptr=int32(*(row * LENGTH for row, _ in places)),
        qo_indptr=torch.arange(len(places) + 1, dtype=torch.int32),
        seq_lens=int32(*(end for _, end in places)),
        batch_size=len(places),
    )
    before = torch.get_num_threads()
    for window in (None, 50):
        layer = AttentionLayer(0, heads, kv_heads, dim, window)
        whole = [each.attend(backend, layer, [(0, LENGTH)]) for each in (sequence, sequence, other)]
        try:
            for threads in (1, 3):
                torch.set_num_threads(threads)
                got = backend.forward_decode(q, layer, metadata)
                for (row, end), result in zip(places, got, strict=True):
                    assert not end or torch.equal(result, whole[row][end - 1])
        finally:
            torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_draft_whose_value_is_no_number_changes_no_token_before_it(dtype: torch.dtype):
    backend, sequence, layer = cpp_attention(dtype), Sequence(dtype, 6, 2, 64), AttentionLayer(0, 6, 2, 64)
    ends = range(LENGTH - 4, LENGTH + 1)
    alone = [sequence.attend(backend, layer, [(end - 1, end)])[0] for end in ends]
    sequence.pool.get_value_buffer(0)[int(sequence.slots[-2])] = torch.nan
    metadata = SimpleNamespace(
        token_to_kv_pool=sequence.pool,
        kv_indices=sequence.slots,
        kv_indptr=int32(*[0] * len(ends)),
        qo_indptr=torch.arange(len(ends) + 1, dtype=torch.int32),
        seq_lens=int32(*ends),
        batch_size=len(ends),
    )
    got = backend.forward_decode(sequence.q[-len(ends) :], layer, metadata)
    assert all(map(torch.equal, got[:3], alone[:3]))
    assert got[3:].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_softcap_is_torchs(dtype: torch.dtype):
    backend, sequence = cpp_attention(dtype), Sequence(dtype, 6, 2, 64)
    for cap, scale in ((2.0, 0.4), (50.0, 0.125), (0.1, 3.0)):
        layer = AttentionLayer(0, 6, 2, 64, sliding_window=90, scale=scale, softcap=cap)
        spans = [(0, LENGTH), (LENGTH - 1, LENGTH)]
        got = sequence.attend(backend, layer, spans)
        assert_near(got, sequence.exact(layer, spans))
        assert torch.equal(got[-1], got[-2])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scores_that_grow_and_shrink_by_much_are_softened_as_by_torch(dtype: torch.dtype):
    """The running maximum follows only large changes; probabilities far below it are exactly 0."""
    backend, layer = cpp_attention(dtype), AttentionLayer(0, 4, 1, 32)
    for first, last in ((64, 128), (64, LENGTH)):
        for factor in (0.0, 1e-20, 10.0, 100.0):
            sequence = Sequence(dtype, 4, 1, 32)
            sequence.pool.get_key_buffer(0)[sequence.slots[first:last].long()] *= factor
            got, exact = sequence.attend(backend, layer, [(0, LENGTH)]), sequence.exact(layer, [(0, LENGTH)])
            assert_near(got, exact, least=1e-4)  # of large scores, rounding is seen


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_int8_gives_the_bits_of_what_the_storage_reads(dtype: torch.dtype, heads: int, kv_heads: int, dim: int):
    backend, sequence = cpp_attention(dtype), Sequence(dtype, heads, kv_heads, dim, "int8")
    plain, layer = Sequence(dtype, heads, kv_heads, dim), AttentionLayer(0, heads, kv_heads, dim)
    plain.pool.set_kv_buffer(0, slice(0, 2 * LENGTH), *sequence.pool.read(0, slice(0, 2 * LENGTH)))
    for spans in ([(0, LENGTH)], [(LENGTH - 1, LENGTH), (70, 71)]):
        assert torch.equal(sequence.attend(backend, layer, spans), plain.attend(backend, layer, spans))


@pytest.mark.parametrize("dim", [6, 32, 64, 80])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernel_stores_int8_as_the_storage_does(dtype: torch.dtype, dim: int):
    backend, layer = cpp_attention(dtype), AttentionLayer(0, 2, 2, dim)
    given = random(40, 6, dim, dtype=dtype)
    given[3], given[4], given[5], given[6, 0] = 0, given[4] * 1e-42, given[5] * 1e30, torch.arange(dim) - 2.5
    k, v = given[:, :2], given[:, 3:5]  # parts of wider rows
    slots = torch.randperm(60, generator=torch.Generator().manual_seed(0))[:40].int()
    kernels, torchs = (TokenToKVPool(60, dtype, 2, dim, 1, kv_cache_dtype="int8") for _ in range(2))
    slots[7] = -1  # a row of padding
    metadata = SimpleNamespace(token_to_kv_pool=kernels, out_cache_loc=slots)
    backend.store(k, v, layer, metadata)
    torchs.set_kv_buffer(0, slots[slots >= 0].long(), k[slots >= 0], v[slots >= 0])
    for name in ("key_numbers", "value_numbers", "key_scales", "value_scales"):
        assert torch.equal(getattr(kernels.kv_storage, name)[0], getattr(torchs.kv_storage, name)[0])
    assert not kernels.read(0, slots[3:4].long())[0].any()


def test_leftovers_in_slots_of_no_request_do_not_reach_a_result():
    backend, sequence = cpp_attention(torch.float32), Sequence(torch.float32, 2, 1, 16)
    layer, others = AttentionLayer(0, 2, 1, 16), torch.ones(2 * LENGTH, dtype=torch.bool)
    clean = sequence.attend(backend, layer, [(0, LENGTH)])
    others[sequence.slots.long()] = False
    for buffer in (sequence.pool.get_key_buffer(0), sequence.pool.get_value_buffer(0)):
        buffer[others] = torch.nan
    assert torch.equal(sequence.attend(backend, layer, [(0, LENGTH)]), clean)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_of_python_compute_side_by_side(dtype: torch.dtype):
    kernels = need_cpp(dtype)
    backend, sequence, layer = cpp_attention(dtype), Sequence(dtype, 6, 2, 32), AttentionLayer(0, 6, 2, 32)
    packed = kernels.pack(random(96, 6 * 32, dtype=dtype, seed=1))

    def compute(_: int) -> torch.Tensor:
        return kernels.linear(sequence.attend(backend, layer, [(0, LENGTH)]).view(LENGTH, -1), packed, None, 96)

    alone = compute(0)
    with ThreadPoolExecutor(4) as threads:
        assert all(torch.equal(out, alone) for out in threads.map(compute, range(24)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kv_of_another_dtype_or_device_is_refused(dtype: torch.dtype):
    need_cpp(dtype)
    for kv_dtype, device in ((torch.bfloat16 if dtype is torch.float32 else torch.float32, "cpu"), (dtype, "meta")):
        pool = TokenToKVPool(8, kv_dtype, 2, 16, 1, device)
        with pytest.raises(
            ValueError, match=f"token_to_kv_pool: {kv_dtype} on {device}, must be the model's {dtype} on cpu"
        ):
            cpp_attention(dtype).init_forward(SimpleNamespace(token_to_kv_pool=pool))
