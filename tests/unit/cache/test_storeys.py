"""Storeys below a pool: what they refuse, what they do when copying fails, and when fetching pays."""

import logging
from heapq import heappush
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer.cache.kv_storage import PlainKVStorage
from nanoinfer.cache.storeys.block_index import BlockIndex
from nanoinfer.cache.storeys.fetch_costs import TRY_AGAIN, FetchCosts
from nanoinfer.cache.storeys.host import block_size
from nanoinfer.cache.storeys.host_memory import HostMemory
from nanoinfer.config import EngineConfig
from nanoinfer.parallel.load import check_options
from nanoinfer.registry import KV_STORAGES
from tests.helpers.engines import assert_all_free, greedy, make_engine, serve
from tests.helpers.storeys import storey_of

FIRST, SECOND = [*range(40)], [*range(60, 100)]


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -16, 2.5, True, "many"])
def test_a_size_that_is_no_number_of_tokens_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"host_cache_tokens=.*: must be None or an integer of at least 1"):
        make_engine(host_cache_tokens=value)


@pytest.mark.parametrize(("page_size", "block"), [(1, 16), (4, 16), (16, 16), (6, 18), (32, 32)])
def test_a_storey_has_room_for_one_block_of_whole_pages_at_least(page_size: int, block: int) -> None:
    assert block_size(page_size) == block
    slots = 2 * block
    with pytest.raises(
        ValueError, match=f"host_cache_tokens={block - 1}: must be at least {block}, one block of whole"
    ):
        make_engine(slots=slots, page_size=page_size, host_cache_tokens=block - 1)
    engine = make_engine(slots=slots, page_size=page_size, host_cache_tokens=2 * block - 1)
    assert engine.stats().host_slots == block, "rounded down"


def test_without_a_tree_nothing_could_be_found() -> None:
    with pytest.raises(ValueError, match="host_cache_tokens=64: must be None with disable_radix_cache=True"):
        make_engine(host_cache_tokens=64, disable_radix_cache=True)


def test_a_model_over_several_processes_is_refused() -> None:
    with pytest.raises(ValueError, match="host_cache_tokens=64: must be None with tensor_parallel_size=2"):
        check_options(2, EngineConfig(1, 64, 64, host_cache_tokens=64), None)


def test_a_storage_that_does_not_show_its_buffers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlainKVStorage, "slot_buffers", lambda self: ())
    assert KV_STORAGES["plain"] is PlainKVStorage
    with pytest.raises(ValueError, match="host_cache_tokens=64: PlainKVStorage does not say which buffers it has"):
        make_engine(host_cache_tokens=64)


# --- when something fails -------------------------------------------------------------------------------------------


def engine_with(host_cache_tokens: int = 128) -> Any:
    """Room for one sequence."""
    return make_engine(slots=48, host_cache_tokens=host_cache_tokens)


def test_an_engine_counts_what_is_stored_and_fetched_and_flushes_both() -> None:
    engine = engine_with()
    storey = storey_of(engine)
    serve(engine, FIRST)
    serve(engine, SECOND)
    (output,) = serve(engine, FIRST)
    assert output.cached_tokens_by_tier == {"device": 0, "host": 32, "disk": 0}
    stats = engine.stats()
    assert (stats.host_slots, stats.host_held_tokens, stats.host_stored_tokens, stats.host_fetched_tokens) == (
        *(128, 64, 64),
        32,
    )
    assert_all_free(engine)
    assert (len(storey.index), storey.stored_tokens) == (0, 64), "nothing was copied there to be forgotten"
    serve(engine, FIRST)
    serve(engine, SECOND)
    assert len(storey.index) == 32, "and it goes on"


def test_when_a_copy_to_host_memory_fails_nothing_is_held_and_checks_say_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_with()
    storey = storey_of(engine)

    def fail(*args: Any) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(storey.memory, "store", fail)
    with caplog.at_level(logging.ERROR):
        for prompt in (FIRST, SECOND):
            engine.add_request(prompt, greedy())
        while engine.has_unfinished():
            engine.step()
    assert engine.stats().finished == 2
    assert "no more" in caplog.text
    assert len(storey.index) == 0
    storey.index.check_integrity()
    with pytest.raises(RuntimeError, match="storey: has failed at an eviction, and is not told of others"):
        engine.check_integrity()


