"""What a tree reports about its blocks, operation by operation; and an engine's feed of it."""

import os
import subprocess
import sys
import threading
from collections.abc import Hashable
from pathlib import Path

import numpy as np
import pytest
import torch

from nanoinfer.cache.block_events import AllBlocksCleared, BlockRemoved, BlockStored, block_hashes
from nanoinfer.cache.block_feed import BlockFeed
from nanoinfer.cache.radix_cache import RadixCache
from nanoinfer.requests.request import AdapterKey
from tests.helpers.block_mirror import BlockMirror, FeedReader, blocks_of_tree
from tests.helpers.engines import finish, greedy, make_engine, serve, step
from tests.helpers.trees import make_cache, put
from tests.helpers.waiting import Worker


def reporting(size: int = 256, page_size: int = 1, block_size: int = 4) -> tuple[RadixCache, BlockMirror]:
    mirror = BlockMirror()
    return make_cache(size, page_size, events=mirror.note, event_block_size=block_size), mirror


# --- hashes ---------------------------------------------------------------------------------------------------------


def test_a_hash_covers_all_tokens_up_to_the_end_of_its_block() -> None:
    one = block_hashes(range(48), 16)
    assert block_hashes([*range(47), 99], 16)[:2] == one[:2]
    assert block_hashes([99, *range(1, 48)], 16)[2] != one[2]
    assert block_hashes(range(16, 32), 16)[0] != one[1]
    assert block_hashes(range(47), 16) == one[:2]
    assert all(0 <= block < 2**64 for block in one)


def test_hashes_are_the_same_in_every_process_and_for_every_kind_of_sequence() -> None:
    code = "from nanoinfer.cache.block_events import *; print(block_hashes([1, 2, 3, 4], 2, ('a', 1, b'x'), 'sea'))"
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    root = Path(__file__).parent.parent.parent.parent
    there = subprocess.run([sys.executable, "-c", code], cwd=root, env=env, capture_output=True, text=True, check=True)
    here = block_hashes([1, 2, 3, 4], 2, ("a", 1, b"x"), "sea")
    assert there.stdout.strip() == str(here) == "[10092726229905872008, 1521302381630708020]"
    for tokens in (np.array([1, 2, 3, 4], dtype=np.int32), torch.tensor([1, 2, 3, 4]), (1, 2, 3, 4)):
        assert block_hashes(tokens, 2, ("a", 1, b"x"), "sea") == here


def test_namespaces_have_hashes_of_their_own() -> None:
    keys: list[Hashable] = [
        None,
        "",
        "a",
        b"a",
        0,
        1,
        -1,
        (),
        (None,),
        ("a",),
        ("a", "b"),
        ("ab",),
        (("a",), "b"),
        "i1;",
    ]
    spaces = [(key, adapter) for key in keys for adapter in (None, "a", "b", "")]
    hashes = [block_hashes([1], 1, key, adapter)[0] for key, adapter in spaces]
    assert len(set(hashes)) == len(spaces)
    assert block_hashes([1], 1, True) == block_hashes([1], 1, 1)  # equal keys are the same namespace in the tree, too
    assert block_hashes([1], 1, None, "base") == block_hashes([1], 1)


def test_a_key_without_a_hash_is_refused_and_the_tree_is_as_it_was() -> None:
    cache, mirror = reporting()
    with pytest.raises(ValueError, match="extra_key"):
        put(cache, range(8), extra_key=1.5)
    assert (cache.total_size(), mirror.calls) == (0, [])


# --- operations ------------------------------------------------------------------------------------------------------


def test_an_insert_stores_its_complete_blocks() -> None:
    cache, mirror = reporting()
    put(cache, range(10))
    hashes = block_hashes(range(10), 4)
    assert mirror.calls == [[BlockStored(hashes, None, [*range(8)], 4, None, None)]]
    put(cache, range(10))
    put(cache, range(11))
    assert len(mirror.calls) == 1
    put(cache, [*range(11), 11, 12])
    assert mirror.calls[1:] == [
        [BlockStored([block_hashes(range(12), 4)[2]], hashes[1], [8, 9, 10, 11], 4, None, None)]
    ]


def test_one_eviction_is_one_event_and_a_reset_another() -> None:
    cache, mirror = reporting()
    for first in range(3):
        put(cache, [first, *range(10, 17)])
    cache.evict(9)
    assert len(mirror.calls) == 4
    assert [type(event) for event in mirror.calls[-1]] == [BlockRemoved]
    assert len(mirror.blocks) == 2
    cache.reset()
    assert mirror.calls[-1] == [AllBlocksCleared()]
    cache.reset()
    cache.evict(3)
    assert len(mirror.calls) == 5


