"""The memory pools: which slots, pages and rows they give, and what their buffers hold."""

from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from tests.helpers.pools import kv_pool, taken

# --- what alloc gives --------------------------------------------------------------------------------------------


def test_alloc_gives_the_lowest_free_slots_as_int32() -> None:
    pool = kv_pool(16)
    slots = pool.alloc(5)
    assert slots is not None
    assert slots.dtype == torch.int32
    assert slots.tolist() == [0, 1, 2, 3, 4]
    assert pool.available_size() == 11


def test_freed_slots_are_given_out_before_higher_ones() -> None:
    pool = kv_pool(16)
    pool.alloc(10)
    pool.free([7, 2, 3])
    slots = pool.alloc(5)
    assert slots is not None
    assert slots.tolist() == [2, 3, 7, 10, 11]


def test_alloc_is_all_or_nothing() -> None:
    pool = kv_pool(8)
    pool.alloc(5)
    assert pool.alloc(4) is None
    assert pool.available_size() == 3
    rest = pool.alloc(3)
    assert rest is not None
    assert rest.tolist() == [5, 6, 7]
    assert pool.alloc(1) is None


def test_nothing_asked_for_is_an_empty_answer_even_from_an_exhausted_pool() -> None:
    pool = kv_pool(4)
    pool.alloc(4)
    slots = pool.alloc(0)
    assert slots is not None
    assert slots.tolist() == []
    assert slots.dtype == torch.int32


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33])
def test_a_pool_of_any_size_can_be_emptied_and_filled_again(size: int) -> None:
    pool = kv_pool(size)
    slots = pool.alloc(size)
    assert slots is not None
    assert slots.tolist() == list(range(size))
    pool.check_integrity()
    pool.free(slots)
    pool.check_integrity()
    assert pool.available_size() == size
    assert pool.alloc_contiguous(size) is not None


def test_alloc_contiguous_takes_the_first_run_that_fits_wherever_it_is() -> None:
    pool = taken(kv_pool(16), 2, 3, 7, 8)  # free: [0,2) [4,7) [9,16)
    found = pool.alloc_contiguous(3)
    assert found is not None
    slots, start, end = found
    assert (slots.tolist(), slots.dtype, start, end) == ([4, 5, 6], torch.int32, 4, 7)
    again = pool.alloc_contiguous(3)
    assert again is not None
    assert again[1:] == (9, 12)


def test_alloc_contiguous_finds_a_run_at_the_very_end() -> None:
    pool = taken(kv_pool(16), *range(13))
    found = pool.alloc_contiguous(3)
    assert found is not None
    assert found[1:] == (13, 16)


def test_alloc_contiguous_refuses_what_only_pieces_could_hold() -> None:
    pool = taken(kv_pool(16), *range(1, 16, 2))
    assert pool.available_size() == 8
    assert pool.alloc_contiguous(2) is None
    assert pool.available_size() == 8
    assert pool.alloc(8) is not None


def test_freeing_the_gap_between_two_free_runs_makes_one_run() -> None:
    pool = taken(kv_pool(16), 5, 6)
    assert pool.alloc_contiguous(16) is None
    pool.free([5])
    pool.free([6])
    found = pool.alloc_contiguous(16)
    assert found is not None
    assert found[1:] == (0, 16)


@pytest.mark.parametrize("need_size", [np.int64(3), np.uint8(3), torch.tensor(3)])
def test_a_size_may_come_out_of_an_array(need_size: Any) -> None:
    pool = kv_pool(8)
    for _ in range(2):
        slots = pool.alloc(need_size)
        assert slots is not None
        pool.check_integrity()
    pool.free([0, 1, 2])
    found = pool.alloc_contiguous(need_size)
    assert found is not None
    assert found[1:] == (0, 3)
    pool.check_integrity()
    pool.free(range(6))
    pool.check_integrity()
    assert pool.available_size() == 8


@pytest.mark.parametrize("need_size", [-1, -4, 2.0, 1.5, float("nan"), "2", None, torch.tensor(2.0)])
@pytest.mark.parametrize("method", ["alloc", "alloc_contiguous"])
def test_a_size_that_is_no_count_is_refused_and_changes_nothing(need_size: Any, method: str) -> None:
    for pool in (kv_pool(8), ReqToTokenPool(8, 4)):
        if hasattr(pool, method):
            with pytest.raises(ValueError, match="need_size="):
                getattr(pool, method)(need_size)
            pool.check_integrity()
            assert pool.available_size() == 8