def test_when_a_copy_back_fails_the_step_raises_and_no_slot_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with()
    storey = storey_of(engine)
    serve(engine, FIRST)
    serve(engine, SECOND)
    load, failing = storey.memory.load, [True]

    def fail(*args: Any) -> None:
        if failing.pop():
            raise OSError("the bus broke")
        load(*args)

    monkeypatch.setattr(storey.memory, "load", fail)
    engine.add_request(FIRST, greedy())
    with pytest.raises(OSError, match="the bus broke"):
        engine.step()
    engine.check_integrity()
    failing.append(False)
    while engine.has_unfinished():
        engine.step()
        engine.check_integrity()
    assert storey.fetched_tokens == 32
    assert_all_free(engine)


def test_when_k_v_from_below_cannot_be_copied_nothing_is_held() -> None:
    storey = storey_of(engine_with())
    with pytest.raises((IndexError, ValueError)):
        storey.put(np.arange(32), None, 0, np.zeros((5, storey.memory.token_bytes), np.uint8))
    assert len(storey.index) == 0, "or else blocks would have slots without their K/V"
    storey.index.check_integrity()


def test_slots_for_k_v_that_left_while_room_was_made_are_free_again() -> None:
    """The second sequence takes the first one's place in host memory just when the first one is wanted."""
    engine = engine_with(host_cache_tokens=32)
    storey_of(engine)
    for prompt in (FIRST, SECOND, FIRST):
        (output,) = serve(engine, prompt)
        assert output.cached_tokens == 0
        engine.check_integrity()
    assert_all_free(engine)


def test_a_check_finds_what_is_wrong_with_an_index() -> None:
    index, tokens = BlockIndex(64, 16), np.arange(48)
    index.add(tokens, None, 0)
    index.check_integrity()
    first, second, third = index._path(tokens, None)
    index._held.move_to_end(third)
    with pytest.raises(RuntimeError, match="a block that leaves before one behind it: 3 of 3 blocks held, 64 slots"):
        index.check_integrity()
    index._touch([first, second, third])
    second.start, kept = first.start, second.start
    with pytest.raises(RuntimeError, match="slots without or with two owners"):
        index.check_integrity()
    second.start = kept
    del index._held[third]
    with pytest.raises(RuntimeError, match="the order of use has other blocks"):
        index.check_integrity()
    heappush(index._free, third.start or 0)
    third.start = None
    with pytest.raises(RuntimeError, match="a block that leads nowhere"):
        index.check_integrity()


def test_an_index_tells_which_block_has_to_leave() -> None:
    left: list[Any] = []
    index = BlockIndex(32, 16, lambda block: left.append(index.tokens_of(block)))
    index.add(np.arange(32), "key", 0)
    index.add(np.arange(100, 116), None, 0)
    (tokens, key), *others = left
    assert (tokens.tolist(), key, others) == ([*range(32)], "key", [])


def test_a_block_may_take_the_room_of_the_only_one_behind_it() -> None:
    index, tokens = BlockIndex(16, 16), np.arange(32)
    index.add(tokens, None, 16)
    assert (index.reach(tokens, None, 16), index.reach(tokens, None, 0)) == (32, 0)
    index.add(tokens[:16], None, 0)
    index.check_integrity()
    assert (index.reach(tokens, None, 16), index.reach(tokens, None, 0)) == (16, 16)


def test_a_block_gets_no_room_from_those_before_it() -> None:
    index, tokens = BlockIndex(16, 16), np.arange(32)
    index.add(tokens[:16], None, 0)
    positions, slots = index.add(tokens, None, 16)
    assert (positions.size, slots.size, index.reach(tokens, None, 0)) == (0, 0, 16)
    index.check_integrity()


def test_a_block_leaves_before_those_before_it_have_slots_without_k_v() -> None:
    """Or else these would be offered with it, and what is in their slots is another block's."""
    above: list[Any] = []
    index, tokens = BlockIndex(32, 16, lambda block: above.append(block.parent and block.parent.start)), np.arange(32)
    index.add(np.array([*range(16), *range(50, 66)]), None, 16)
    index.add(tokens, None, 0)
    index.check_integrity()
    assert (above, index.reach(tokens, None, 0)) == ([None], 32)


# --- copies and costs -----------------------------------------------------------------------------------------------


