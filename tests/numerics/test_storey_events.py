"""Engines with files that tell routers what they have, and flushes and saves at the same time as reads and writes."""

from pathlib import Path
from typing import Any

import numpy as np

from nanoinfer import LLM
from nanoinfer.cache.block_events import CPU, DISK, GPU, block_hashes
from nanoinfer.cache.storeys.files import FileStore
from nanoinfer.cluster import PassCosts, PrefixRouter, RoutedRequest
from nanoinfer.model.loader import LoadedModel
from tests.helpers.adapters import save_adapter
from tests.helpers.block_mirror import FeedReader, blocks_of_tree
from tests.helpers.engines import finish, step
from tests.helpers.storeys import SlowStore, disk_of, storey_of
from tests.helpers.waiting import HANG_S, until
from tests.numerics.test_disk_storey import NOTHING, PARAMS, PROMPTS, llm_in, of_disk, served
from tests.numerics.test_disk_storey_waits import one_waits


def blocks_of(prompts: list[list[int]], extra_key: Any = None) -> set[int]:
    """The whole blocks of 44 tokens and 12 generated ones are 48 tokens; those of the prompt alone are 32."""
    return {block for prompt in prompts for block in block_hashes(prompt[:32], 16, extra_key)}


def store_of(llm: LLM) -> FileStore:
    return disk_of(llm.engine)._store


# --- what a feed tells of files ---------------------------------------------------------------------------------------


def test_a_new_process_tells_of_the_files_that_it_finds_and_a_router_uses_it(
    tmp_path: Path, model: LoadedModel
) -> None:
    first = llm_in(tmp_path, model)
    served(first)
    reader = FeedReader(first.engine.block_feed())
    assert store_of(first)._reader.wait(HANG_S), "until it has begun to tell"
    reader.follow()
    assert reader.mirror.media.get(DISK, {}) == {}
    assert first.save_cache() == 0
    reader.follow()
    assert blocks_of(PROMPTS) <= reader.mirror.media[DISK].keys()
    assert len(reader.mirror.media[DISK]) == store_of(first).stats().blocks == 9
    assert reader.mirror.blocks == blocks_of_tree(first.engine.radix_cache, 16)
    first.shutdown()
    reader.follow()
    assert (reader.mirror.media[GPU], reader.mirror.media[CPU]) == ({}, {})

    second = llm_in(tmp_path, model)
    feed, news = second.engine.block_feed(), FeedReader(second.engine.block_feed())
    store_of(second)._reader.wait(HANG_S)
    news.follow()
    assert news.mirror.media[DISK].keys() == reader.mirror.media[DISK].keys()
    router = PrefixRouter(PassCosts(0.001, 0.001, 0.0001, 0.0), clock=lambda: 0.0)
    for name in ("cold", "second"):
        router.add_replica(name)
    router.note_snapshot("second", feed.snapshot())
    assert router.choose(RoutedRequest("0", PROMPTS[0], 12)) == "second"
    assert served(second, PROMPTS[:1])[1] == [of_disk(32)]
    news.follow()
    assert blocks_of(PROMPTS[:1]) <= news.mirror.media[GPU].keys() & news.mirror.media[CPU].keys()


def test_whoever_listens_hears_of_what_is_written_while_the_engine_does_nothing(
    tmp_path: Path, model: LoadedModel
) -> None:
    """A save is not a step, and a writer's thread may end after it."""
    llm = llm_in(tmp_path, model)
    served(llm, PROMPTS[:1])
    feed = llm.engine.block_feed()
    heard: list[int] = []
    feed.listeners.append(lambda: heard.append(feed._next))
    store = disk_of(llm.engine)._store
    tokens = np.arange(16)
    kv = np.zeros((16, store.token_bytes), np.uint8)
    before = len(heard)
    assert store.offer(b"[null,null]", tokens, 0, kv)
    until(lambda: len(heard) > before, "a batch that says so")
    assert block_hashes(tokens, 16)[0] in {
        block for batch in feed.since(0) or [] for event in batch.events for block in event.block_hashes
    }