@pytest.mark.parametrize("need_size", [20, 4 * 10**15, 4 * 2**70])
@pytest.mark.parametrize("method", ["alloc", "alloc_contiguous"])
def test_more_than_the_pool_has_is_refused_at_once(need_size: int, method: str) -> None:
    pool = kv_pool(16, page_size=4)
    assert getattr(pool, method)(need_size) is None
    assert pool.available_size() == 16
    pool.check_integrity()


def test_alloc_contiguous_of_nothing_is_refused_since_it_has_no_start() -> None:
    pool = kv_pool(8)
    with pytest.raises(ValueError, match="need_size=0"):
        pool.alloc_contiguous(0)


# --- pages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_slots_come_in_aligned_whole_pages(page_size: int) -> None:
    pool = kv_pool(8 * page_size, page_size)
    first, second = pool.alloc(2 * page_size), pool.alloc(3 * page_size)
    assert first is not None
    assert second is not None
    pool.free(first)
    slots = pool.alloc(4 * page_size)
    assert slots is not None
    pages = slots.view(-1, page_size)
    assert (pages[:, 0] // page_size).tolist() == [0, 1, 5, 6]
    assert torch.equal(pages, pages[:, :1] + torch.arange(page_size, dtype=torch.int32))
    pool.check_integrity()


@pytest.mark.parametrize("page_size", [4, 16])
def test_contiguous_slots_start_at_a_page(page_size: int) -> None:
    pool = kv_pool(8 * page_size, page_size)
    pool.alloc(8 * page_size)
    pool.free(range(page_size, 2 * page_size))
    pool.free(range(4 * page_size, 7 * page_size))
    found = pool.alloc_contiguous(2 * page_size)
    assert found is not None
    assert found[1:] == (4 * page_size, 6 * page_size)
    assert found[0].tolist() == list(range(4 * page_size, 6 * page_size))


@pytest.mark.parametrize("method", ["alloc", "alloc_contiguous"])
def test_half_a_page_cannot_be_asked_for(method: str) -> None:
    pool = kv_pool(16, 4)
    with pytest.raises(ValueError, match=r"need_size=6.*page_size=4"):
        getattr(pool, method)(6)
    assert pool.available_size() == 16


@pytest.mark.parametrize(("given_back", "named"), [([0, 1], 1), ([2, 3], 2), ([1, 2, 3, 4, 5, 6], 1), (range(6), 5)])
def test_half_a_page_cannot_be_freed(given_back: list[int], named: int) -> None:
    pool = kv_pool(16, 4)
    pool.alloc(16)
    with pytest.raises(ValueError, match=rf"slot {named}: .*page of 4"):
        pool.free(given_back)
    pool.check_integrity()
    assert pool.available_size() == 0


def test_a_page_may_be_freed_in_any_order() -> None:
    pool = kv_pool(16, 4)
    pool.alloc(16)
    pool.free([7, 12, 5, 14, 6, 13, 4, 15])
    assert pool.free_slots().tolist() == [4, 5, 6, 7, 12, 13, 14, 15]
    pool.check_integrity()


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
    others = [slot for slot in range(8) if slot not in index]
    assert not pool.get_key_buffer(1)[others].any()
    assert not pool.get_key_buffer(0).any()
    assert not pool.get_value_buffer(0).any()


def test_buffers_have_the_dtype_asked_for() -> None:
    pool = TokenToKVPool(4, torch.bfloat16, 1, 2, 1)
    assert pool.get_key_buffer(0).dtype == pool.get_value_buffer(0).dtype == torch.bfloat16


# --- rows --------------------------------------------------------------------------------------------------------


def test_rows_are_given_lowest_first_all_or_nothing() -> None:
    pool = ReqToTokenPool(4, max_context_len=10)
    assert pool.req_to_token.shape == (4, 10)
    assert pool.req_to_token.dtype == torch.int32
    rows = pool.alloc(3)
    assert rows is not None
    assert rows.dtype == torch.int32
    assert rows.tolist() == [0, 1, 2]
    assert pool.alloc(2) is None
    assert pool.available_size() == 1
    pool.free([1])
    rows = pool.alloc(2)
    assert rows is not None
    assert rows.tolist() == [1, 3]
    pool.check_integrity()


@pytest.mark.parametrize(
    ("given_back", "message"), [([4], "row 4"), ([-1], "row -1"), ([3], "row 3: already free"), ([0, 0], "row 0")]
)
def test_a_row_that_is_not_the_callers_is_refused_by_name(given_back: list[int], message: str) -> None:
    pool = ReqToTokenPool(4, 10)
    pool.alloc(2)
    with pytest.raises(ValueError, match=message):
        pool.free(given_back)
    assert pool.available_size() == 2
    pool.check_integrity()
