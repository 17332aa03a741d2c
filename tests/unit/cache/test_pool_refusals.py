"""What the memory pools refuse: by name, and nothing has changed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from tests.helpers.pools import kv_pool

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