def test_copies_are_exact_for_any_kind_of_number() -> None:
    buffers = [
        torch.randn(8, 2, 3).bfloat16(),
        torch.tensor([float("nan"), -0.0, float("inf"), 1e-45] * 2)[:, None],
        torch.arange(-4, 4, dtype=torch.int8)[:, None, None],
        torch.arange(8) * 2**60,
    ]
    wanted = [buffer.clone() for buffer in buffers]
    memory = HostMemory(buffers, 16)
    assert memory.data.shape == (16, 12 + 4 + 1 + 8)
    memory.store(np.array([1, 6, 3]), np.array([9, 0, 15]))
    for buffer in buffers:
        buffer[1:7] = 0
    memory.load(np.array([15, 9, 0]), np.array([3, 1, 6]))
    for buffer, right in zip(buffers, wanted, strict=True):
        for slot in (0, 1, 3, 6, 7):
            assert buffer[slot].contiguous().view(-1).view(torch.uint8).tolist() == (
                right[slot].contiguous().view(-1).view(torch.uint8).tolist()
            )
        assert not buffer[[2, 4, 5]].any()


def test_it_pays_as_long_as_something_is_not_known_and_then_what_is_faster() -> None:
    computing = [0.0]
    costs = FetchCosts(lambda: computing[0])
    assert costs.pays()
    costs.note(100, 50.0)
    assert (costs.pays(), costs.fetching) == (True, 0.5)
    computing[0] = 0.4
    assert [costs.pays() for _ in range(2 * TRY_AGAIN)] == 2 * [*[False] * (TRY_AGAIN - 1), True]
    costs.note(10, 1.0)
    assert (costs.pays(), costs.fetching) == (True, 0.1)
    for _ in range(8):
        costs.note(10, 6.0)
    assert (costs.pays(), costs.fetching) == (False, 0.6), "the fast one is long ago"


def test_an_engine_computes_again_where_that_is_faster() -> None:
    engine = engine_with()
    storey = storey_of(engine)
    serve(engine, FIRST)
    serve(engine, SECOND)
    storey.costs = FetchCosts(lambda: 1.0)
    storey.costs.note(1, 2.0)
    (output,) = serve(engine, FIRST)
    assert (output.cached_tokens, storey.fetched_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("pool_slots", "slots"),
    [
        ([], []),
        ([7], [2]),
        ([4, 5, 6], [0, 1, 2]),
        ([4, 6, 5], [8, 9, 10]),
        ([3, 2, 1], [5, 4, 3]),
        ([2, 9, 4], [1, 7, 3]),
        ([1, 2, 3, 4, 5, 6], [8, 9, 10, 11, 0, 1]),
        ([6, 2, 3, 1, 5, 4, 9, 8], [8, 9, 10, 11, 4, 5, 6, 7]),
        ([0, 1, 2, 3, 4, 5, 6, 7], [4, 5, 6, 7, 8, 9, 10, 11]),
    ],
)
@pytest.mark.parametrize("block_size", [1, 2, 4])
def test_neighbours_and_others_are_copied_to_their_places(
    pool_slots: list[int], slots: list[int], block_size: int
) -> None:
    buffers = [torch.randn(12, 2, 3), torch.randn(12, 4).half()]
    wanted = [buffer.clone() for buffer in buffers]
    memory = HostMemory(buffers, 12, block_size)
    memory.store(np.array(pool_slots, dtype=int), np.array(slots, dtype=int))
    assert not memory.read(np.setdiff1d(np.arange(12), slots)).any()
    rows = memory.read_pool(np.array(pool_slots, dtype=int))
    assert np.array_equal(memory.read(np.array(slots, dtype=int)), rows)
    again = HostMemory(buffers, 12, block_size)
    again.put(rows, np.array(slots, dtype=int))
    assert np.array_equal(again.data, memory.data)
    for buffer in buffers:
        buffer.zero_()
    memory.load(np.array(slots, dtype=int), np.array(pool_slots, dtype=int))
    for buffer, before in zip(buffers, wanted, strict=True):
        assert torch.equal(buffer[pool_slots], before[pool_slots])
        assert buffer.count_nonzero() == before[pool_slots].count_nonzero()
        buffer.zero_()
    memory.write_pool(rows, np.array(pool_slots, dtype=int))
    assert all(
        torch.equal(buffer[pool_slots], before[pool_slots]) for buffer, before in zip(buffers, wanted, strict=True)
    )