def test_adapters_are_reported_by_name_and_leave_together() -> None:
    cache, mirror = reporting()
    put(cache, range(8))
    put(cache, range(8), AdapterKey(7, None, "sea"))
    put(cache, range(8), AdapterKey(7, "user", "sea"))
    put(cache, [*range(4), 9, 9, 9, 9], AdapterKey(7, "user", "sea"))
    stored = mirror.calls[1][0]
    assert stored == BlockStored(block_hashes(range(8), 4, None, "sea"), None, [*range(8)], 4, 7, "sea")
    free = cache.token_to_kv_pool.available_size()
    assert cache.evict_keys(lambda key: isinstance(key, AdapterKey) and key.id == 7) == 20
    assert cache.token_to_kv_pool.available_size() == free + 20
    assert len(mirror.calls) == 5
    assert mirror.blocks == blocks_of_tree(cache, 4)
    assert len(mirror.blocks) == 2
    cache.check_integrity()
    put(cache, range(8), AdapterKey(8, None, "sea"))  # loaded again, under the same name
    assert mirror.blocks == blocks_of_tree(cache, 4)


# --- the feed ------------------------------------------------------------------------------------------------------


def test_batches_are_numbered_and_cut_where_a_step_ends() -> None:
    cache = make_cache(256)
    feed = BlockFeed(cache, 4, clock=iter(range(9)).__next__, source="one")
    assert feed.since(0) == []
    put(cache, range(4))
    put(cache, range(10, 14))
    feed.cut()
    feed.cut()
    cache.reset()
    batches = feed.since(0)
    assert [(batch.seq, batch.ts, batch.source, len(batch.events)) for batch in batches] == [
        (0, 0, "one", 2),
        (1, 1, "one", 1),
    ]
    assert feed.since(1) == batches[1:]
    assert feed.since(2) == []
    assert feed.since(3) is None
    assert feed.since(-1) is None


def test_old_batches_go_and_a_snapshot_has_everything() -> None:
    cache = make_cache(1024)
    feed = BlockFeed(cache, 4, keep_blocks=20)
    early, late = FeedReader(feed), FeedReader(feed)
    for first in range(0, 400, 40):
        put(cache, range(first, first + 40), extra_key="key")
        feed.cut()
        early.follow()
    assert feed.since(0) is None
    late.follow()
    assert (early.snapshots, late.snapshots) == (0, 1)
    assert early.mirror.blocks == late.mirror.blocks == blocks_of_tree(cache, 4)
    cache.evict(7)
    late.follow()
    assert late.mirror.blocks == blocks_of_tree(cache, 4)
    assert late.snapshots == 1


def test_each_step_that_changes_the_tree_makes_one_batch() -> None:
    engine = make_engine()
    feed = engine.block_feed(4)
    engine.add_request("abcdefgh", greedy(3))
    engine.add_request("abcdefgx", greedy(3))
    per_step = []
    while engine.has_unfinished():
        before = feed.since(0)
        step(engine)
        after = feed.since(0)
        per_step.append([len(batch.events) for batch in after[len(before) :]])
    assert max(map(len, per_step)) == 1
    assert [len(per_step[0]), len(per_step[1])] == [1, 0]  # the prompts' blocks at once, then nothing until the end
    batches = feed.since(0)
    assert [batch.seq for batch in batches] == [*range(len(batches))]
    stored = [event for batch in batches for event in batch.events if isinstance(event, BlockStored)]
    expected = {*block_hashes(list(b"abcdefghij"), 4), *block_hashes(list(b"abcdefgxyz"), 4)}
    assert {block for event in stored for block in event.block_hashes} == expected


def test_what_happens_between_steps_is_in_a_batch_of_its_own() -> None:
    engine = make_engine()
    feed = engine.block_feed(4)
    rid = engine.add_request("abcdefghijkl", greedy(30))
    for _ in range(6):
        step(engine)
    seq = feed.snapshot().seq
    engine.abort(rid)
    aborted = feed.since(seq)
    assert [type(event) for batch in aborted for event in batch.events] == [BlockStored]
    assert engine.flush_cache() > 0
    flushed = feed.since(seq + 1)
    assert [type(event) for batch in flushed for event in batch.events] == [BlockRemoved]
    assert feed.snapshot().blocks == []


def test_a_feed_may_start_late_and_there_is_one_per_engine() -> None:
    engine = make_engine()
    serve(engine, "abcdefgh", "abcdxyz0")
    feed = engine.block_feed(4)
    reader = FeedReader(feed)
    reader.follow()
    assert reader.mirror.blocks == blocks_of_tree(engine.radix_cache, 4)
    assert len(reader.mirror.blocks) == 3
    assert engine.block_feed(4) is feed
    with pytest.raises(ValueError, match="event_block_size=16"):
        engine.block_feed()
    engine.shutdown()
    reader.follow()
    assert reader.mirror.blocks == {}


def test_other_threads_may_read_it_while_the_engine_steps() -> None:
    engine = make_engine()
    feed = engine.block_feed(2)
    reader, done = FeedReader(feed), threading.Event()

    def follow() -> None:
        while not done.is_set():
            reader.follow(lost=len(reader.mirror.blocks) % 2)

    worker = Worker(follow)
    try:
        for round_ in range(20):
            for i in range(4):
                engine.add_request(f"{round_:02d}{i}abcdefgh", greedy(6))
            finish(engine)
    finally:
        done.set()
    worker.result()
    reader.catch_up()
    assert reader.mirror.blocks == blocks_of_tree(engine.radix_cache, 2)
