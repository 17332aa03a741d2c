"""Events of the storeys below a pool: each block with its medium, when it comes and when it goes."""

from pathlib import Path

import numpy as np
import pytest

from nanoinfer.cache.block_events import (
    CPU,
    DISK,
    GPU,
    BlockRemoved,
    BlockStored,
    block_hashes,
    chained_hashes,
    namespace_hash,
)
from nanoinfer.cache.tiers.block_files import BlockFiles
from nanoinfer.cache.tiers.tier_blocks import TierBlocks
from tests.helpers.block_mirror import FeedReader, blocks_of_tree
from tests.helpers.engines import make_engine, serve
from tests.helpers.kv_files import BLOCK, hit, kv_files, open_files, put
from tests.helpers.storeys import storey_of

FIRST, SECOND = [*range(40)], [*range(60, 100)]


def nothing() -> None:
    pass


# --- one storey -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 32, 17])
def test_blocks_of_events_must_fill_those_of_the_storeys(size: int) -> None:
    engine = make_engine(slots=48, host_cache_tokens=64)
    with pytest.raises(ValueError, match=f"event_block_size={size}"):
        engine.block_feed(size)
    assert storey_of(engine).index.listener is None
    assert [*engine.radix_cache.observers] == [storey_of(engine)], "nothing has begun"
    assert engine.block_feed(8).since(0) == []


def test_a_block_is_told_with_its_tokens_and_what_comes_before_it() -> None:
    calls: list[None] = []
    blocks, tokens, hashes = (
        TierBlocks(CPU, 4, 2, lambda: calls.append(None)),
        np.arange(12),
        block_hashes(range(12), 2),
    )
    blocks.store(tokens, namespace_hash(None, None), (None, None), [("b", 1)])
    event = BlockStored(hashes[2:4], hashes[1], [4, 5, 6, 7], 2, None, None, CPU)
    assert (blocks.take(), blocks.take(), len(calls)) == ([event], [], 1)
    blocks.store(tokens, namespace_hash(None, None), (None, None), [("a", 0), ("b", 1)])
    assert blocks.take() == [BlockStored(hashes[:2], None, [0, 1, 2, 3], 2, None, None, CPU)]
    blocks.remove(["b", "unknown"])
    assert blocks.take() == [BlockRemoved(hashes[2:4], CPU)]
    assert [each.block_hashes for each in blocks.stored()] == [hashes[:2]]
    blocks.remove(["b"])
    assert blocks.take() == []
    assert len(calls) == 4


# --- host memory ------------------------------------------------------------------------------------------------------


def test_a_block_may_be_on_the_device_and_in_host_memory() -> None:
    engine = make_engine(slots=48, host_cache_tokens=64)
    storey_of(engine)
    serve(engine, FIRST)
    serve(engine, SECOND)  # now the first one is in host memory only
    reader = FeedReader(engine.block_feed())
    first, second = (set(block_hashes(prompt, 16)) for prompt in (FIRST, SECOND))
    reader.follow()
    assert (reader.mirror.media[GPU].keys(), reader.mirror.media[CPU].keys()) == (second, first)
    serve(engine, FIRST)
    reader.follow()
    assert reader.mirror.media[GPU].keys() == first
    assert reader.mirror.media[CPU].keys() == first | second, "a copy stays where it was fetched from"
    assert reader.mirror.blocks == blocks_of_tree(engine.radix_cache, 16)
    engine.flush_cache()
    reader.follow()
    assert reader.mirror.media == {GPU: {}, CPU: {}}
    snapshot = engine.block_feed().snapshot()
    assert snapshot.blocks == []


def test_what_a_snapshot_says_is_what_batches_have_said() -> None:
    engine = make_engine(slots=48, host_cache_tokens=64)
    storey_of(engine)
    reader = FeedReader(engine.block_feed(8))
    for prompt in (FIRST, SECOND, FIRST, [7] * 40):
        serve(engine, prompt)
        reader.follow()
        fresh = FeedReader(engine.block_feed(8))
        fresh.take_snapshot()
        assert fresh.mirror.media == reader.mirror.media
        assert {medium for medium, blocks in reader.mirror.media.items() if blocks} <= {GPU, CPU}


# --- files ------------------------------------------------------------------------------------------------------------


class Follower:
    """Has files tell what there is, and keeps what that says: the hashes of blocks."""

    def __init__(self, files: BlockFiles):
        self._told = TierBlocks(DISK, BLOCK, BLOCK, nothing)
        self._blocks = set[int]()
        files.tell(self._told)

    def follow(self) -> set[int]:
        for event in self._told.take():
            assert isinstance(event, BlockStored | BlockRemoved)
            assert event.medium == DISK
            if isinstance(event, BlockStored):
                assert self._blocks.isdisjoint(event.block_hashes)
                self._blocks.update(event.block_hashes)
            else:
                self._blocks -= set(event.block_hashes)
        assert self._blocks == {block for event in self._told.stored() for block in event.block_hashes}
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
    for file in kv_files(tmp_path)[:2]:
        file.unlink()
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