def test_adapters_files_are_not_told_of_and_keys_are_kept_apart(tmp_path: Path, model: LoadedModel) -> None:
    llm = llm_in(tmp_path / "kv", model, adapters={"a": save_adapter(tmp_path / "one", model.model, 0)})
    reader = FeedReader(llm.engine.block_feed())
    served(llm, PROMPTS[:1], adapter="a")
    served(llm, PROMPTS[1:2], extra_key=("secret", b"1"))
    assert store_of(llm)._reader.wait(HANG_S), "until it has begun to tell"
    assert llm.save_cache() == 0
    reader.follow()
    assert store_of(llm).stats().blocks == 6
    assert len(reader.mirror.media[DISK]) == 3
    assert blocks_of(PROMPTS[1:2], ("secret", b"1")) <= reader.mirror.media[DISK].keys()


def test_what_came_from_files_is_not_offered_to_them_again(tmp_path: Path, model: LoadedModel) -> None:
    first = llm_in(tmp_path, model)
    served(first)
    first.shutdown()
    second = llm_in(tmp_path, model)
    assert served(second)[1] == [of_disk(32)] * 3
    store, starts = store_of(second), list[int]()
    offer = store.offer
    store.offer = lambda *args: starts.append(args[2]) or offer(*args)  # type: ignore[func-returns-value, method-assign]
    assert second.save_cache() == 0
    assert min(starts, default=32) == 32, "nothing of what was read"


# --- flushing ---------------------------------------------------------------------------------------------------------


def test_what_is_on_its_way_at_a_flush_does_not_arrive(slow: tuple[LLM, SlowStore]) -> None:
    llm, store = slow
    engine, storey = llm.engine, storey_of(llm.engine)
    waits, other = (engine.add_request(prompt, PARAMS) for prompt in PROMPTS[:2])
    step(engine)
    ((future, _),) = store.on_its_way
    assert future.set_running_or_notify_cancel(), "the disk is at it"
    data = store._store.read(*store.on_its_way[0][1])
    assert data is not None
    engine.flush_cache()
    future.set_result(data)
    last = step(engine)
    while not {waits, other} <= {i for i, output in last.items() if output.finished}:
        last |= step(engine)
        assert len(storey.index) == 0
    assert last[waits].cached_tokens_by_tier == NOTHING
    assert (store.disk.fetching, store.disk.fetched_tokens, len(store.on_its_way)) == (False, 0, 1)
    engine.check_integrity()
    store.on_its_way.clear()
    again = engine.add_request(PROMPTS[0], PARAMS)
    assert finish(engine)[again].token_ids == last[waits].token_ids


def test_what_has_come_but_not_landed_at_a_flush_is_not_used_either(slow: tuple[LLM, SlowStore]) -> None:
    llm, store = slow
    engine = llm.engine
    other, waits = one_waits(engine)
    store.read_all()
    engine.flush_cache()
    assert len(storey_of(engine).index) == 0
    last = finish(engine)
    assert [last[request].cached_tokens for request in (waits, other)] == [0, 0]
    assert len(storey_of(engine).index) == 0
    fresh = engine.add_request([*PROMPTS[0][:40], 3], PARAMS)
    step(engine)
    assert len(store.on_its_way) == 0, "it is in the pool"
    assert engine.is_unfinished(fresh)
    finish(engine)


def test_what_was_flushed_during_a_save_is_not_written_with_others_k_v(tmp_path: Path, model: LoadedModel) -> None:
    """Between two of a save's visits, host memory may be emptied, and its slots given to others."""
    llm = llm_in(tmp_path, model)
    engine, disk, storey = llm.engine, disk_of(llm.engine), storey_of(llm.engine)
    served(llm)
    held = [tuple(storey.index.tokens_of(block)[0].tolist()) for block in storey.index]
    assert held
    others, visits = [[i, *prompt[1:]] for i, prompt in enumerate(PROMPTS, start=1)], 0

    def visit() -> Any:
        nonlocal visits
        visits += 1
        if visits == 2:  # what is to be written has been found
            engine.flush_cache()
            served(llm, others)
        return engine.visit()

    disk.save(visit)
    fresh = llm_in(tmp_path / "none", model)
    for prompt in PROMPTS:
        assert disk._store.match(b"[null,null]", np.array(prompt), 0) == 0
    llm.shutdown()
    second = llm_in(tmp_path, model)
    assert served(second, others)[0] == served(fresh, others)[0]
