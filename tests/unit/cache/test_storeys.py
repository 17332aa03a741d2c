"""Host memory below a pool: what it refuses, what happens when copying fails, exact copies."""

from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer.cache.tiers.host import block_size
from nanoinfer.cache.tiers.host_memory import HostMemory
from nanoinfer.config import EngineConfig
from nanoinfer.parallel.load import check_options
from tests.helpers.engines import assert_all_free, greedy, make_engine, serve
from tests.helpers.storeys import storey_of

FIRST, SECOND = [*range(40)], [*range(60, 100)]


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page_size", "block"), [(1, 16), (4, 16), (16, 16), (6, 18), (32, 32)])
def test_a_storey_has_room_for_one_block_of_whole_pages_at_least(page_size: int, block: int) -> None:
    assert block_size(page_size) == block
    slots = 2 * block
    with pytest.raises(ValueError, match=f"host_cache_tokens={block - 1}"):
        make_engine(slots=slots, page_size=page_size, host_cache_tokens=block - 1)
    engine = make_engine(slots=slots, page_size=page_size, host_cache_tokens=2 * block - 1)
    assert engine.stats().host_slots == block, "rounded down"


def test_a_model_over_several_processes_is_refused() -> None:
    with pytest.raises(ValueError, match="host_cache_tokens=64"):
        check_options(2, EngineConfig(1, 64, 64, host_cache_tokens=64), None)


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


def test_slots_for_k_v_that_left_while_room_was_made_are_free_again() -> None:
    """The second sequence takes the first one's place in host memory just when the first one is wanted."""
    engine = engine_with(host_cache_tokens=32)
    storey_of(engine)
    for prompt in (FIRST, SECOND, FIRST):
        (output,) = serve(engine, prompt)
        assert output.cached_tokens == 0
        engine.check_integrity()
    assert_all_free(engine)


# --- copies -------- -----------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("pool_slots", "slots"),
    [
        ([], []),
        ([7], [2]),
        ([4, 5, 6], [0, 1, 2]),
        ([2, 9, 4], [1, 7, 3]),
        ([1, 2, 3, 4, 5, 6], [8, 9, 10, 11, 0, 1]),
        ([6, 2, 3, 1, 5, 4, 9, 8], [8, 9, 10, 11, 4, 5, 6, 7]),
    ],
)
def test_neighbours_and_others_are_copied_to_their_places(pool_slots: list[int], slots: list[int]) -> None:
    buffers = [torch.randn(12, 2, 3), torch.randn(12, 4).half()]
    wanted = [buffer.clone() for buffer in buffers]
    memory = HostMemory(buffers, 12)
    memory.store(np.array(pool_slots, dtype=int), np.array(slots, dtype=int))
    assert not memory.read(np.setdiff1d(np.arange(12), slots)).any()
    rows = memory.read_pool(np.array(pool_slots, dtype=int))
    assert np.array_equal(memory.read(np.array(slots, dtype=int)), rows)
    again = HostMemory(buffers, 12)
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
