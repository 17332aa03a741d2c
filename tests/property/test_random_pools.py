"""Random allocations: the pools agree with a set of free pages, and runs of neighbours cover what they should."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer.cache.indices import consecutive_runs
from nanoinfer.cache.memory_pool import TokenToKVPool
from nanoinfer.cache.slot_allocator import BLOCK, SlotAllocator

SETTINGS = settings(max_examples=60)


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
    size = num_pages * page_size
    pool, model = TokenToKVPool(size, torch.float32, 2, 4, 1, page_size=page_size), SetOfFreePages(size, page_size)
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


@pytest.mark.parametrize("page_size", [1, 4])
def test_pools_of_many_blocks_agree_with_a_set_of_free_pages(page_size: int) -> None:
    num_pages = 5 * BLOCK + 7
    allocator, free = SlotAllocator(num_pages * page_size, page_size), set(range(num_pages))
    rng = np.random.default_rng(page_size)
    for density in (1.0, 0.5, 0.02, 0.0005):
        allocator.alloc(allocator.available_size())
        given_back = np.flatnonzero(rng.random(num_pages) < density)
        allocator.free((given_back[:, None] * page_size + np.arange(page_size)).ravel())
        free = set(given_back.tolist())
        for _ in range(12):
            count = int(rng.choice([1, 3, 40, 700, max(len(free), 1)]))
            slots = allocator.alloc(count * page_size)
            lowest = sorted(free)[:count]
            expected = [page * page_size + i for page in lowest for i in range(page_size)]
            assert (None if slots is None else slots.tolist()) == (None if count > len(free) else expected)
            if slots is None:
                continue
            allocator.check_integrity()
            free -= set(lowest)
            back = rng.permutation(lowest)[: int(rng.integers(0, count + 1))]
            allocator.free((back[:, None] * page_size + np.arange(page_size)).ravel())
            free |= set(back.tolist())
            allocator.check_integrity()
            assert allocator.available_size() == len(free) * page_size


@given(st.sets(st.integers(0, 30)))
@SETTINGS
def test_consecutive_runs_cover_the_numbers_and_nothing_else(numbers: set[int]) -> None:
    runs = consecutive_runs(np.array(sorted(numbers), dtype=np.int64))
    assert [i for start, end in runs for i in range(start, end)] == sorted(numbers)
    assert all(end < start for (_, end), (start, _) in pairwise(runs))
