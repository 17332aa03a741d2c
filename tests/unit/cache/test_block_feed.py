"""An engine's feed: one batch per step or visit that changes the tree, for any thread."""

import threading

import pytest

from nanoinfer import LLM, AsyncEngine
from nanoinfer.cache.block_events import BlockRemoved, BlockStored, block_hashes
from nanoinfer.trace import record
from tests.helpers.block_mirror import FeedReader, blocks_of_tree
from tests.helpers.engines import finish, greedy, make_engine, serve, step
from tests.helpers.waiting import Worker, run


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
        assert before is not None
        assert after is not None
        per_step.append([len(batch.events) for batch in after[len(before) :]])
    assert max(map(len, per_step)) == 1
    assert [len(per_step[0]), len(per_step[1])] == [1, 0]  # the prompts' blocks at once, then nothing until the end
    batches = feed.since(0)
    assert batches is not None
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
    assert aborted is not None
    assert [type(event) for batch in aborted for event in batch.events] == [BlockStored]
    assert engine.flush_cache() > 0
    flushed = feed.since(seq + 1)
    assert flushed is not None
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
    with pytest.raises(ValueError, match="event_block_size=16: must be 4, as when the feed was started"):
        engine.block_feed()
    engine.shutdown()
    reader.follow()
    assert reader.mirror.blocks == {}


def test_a_trace_may_be_recorded_at_the_same_time() -> None:
    engine = make_engine(slots=32)
    reader = FeedReader(engine.block_feed(2))
    with record(engine) as trace:
        serve(engine, "abcdefgh", "abcdxyz0", "abcdefghij")
        serve(engine, "0123456789", max_new_tokens=10)
    serve(engine, "abcdxyz0")
    reader.follow()
    assert reader.mirror.blocks == blocks_of_tree(engine.radix_cache, 2)
    assert len(trace) > 0


def test_without_a_radix_cache_there_is_nothing_to_tell() -> None:
    engine = make_engine(disable_radix_cache=True)
    feed = engine.block_feed(4)
    serve(engine, "abcdefgh")
    assert feed.since(0) == []
    assert feed.snapshot().blocks == []


def test_unloading_an_adapter_frees_its_cached_tokens_and_says_so() -> None:
    llm = LLM("story", max_total_tokens=512, adapters={"one": "rhymes"})
    feed = llm.engine.block_feed(4)
    llm.generate("Once upon a time there was a fox", greedy(8))
    llm.generate("Once upon a time there was a fox", greedy(8), adapter="one")
    reader = FeedReader(feed)
    reader.follow()
    names = [adapter for _, _, adapter in reader.mirror.blocks.values()]
    assert {None, "one"} == set(names)
    free = llm.engine.stats().free_slots
    llm.unload_adapter("one")
    reader.follow()
    assert llm.engine.stats().free_slots > free
    assert [adapter for _, _, adapter in reader.mirror.blocks.values()] == [None] * names.count(None)
    assert reader.mirror.blocks == blocks_of_tree(llm.engine.radix_cache, 4)
    llm.engine.check_integrity()


def test_several_decode_passes_in_one_step_are_one_batch() -> None:
    engine = make_engine(num_scheduler_steps=8)
    feed = engine.block_feed(2)
    serve(engine, "abcdefgh", max_new_tokens=6)
    reader = FeedReader(feed)
    reader.follow()
    assert reader.mirror.blocks == blocks_of_tree(engine.radix_cache, 2)


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


def test_an_async_engine_has_it_too() -> None:
    async def main() -> None:
        async with AsyncEngine(make_engine()) as engine:
            feed = await engine.visit(lambda inner: inner.block_feed(4))
            await engine.generate("abcdefgh", greedy(3))
            batches = await engine.visit(lambda _: feed.since(0))
            assert batches is not None
            assert batches[0].events[0] == BlockStored(
                block_hashes(list(b"abcdefgh"), 4), None, [*b"abcdefgh"], 4, None, None
            )

    run(main)


def test_a_feed_that_has_missed_something_says_so() -> None:
    """A tree tells an observer that has raised no more: what the feed would say from then on is not what the tree holds."""
    engine = make_engine()
    feed = engine.block_feed(4)

    def broken(*args: object) -> None:
        raise ZeroDivisionError

    feed._blocks.inserted = broken  # type: ignore[method-assign]
    engine.add_request("abcdefgh", greedy(3))
    finish(engine)
    for ask in (lambda: feed.since(0), feed.snapshot):
        with pytest.raises(RuntimeError, match="this feed is incomplete"):
            ask()
    engine.check_integrity()
