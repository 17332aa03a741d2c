"""The memory pools and the free list below them, against a plain set of free units."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer.cache.free_runs import FreeRuns
from nanoinfer.cache.indices import consecutive_runs
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.cache.slot_allocator import SlotAllocator
from tests.helpers.fakes import counted_calls

SETTINGS = settings(max_examples=60, deadline=None, database=None, derandomize=True)


def kv_pool(size: int = 16, page_size: int = 1, layer_num: int = 1) -> TokenToKVPool:
    return TokenToKVPool(size, torch.float32, head_num=2, head_dim=4, layer_num=layer_num, page_size=page_size)


def taken(pool: TokenToKVPool, *slots: int) -> TokenToKVPool:
    """`pool` with exactly `slots` given out."""
    assert pool.alloc(pool.size) is not None
    pool.free([slot for slot in range(pool.size) if slot not in slots])
    return pool


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


# --- what free refuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_back", "message"),
    [
        ([0, 16], r"slot 16: outside 0\.\.15"),
        ([1, -1], r"slot -1: outside 0\.\.15"),
        ([-16], r"slot -16: outside"),
        ([2**40], rf"slot {2**40}: outside"),
        ([2, 9], r"slot 9: already free"),
        ([3, 1, 3], r"slot 3: given twice"),
    ],
)
def test_a_slot_that_is_not_the_callers_is_refused_by_name_and_nothing_is_freed(
    given_back: list[int], message: str
) -> None:
    for form in (list, np.array, torch.tensor):
        pool = kv_pool(16)
        pool.alloc(8)
        with pytest.raises(ValueError, match=message):
            pool.free(form(given_back))
        assert pool.free_slots().tolist() == list(range(8, 16))
        assert pool.available_size() == 8
        pool.check_integrity()


@pytest.mark.parametrize(
    "given_back",
    [
        [0.0],
        [1.5],
        [True],
        ["0"],
        [None],
        [[0, 1]],
        0,
        torch.tensor(0),
        torch.tensor([0.0]),
        torch.tensor([0.0], dtype=torch.bfloat16),
        torch.tensor([True]),
        np.array([0 + 0j]),
    ],
)
def test_what_is_no_list_of_integers_is_refused_and_nothing_is_freed(given_back: Any) -> None:
    for pool in (kv_pool(4), ReqToTokenPool(4, 4)):
        pool.alloc(4)
        with pytest.raises(ValueError, match=r"(slots|rows): expected"):
            pool.free(given_back)
        assert pool.available_size() == 0
        pool.check_integrity()


@pytest.mark.parametrize("nothing", [[], np.empty(0), torch.tensor([]), torch.empty(0, dtype=torch.int32)])
def test_freeing_nothing_is_fine(nothing: Any) -> None:
    pool = kv_pool(4)
    pool.free(nothing)
    assert pool.available_size() == 4
    pool.check_integrity()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_slots_come_back_as_any_integer_dtype(dtype: torch.dtype) -> None:
    pool = kv_pool(4)
    slots = pool.alloc(3)
    assert slots is not None
    pool.free(slots.to(dtype))
    assert pool.available_size() == 4


def test_a_second_free_of_the_same_slots_is_refused() -> None:
    pool = kv_pool(16)
    slots = pool.alloc(3)
    assert slots is not None
    pool.free(slots)
    with pytest.raises(ValueError, match="slot 0: already free"):
        pool.free(slots)
    assert pool.available_size() == 16


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


# --- construction ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ReqToTokenPool(0, 4), "size=0"),
        (lambda: ReqToTokenPool(-1, 4), "size=-1"),
        (lambda: ReqToTokenPool(4, 0), "max_context_len=0"),
        (lambda: TokenToKVPool(0, torch.float32, 1, 1, 1), "size=0"),
        (lambda: TokenToKVPool(4, torch.float32, 0, 1, 1), "head_num=0"),
        (lambda: TokenToKVPool(4, torch.float32, 1, 0, 1), "head_dim=0"),
        (lambda: TokenToKVPool(4, torch.float32, 1, 1, 0), "layer_num=0"),
        (lambda: TokenToKVPool(4, torch.float32, 1, 1, 1, page_size=0), "page_size=0"),
        (lambda: TokenToKVPool(4, torch.float32, 1, 1, 1, page_size=-4), "page_size=-4"),
        (lambda: TokenToKVPool(10, torch.float32, 1, 1, 1, page_size=4), "page_size=4.*size=10"),
    ],
)
def test_a_pool_that_makes_no_sense_is_refused_by_field(make: Callable[[], object], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make()


# --- check_integrity ---------------------------------------------------------------------------------------------


def lose_a_slot(allocator: SlotAllocator) -> None:
    allocator._is_free[3] = False


def lose_a_run(allocator: SlotAllocator) -> None:
    allocator._pages.take(12, 4)


def make_up_a_run(allocator: SlotAllocator) -> None:
    allocator._pages.give(0, 2)


def miscount(allocator: SlotAllocator) -> None:
    allocator._available += 1


@pytest.mark.parametrize("corrupt", [lose_a_slot, lose_a_run, make_up_a_run, miscount])
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


# --- against a set -----------------------------------------------------------------------------------------------


class SetOfFreePages:
    """The oracle: free pages are a set; every question is answered by looking at all of them."""

    def __init__(self, size: int, page_size: int):
        self.free, self.page_size = set(range(size // page_size)), page_size

    def slots(self, pages: list[int]) -> list[int]:
        return [page * self.page_size + i for page in pages for i in range(self.page_size)]

    def alloc(self, num_pages: int) -> list[int] | None:
        if num_pages > len(self.free):
            return None
        pages = sorted(self.free)[:num_pages]
        self.free -= set(pages)
        return self.slots(pages)

    def alloc_contiguous(self, num_pages: int) -> list[int] | None:
        for start in sorted(self.free):
            pages = list(range(start, start + num_pages))
            if self.free.issuperset(pages):
                self.free -= set(pages)
                return self.slots(pages)
        return None


@SETTINGS
@given(st.sampled_from([1, 4, 16]), st.integers(1, 40), st.data())
def test_pool_agrees_with_a_set_of_free_pages(page_size: int, num_pages: int, data: st.DataObject) -> None:
    pool, model = kv_pool(num_pages * page_size, page_size), SetOfFreePages(num_pages * page_size, page_size)
    for _ in range(data.draw(st.integers(1, 30), label="steps")):
        operation = data.draw(st.sampled_from(["alloc", "alloc_contiguous", "free"]))
        taken_pages = sorted(set(range(num_pages)) - model.free)
        if operation == "free":
            if not taken_pages:
                continue
            pages = data.draw(st.lists(st.sampled_from(taken_pages), unique=True, max_size=10))
            slots = data.draw(st.permutations(model.slots(pages)))
            pool.free(slots)
            model.free |= set(pages)
        else:
            count = data.draw(st.integers(1, max(2, num_pages // 2)))
            found = getattr(pool, operation)(count * page_size)
            expected = getattr(model, operation)(count)
            if operation == "alloc_contiguous" and found is not None:
                assert found[1:] == (found[0][0], found[0][-1] + 1)
                found = found[0]
            assert (None if found is None else found.tolist()) == expected
        assert pool.free_slots().tolist() == model.slots(sorted(model.free))
        assert pool.available_size() == len(model.free) * page_size
        pool.check_integrity()


@SETTINGS
@given(st.integers(1, 70), st.data())
def test_the_first_long_enough_run_is_found_after_any_history(size: int, data: st.DataObject) -> None:
    runs, free = FreeRuns(size), np.ones(size, dtype=bool)
    for _ in range(data.draw(st.integers(1, 40))):
        start = data.draw(st.integers(0, size - 1))
        length = data.draw(st.integers(1, 6))
        if free[start]:
            begin = max(i for i in range(start + 1) if i == 0 or not free[i - 1])  # where its run begins
            end = runs.take(begin, length)
            assert free[begin:end].all()
            assert end - begin == length or not free[begin : end + 1].all() or end == size
            free[begin:end] = False
        else:
            runs.give(start, start + 1)
            free[start] = True
        for wanted in (1, 2, 3, 7, size):
            windows = (i for i in range(size - wanted + 1) if free[i : i + wanted].all())
            assert runs.first(wanted) == next(windows, None)
        assert runs.runs() == consecutive_runs(np.flatnonzero(free))


@given(st.sets(st.integers(0, 30)))
@SETTINGS
def test_consecutive_runs_cover_the_numbers_and_nothing_else(numbers: set[int]) -> None:
    runs = consecutive_runs(np.array(sorted(numbers), dtype=np.int64))
    assert [i for start, end in runs for i in range(start, end)] == sorted(numbers)
    assert all(end < start for (_, end), (start, _) in pairwise(runs))


# --- cost --------------------------------------------------------------------------------------------------------


def calls_of_a_busy_period(size: int) -> int:
    """Function calls of the same small work in a pool of `size` slots, the upper three quarters of it in pieces."""
    allocator = SlotAllocator(size)
    allocator.alloc(size)
    allocator.free(range(size // 4, size, 2))
    allocator.free(range(1, 64, 2))
    with counted_calls() as calls:
        for _ in range(10):
            slots = allocator.alloc(40)
            assert slots is not None
            assert allocator.alloc_contiguous(2) is None
            allocator.free(slots)
    return calls.total()


def test_work_does_not_grow_with_the_pool() -> None:
    small, large = calls_of_a_busy_period(2**9), calls_of_a_busy_period(2**15)
    # The max-tree is 2**6 times as large and 6 levels higher; only those 6 levels may show.
    assert large < 2 * small


def test_no_array_as_long_as_the_pool_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 4096
    pool = kv_pool(size)
    for name in ("flatnonzero", "nonzero", "arange", "sort"):
        original = getattr(np, name)

        def watched(*args: Any, original: Callable[..., np.ndarray] = original, **kwargs: Any) -> np.ndarray:
            lengths = [len(a) for a in args if isinstance(a, np.ndarray)]
            result = original(*args, **kwargs)
            assert all(length <= 64 for length in [*lengths, np.size(result)])
            return result

        monkeypatch.setattr(np, name, watched)
    with pytest.raises(AssertionError):
        pool.free_slots()  # the watch works
    slots = pool.alloc(64)
    assert slots is not None
    pool.free(slots[::2])
    pool.free(slots[1::2])
    assert pool.alloc_contiguous(64) is not None
