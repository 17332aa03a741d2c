"""Engines with files that tell routers what they have, and flushes and saves at the same time as reads and writes."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanoinfer import LLM
from nanoinfer.cache.block_events import CPU, DISK, GPU, block_hashes
from nanoinfer.cluster import PassCosts, PrefixRouter, RoutedRequest
from nanoinfer.model.loader import LoadedModel
from tests.helpers.adapters import save_adapter
from tests.helpers.block_mirror import FeedReader, blocks_of_tree
from tests.helpers.engines import finish, step
from tests.helpers.fetches import Fetches
from tests.helpers.kv_files import kv_files
from tests.helpers.storeys import disk_of, storey_of, written
from tests.helpers.waiting import HANG_S
from tests.numerics.test_disk_storey import NOTHING, PARAMS, PROMPTS, llm_in, of_disk, served


def blocks_of(prompts: list[list[int]], extra_key: Any = None) -> set[int]:
    """The whole blocks of 44 tokens and 12 generated ones are 48 tokens; those of the prompt alone are 32."""
    return {block for prompt in prompts for block in block_hashes(prompt[:32], 16, extra_key)}


# --- what a feed tells of files ---------------------------------------------------------------------------------------


def test_a_new_process_tells_of_the_files_that_it_finds_and_a_router_uses_it(
    tmp_path: Path, model: LoadedModel
) -> None:
    first = llm_in(tmp_path, model)
    served(first)
    reader = FeedReader(first.engine.block_feed())
    reader.follow()
    assert reader.mirror.media.get(DISK, {}) == {}
    assert first.save_cache() == 0
    reader.follow()
    assert blocks_of(PROMPTS) <= reader.mirror.media[DISK].keys()
    assert len(reader.mirror.media[DISK]) == len(kv_files(tmp_path)) == 9
    assert reader.mirror.blocks == blocks_of_tree(first.engine.radix_cache, 16)
    first.shutdown()
    reader.follow()
    assert (reader.mirror.media[GPU], reader.mirror.media[CPU]) == ({}, {})

    second = llm_in(tmp_path, model)
    feed, news = second.engine.block_feed(), FeedReader(second.engine.block_feed())
    written(second.engine)
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
    """A save is not a step."""
    llm = llm_in(tmp_path, model)
    served(llm, PROMPTS[:1])
    heard = threading.Event()
    llm.engine.block_feed().listeners.append(heard.set)
    llm.save_cache()
    assert heard.wait(HANG_S)
    batches = llm.engine.block_feed().since(0) or []
    told = {block for batch in batches for event in batch.events for block in event.block_hashes}  # type: ignore[union-attr]
    assert blocks_of(PROMPTS[:1]) <= told


def test_adapters_files_are_not_told_of_and_keys_are_kept_apart(tmp_path: Path, model: LoadedModel) -> None:
    llm = llm_in(tmp_path / "kv", model, adapters={"a": save_adapter(tmp_path / "one", model.model, 0)})
    reader = FeedReader(llm.engine.block_feed())
    served(llm, PROMPTS[:1], adapter="a")
    served(llm, PROMPTS[1:2], extra_key=("secret", b"1"))
    assert llm.save_cache() == 0
    reader.follow()
    assert len(kv_files(tmp_path / "kv")) == 6
    assert len(reader.mirror.media[DISK]) == 3
    assert blocks_of(PROMPTS[1:2], ("secret", b"1")) <= reader.mirror.media[DISK].keys()


def test_what_came_from_files_is_not_written_again(tmp_path: Path, model: LoadedModel) -> None:
    first = llm_in(tmp_path, model)
    served(first)
    first.shutdown()
    files = {file: file.stat().st_ino for file in kv_files(tmp_path)}
    second = llm_in(tmp_path, model)
    assert served(second)[1] == [of_disk(32)] * 3
    second.shutdown()
    assert {file: file.stat().st_ino for file in kv_files(tmp_path)} == files


# --- flushing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_come", [False, True])
def test_what_is_on_its_way_at_a_flush_does_not_arrive(slow: tuple[LLM, Fetches], has_come: bool) -> None:
    llm, reads = slow
    engine, storey = llm.engine, storey_of(llm.engine)
    waits, other = (engine.add_request(prompt, PARAMS) for prompt in PROMPTS[:2])
    step(engine)
    if has_come:
        reads.run_all()
    else:
        assert reads.waiting[0].set_running_or_notify_cancel(), "the disk is at it"
    engine.flush_cache()
    reads.run_all()
    last = step(engine)
    while not {waits, other} <= {i for i, output in last.items() if output.finished}:
        last |= step(engine)
        assert len(storey.index) == 0
    assert last[waits].cached_tokens_by_tier == NOTHING
    assert (disk_of(engine).fetching, disk_of(engine).fetched_tokens, reads.waiting) == (False, 0, [])
    engine.check_integrity()
    again = engine.add_request(PROMPTS[0], PARAMS)
    assert finish(engine)[again].token_ids == last[waits].token_ids


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
        assert disk.reach(np.array(prompt), None, 0) == 0
    llm.shutdown()
    second = llm_in(tmp_path, model)
    assert served(second, others)[0] == served(fresh, others)[0]
