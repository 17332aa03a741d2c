"""Tiers below a pool: what host memory refuses, what happens when a copy fails, exact copies, and what tiers tell."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer.cache.block_events import (
    DISK,
    BlockRemoved,
    BlockStored,
    chained_hashes,
)
from nanoinfer.cache.tiers.block_files import BlockFiles
from nanoinfer.cache.tiers.host import block_size
from nanoinfer.cache.tiers.host_memory import HostMemory
from nanoinfer.cache.tiers.tier_blocks import TierBlocks
from nanoinfer.config import EngineConfig
from nanoinfer.model.parallel.load import check_options
from tests.helpers.engines import assert_all_free, greedy, make_engine, serve
from tests.helpers.kv_files import BLOCK, hit, kv_files, open_files, put
from tests.helpers.tiers import tier_of

FIRST, SECOND = [*range(40)], [*range(60, 100)]


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page_size", "block"), [(1, 16), (4, 16), (16, 16), (6, 18), (32, 32)])
def test_a_tier_has_room_for_one_block_of_whole_pages_at_least(page_size: int, block: int) -> None:
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


def test_host_memory_that_cannot_keep_something_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with()
    tier = tier_of(engine)
    serve(engine, FIRST)

    def fail(*args: Any) -> None:
        raise OSError("the bus broke")

    with monkeypatch.context() as patch:
        patch.setattr(tier.memory, "store", fail)
        serve(engine, SECOND)
    assert len(tier.index) == 0
    engine.check_integrity()
    serve(engine, FIRST)
    (output,) = serve(engine, SECOND)
    assert output.cached_tokens_by_tier["host"] == 32, "it goes on"
    assert_all_free(engine)


def test_when_a_copy_back_fails_the_engine_resets_and_no_slot_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with()
    tier = tier_of(engine)
    serve(engine, FIRST)
    serve(engine, SECOND)
    load, failing = tier.memory.load, [True]

    def fail(*args: Any) -> None:
        if failing.pop():
            raise OSError("the bus broke")
        load(*args)

    monkeypatch.setattr(tier.memory, "load", fail)
    engine.add_request(FIRST, greedy())
    with pytest.raises(OSError, match="the bus broke"):
        engine.step()
    engine.check_integrity()
    failing.append(False)
    (output,) = engine.step()
    assert isinstance(output.error, OSError)
    for prompt, fetched in ((FIRST, 0), (SECOND, 0), (FIRST, 32)):
        serve(engine, prompt)
        assert tier.fetched_tokens == fetched, "host memory was emptied, and it goes on"
    assert_all_free(engine)


# --- copies --------------------------------------------------------------------------------------------------------


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
    buffers = [torch.randn(12, 2, 3), torch.randn(12, 4).half(), torch.arange(1, 13) * 2**50, torch.ones(12, 3).char()]
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


def nothing() -> None:
    pass


# --- one tier -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 32, 17])
def test_blocks_of_events_must_fill_those_of_the_tiers(size: int) -> None:
    engine = make_engine(slots=48, host_cache_tokens=64)
    with pytest.raises(ValueError, match=f"event_block_size={size}"):
        engine.block_feed(size)
    assert tier_of(engine).index.sink is None
    assert [*engine.radix_cache.observers] == [tier_of(engine)], "nothing has begun"
    assert engine.block_feed(8).since(0) == []


# --- files ------------------------------------------------------------------------------------------------------------


class Follower:
    """Attaches a sink to files, and keeps what it reports: the hashes of blocks."""

    def __init__(self, files: BlockFiles):
        self._sink = TierBlocks(DISK, BLOCK, BLOCK, nothing)
        self._blocks = set[int]()
        files.attach(self._sink)

    def follow(self) -> set[int]:
        for event in self._sink.take():
            assert isinstance(event, BlockStored | BlockRemoved)
            assert event.medium == DISK
            if isinstance(event, BlockStored):
                assert self._blocks.isdisjoint(event.block_hashes)
                self._blocks.update(event.block_hashes)
            else:
                self._blocks -= set(event.block_hashes)
        assert self._blocks == {block for event in self._sink.stored() for block in event.block_hashes}
        return self._blocks


def hashes_of(*sequences: list[int]) -> set[int]:
    return {block for tokens in sequences for block in chained_hashes(np.array(tokens), BLOCK, 5)}


def test_files_are_told_of_when_they_are_found_written_and_removed(tmp_path: Path) -> None:
    old, new = [*range(12)], [*range(50, 58)]
    before = open_files(tmp_path)
    assert put(before, old)
    files = open_files(tmp_path)
    follower = Follower(files)
    assert follower.follow() == hashes_of(old), "what was there already"
    assert put(files, new)
    assert follower.follow() == hashes_of(old, new)
    assert put(before, [*old, 1, 2, 3, 4], start=12)
    assert follower.follow() == hashes_of(old, new)
    files.look()
    assert follower.follow() == hashes_of([*old, 1, 2, 3, 4], new), "what another process has written"
    kv_files(tmp_path)[0].unlink()
    files.look()
    assert follower.follow() == hashes_of([*old, 1, 2, 3, 4]), "the new one was used longest ago"


def test_files_that_go_because_of_the_bound_or_are_damaged_are_told_of(tmp_path: Path) -> None:
    put(open_files(tmp_path / "measure"), [0, 1, 1, 1])
    size = kv_files(tmp_path / "measure")[0].stat().st_size
    files = open_files(tmp_path / "kv", max_bytes=2 * size)
    follower, sequences = Follower(files), [[i, 1, 1, 1] for i in range(3)]
    for tokens in sequences:
        put(files, tokens)
    assert follower.follow() == hashes_of(*sequences[1:])
    kv_files(tmp_path / "kv")[0].write_bytes(b"damaged")
    assert hit(files, sequences[1]) == 0
    assert follower.follow() == hashes_of(sequences[2])
