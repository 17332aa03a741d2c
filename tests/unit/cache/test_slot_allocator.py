"""The free list below the pools: runs of neighbours, what a look costs, and lists that contradict themselves."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nanoinfer.cache import slot_allocator
from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.cache.slot_allocator import BLOCK, SlotAllocator
from tests.helpers.fakes import counted_calls
from tests.helpers.own_names import module_with
from tests.helpers.pools import kv_pool

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
    assert slots is not None
    assert slots.tolist() == list(range(start, start + length))
    allocator.check_integrity()
    rest = allocator.alloc(1)
    assert rest is not None
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


def test_the_last_free_slot_of_a_large_pool_is_found_without_a_look_at_the_rest() -> None:
    size = 2**20
    allocator = SlotAllocator(size)
    allocator.alloc(size)
    allocator.free([size - 1])
    assert allocator.alloc(1) is not None  # every block turns out to be full, once
    for slot in (size - 1, 0, size - 1):
        allocator.free([slot])
        with counted_calls() as calls:
            slots = allocator.alloc(1)
        assert slots is not None
        assert slots.tolist() == [slot]
        assert calls.total() < 20


def test_no_array_as_long_as_the_pool_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 4096
    pool, watch = kv_pool(size), dict[str, Any]()
    for name in ("flatnonzero", "nonzero", "arange", "sort", "count_nonzero"):
        original = getattr(np, name)

        def watched(*args: Any, original: Callable[..., np.ndarray] = original, **kwargs: Any) -> np.ndarray:
            lengths = [len(a) for a in args if isinstance(a, np.ndarray)]
            result = original(*args, **kwargs)
            assert all(length <= 64 for length in [*lengths, np.size(result)])
            return result

        watch[name] = watched
    monkeypatch.setattr(slot_allocator, "np", module_with(np, **watch))
    with pytest.raises(AssertionError):
        pool.free_slots()  # the watch works
    slots = pool.alloc(64)
    assert slots is not None
    pool.free(slots[::2])
    pool.free(slots[1::2])
    assert pool.alloc_contiguous(64) is not None


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
