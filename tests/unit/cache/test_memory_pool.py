"""The memory pools: which slots, pages and rows they give, what they refuse by name, and what that costs."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.slot_allocator import BLOCK, SlotAllocator
from tests.helpers.fakes import counted_calls


def kv_pool(size: int = 16, page_size: int = 1, layer_num: int = 1) -> TokenToKVPool:
    return TokenToKVPool(size, torch.float32, head_num=2, head_dim=4, layer_num=layer_num, page_size=page_size)


# --- pages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_the_block_layout_is_the_same_memory(page_size: int) -> None:
    pool = kv_pool(32, page_size, layer_num=2)
    for buffer in (pool.get_key_buffer(1), pool.get_value_buffer(1)):
        assert buffer.shape == (32, 2, 4)
        blocks = buffer.view(32 // page_size, page_size, 2, 4)
        blocks[17 // page_size, 17 % page_size] = 3.0
        assert buffer.nonzero()[:, 0].unique().tolist() == [17]
    assert pool.get_key_buffer(0).count_nonzero() == 0
    assert pool.get_key_buffer(1).data_ptr() != pool.get_value_buffer(1).data_ptr()


@pytest.mark.parametrize("where", [torch.tensor([5, 1], dtype=torch.int32), slice(4, 6)])
def test_keys_and_values_land_in_their_layer_and_slots(where: torch.Tensor | slice) -> None:
    pool = kv_pool(8, layer_num=2)
    keys, values = torch.randn(2, 2, 4), torch.randn(2, 2, 4)
    pool.set_kv_buffer(1, where, keys, values)
    index = [5, 1] if isinstance(where, torch.Tensor) else [4, 5]
    assert torch.equal(pool.get_key_buffer(1)[index], keys)
    assert torch.equal(pool.get_value_buffer(1)[index], values)
    assert all(map(torch.equal, pool.read(1, where), (keys, values)))
    others = [slot for slot in range(8) if slot not in index]
    assert not pool.get_key_buffer(1)[others].any()
    assert not pool.get_key_buffer(0).any()
    assert not pool.get_value_buffer(0).any()


# --- rows --------------------------------------------------------------------------------------------------------


def test_rows_are_given_lowest_first_all_or_nothing() -> None:
    pool = ReqToTokenPool(4, max_context_len=10)
    assert pool.req_to_token.shape == (4, 10)
    assert pool.req_to_token.dtype == torch.int32
    rows = pool.alloc(3)
    assert rows.dtype == torch.int32
    assert rows.tolist() == [0, 1, 2]
    assert pool.alloc(2) is None
    assert pool.available_size() == 1
    pool.free([1])
    rows = pool.alloc(2)
    assert rows.tolist() == [1, 3]
    pool.check_integrity()


# --- what free refuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "given_back", "message"),
    [
        *((lambda: kv_pool(16), *case) for case in [
            ([0, 16], r"slot 16: outside 0\.\.15"),
            ([1, -1], r"slot -1: outside 0\.\.15"),
            ([2, 9], r"slot 9: already free"),
            ([3, 1, 3], r"slot 3: given twice"),
        ]),
        *((lambda: kv_pool(16, 4), pages, rf"slot {named}: .*page of 4") for pages, named in [
            ([0, 1], 1), ([2, 3], 2), ([1, 2, 3, 4, 5, 6], 1), (range(6), 5),
        ]),
        *((lambda: ReqToTokenPool(16, 10), *case) for case in [
            ([16], "row 16"), ([-1], "row -1"), ([9], "row 9: already free"), ([0, 0], "row 0"),
        ]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", [list, np.array, torch.tensor])
def test_what_is_not_the_callers_is_refused_by_name_and_nothing_is_freed(
    make: Callable[[], Any], given_back: Sequence[int], message: str, form: Callable[[Sequence[int]], Any]
) -> None:
    pool = make()
    pool.alloc(8)
    with pytest.raises(ValueError, match=message):
        pool.free(form(given_back))
    assert pool.available_size() == 8
    pool.check_integrity()


# --- construction ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ReqToTokenPool(0, 4), "size=0"),
        (lambda: TokenToKVPool(0, torch.float32, 1, 1, 1), "size=0"),
        (lambda: TokenToKVPool(4, torch.float32, 1, 1, 1, page_size=0), "page_size=0"),
        (lambda: TokenToKVPool(10, torch.float32, 1, 1, 1, page_size=4), "page_size=4.*size=10"),
    ],
)
def test_a_pool_that_makes_no_sense_is_refused_by_field(make: Callable[[], object], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make()


# --- runs of neighbours --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [(3 * BLOCK - 2, 4), (BLOCK + 1, 2 * BLOCK), (5 * BLOCK, 3)])
def test_a_run_is_found_across_blocks_and_at_the_end(run: tuple[int, int]) -> None:
    start, length = run
    allocator = SlotAllocator(5 * BLOCK + 3)
    allocator.alloc(allocator.size)
    allocator.free(range(start, start + length))
    allocator.free([0])
    assert allocator.alloc_contiguous(length + 1) is None
    slots = allocator.alloc_contiguous(length)
    assert slots.tolist() == list(range(start, start + length))
    allocator.check_integrity()
    rest = allocator.alloc(1)
    assert rest.tolist() == [0]
    assert allocator.alloc(1) is None


# --- cost --------------------------------------------------------------------------------------------------------


def calls_of_a_busy_period(size: int) -> int:
    """Function calls of the same small work in a pool of `size` slots, the upper three quarters of it fragmented."""
    allocator = SlotAllocator(size)
    allocator.alloc(size)
    allocator.free(range(size // 4, size, 2))
    allocator.free(range(1, 64, 2))
    for _ in range(10):
        with counted_calls() as calls:
            slots = allocator.alloc(40)
            assert slots is not None
            assert allocator.alloc_contiguous(2) is None
            allocator.free(slots)
    return calls.total()  # of the last round: in the first one, blocks that are full now are noticed, once


def test_work_does_not_grow_with_the_pool() -> None:
    assert calls_of_a_busy_period(2**20) == calls_of_a_busy_period(2**15)


# --- check_integrity ---------------------------------------------------------------------------------------------


def lose_a_slot(allocator: SlotAllocator) -> None:
    allocator._is_free[3] = False


def make_up_a_slot(allocator: SlotAllocator) -> None:
    allocator._is_free[0] = True


def hide_free_slots(allocator: SlotAllocator) -> None:
    allocator._block_marks[0] = False


def miscount(allocator: SlotAllocator) -> None:
    allocator._available += 1


@pytest.mark.parametrize("corrupt", [lose_a_slot, make_up_a_slot, hide_free_slots, miscount])
def test_check_integrity_notices_a_free_list_that_contradicts_itself(corrupt: Callable[[SlotAllocator], None]) -> None:
    pools: list[tuple[Any, SlotAllocator]] = []
    slots, rows = kv_pool(16), ReqToTokenPool(16, 4)
    pools += [(slots, slots._slots), (rows, rows._rows)]
    for pool, allocator in pools:
        pool.alloc(16)
        pool.free([3, 4, 12, 13, 14, 15])
        pool.check_integrity()
        corrupt(allocator)
        with pytest.raises(RuntimeError, match="free list"):
            pool.check_integrity()
