"""Saving to a folder with room for a part: what was used last is there afterwards, also after the next save."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.loader import LoadedModel
from tests.helpers.kv_files import kv_files, look
from tests.helpers.oracles import VOCAB
from tests.helpers.storeys import disk_of
from tests.helpers.tiny_llm import tiny_llm

CHATS = np.random.default_rng(3).integers(0, VOCAB, size=(6, 48)).tolist()
PARAMS = SamplingParams(max_new_tokens=1, temperature=0)
BLOCKS = 48  # tokens of a chat in whole blocks: the 48 of its prompt


def llm_in(folder: Path, model: LoadedModel, chats: float | None = None, **options: object) -> LLM:
    """A pool for two chats above host memory for six, and a folder for so many."""
    bound = None if chats is None else int(chats * size_of_a_chat(folder.with_name("one chat"), model))
    options = {"max_total_tokens": 112, "host_cache_tokens": 6 * BLOCKS, "cache_dir_max_bytes": bound, **options}
    llm = tiny_llm(model, max_context_len=64, max_running_requests=1, cache_dir=folder, **options)
    disk_of(llm.engine)
    return llm


def size_of_a_chat(folder: Path, model: LoadedModel) -> int:
    """Bytes of its file."""
    llm = tiny_llm(model, max_context_len=64, cache_dir=folder)
    served(llm, 0)
    assert llm.save_cache() == 0
    (file,) = kv_files(folder)
    return file.stat().st_size


def served(llm: LLM, *chats: int) -> None:
    for chat in chats:
        llm.generate(CHATS[chat], PARAMS, use_tqdm=False)


def in_files(llm: LLM) -> list[int]:
    """Which chats are whole in files."""
    store = disk_of(llm.engine)._store
    store.flush()
    look(store)
    return [chat for chat, tokens in enumerate(CHATS) if store.match(b"[null,null]", tokens) == BLOCKS]


def test_what_was_used_last_is_kept_within_the_bound_and_stays_when_it_is_saved_again(
    tmp_path: Path, model: LoadedModel
) -> None:
    llm = llm_in(tmp_path / "kv", model, chats=3.5)
    served(llm, 0, 1, 2, 3, 4, 5)
    for _ in range(3):
        assert llm.save_cache() == 0
        assert in_files(llm) == [3, 4, 5]
    served(llm, 1)
    assert llm.save_cache() == 0
    assert in_files(llm) == [1, 4, 5]
    served(llm, 4)
    llm.shutdown()
    again = llm_in(tmp_path / "kv", model, chats=2.5)
    look(disk_of(again.engine)._store)
    assert in_files(again) == [1, 4], "a smaller bound: what was used longest ago went first"


def test_chats_that_grow_are_whole_from_the_newest_on_and_saves_without_news_write_nothing(
    tmp_path: Path, model: LoadedModel
) -> None:
    llm, rng = llm_in(tmp_path / "kv", model, chats=2.6, max_total_tokens=160), np.random.default_rng(1)
    store, size = disk_of(llm.engine)._store, 16
    chats = {chat: CHATS[chat][:16] for chat in range(4)}
    order: list[int] = []
    for _ in range(40):
        chat = int(rng.integers(4))
        grown = chats[chat] + rng.integers(0, VOCAB, size).tolist()
        chats[chat] = grown if len(grown) <= 48 else rng.integers(0, VOCAB, size).tolist()
        llm.generate(chats[chat], PARAMS, use_tqdm=False)
        order = [chat, *(each for each in order if each != chat)]
        assert llm.save_cache() == 0
        whole = [store.match(b"[null,null]", chats[each]) == len(chats[each]) for each in order]
        assert whole[0]
        assert whole == sorted(whole, reverse=True), "no newer one had to go for an older one"
        llm.save_cache()  # writes a part of one whose file had to go because all of it had no room
        files = kv_files(tmp_path / "kv")
        written = store.stats().written_files
        assert llm.save_cache() == 0
        assert (kv_files(tmp_path / "kv"), store.stats().written_files) == (files, written)


def test_what_is_written_pushes_out_what_was_used_longest_ago_and_not_what_it_continues(
    tmp_path: Path, model: LoadedModel
) -> None:
    llm = llm_in(tmp_path / "kv", model, chats=1.9)
    store = disk_of(llm.engine)._store
    llm.generate(CHATS[0][:32], PARAMS, use_tqdm=False)
    assert llm.save_cache() == 0
    served(llm, 1)
    assert llm.save_cache() == 0
    assert store.stats().written_files == 2
    served(llm, 0)  # it goes on, behind the file that was written first
    assert llm.save_cache() == 0
    assert (in_files(llm), store.stats().written_files) == ([0], 3)


def test_a_file_that_two_chats_begin_with_takes_its_room_once(tmp_path: Path, model: LoadedModel) -> None:
    llm = llm_in(tmp_path / "kv", model, chats=1.95)
    store = disk_of(llm.engine)._store
    served(llm, 1)
    assert llm.save_cache() == 0
    llm.generate(CHATS[2][:16], PARAMS, use_tqdm=False)
    served(llm, 1)
    llm.generate([*CHATS[1][:32], *CHATS[0][:16]], PARAMS, use_tqdm=False)
    assert llm.save_cache() == 0
    assert in_files(llm) == [1]
    assert store.match(b"[null,null]", CHATS[2]) == 16


def test_nothing_older_is_chosen_behind_one_that_has_no_room(tmp_path: Path, model: LoadedModel) -> None:
    llm = llm_in(tmp_path / "kv", model, chats=1.45)
    llm.generate(CHATS[2][:16], PARAMS, use_tqdm=False)
    served(llm, 0, 1)
    assert llm.save_cache() == 0
    store = disk_of(llm.engine)._store
    assert [store.match(b"[null,null]", CHATS[chat]) for chat in (1, 0, 2)] == [48, 16, 0]


def test_what_another_process_has_removed_is_written_again(tmp_path: Path, model: LoadedModel) -> None:
    llm = llm_in(tmp_path / "kv", model)
    served(llm, 0, 1)
    assert llm.save_cache() == 0
    for file in kv_files(tmp_path / "kv"):
        file.unlink()  # and nobody has looked since
    assert llm.save_cache() == 0
    assert in_files(llm) == [0, 1]


def test_a_forked_process_asks_for_no_lock_of_the_writers(tmp_path: Path, model: LoadedModel) -> None:
    llm = llm_in(tmp_path / "kv", model)
    served(llm, 0)
    store = disk_of(llm.engine)._store
    with store._lock, pytest.MonkeyPatch.context() as patch:  # as if another thread had had it
        patch.setattr(store, "_process", -1)
        assert store.keeps([b"any"]) == [False]
        assert not store.offer(b"", np.arange(16), 0, np.zeros((16, store.token_bytes), np.uint8))


def test_what_files_have_lost_is_written_again(tmp_path: Path, model: LoadedModel) -> None:
    llm = llm_in(tmp_path / "kv", model)
    served(llm, 0, 1, 2, 3)
    assert llm.save_cache() == 0
    assert in_files(llm) == [0, 1, 2, 3]
    for file in kv_files(tmp_path / "kv"):
        file.unlink()
    assert in_files(llm) == []
    served(llm, 4, 5, 4, 5)
    llm.engine.cache.storey.index.add(np.arange(6 * BLOCKS), "other", 0)  # all chats have to leave host memory
    assert set(in_files(llm)) >= {0, 1, 2, 3}


def test_what_leaves_the_tree_while_it_is_saved_is_found_in_host_memory(
    tmp_path: Path, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = llm_in(tmp_path / "kv", model)
    served(llm, 0, 1)
    saving = disk_of(llm.engine)._saving
    chosen = saving._chosen
    monkeypatch.setattr(saving, "_chosen", lambda found: (chosen(found), served(llm, 2, 3))[0])
    assert llm.save_cache() == 0
    assert in_files(llm) == [0, 1]


def test_what_has_left_both_while_it_is_saved_is_counted(
    tmp_path: Path, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = llm_in(tmp_path / "kv", model)
    served(llm, 0, 1)
    saving = disk_of(llm.engine)._saving
    chosen = saving._chosen

    def then_flushed(found: Any) -> Any:
        try:
            return chosen(found)
        finally:
            llm.engine.flush_cache()

    monkeypatch.setattr(saving, "_chosen", then_flushed)
    assert llm.save_cache() == 2 * BLOCKS
    assert in_files(llm) == []


def test_a_save_ends_when_its_time_is_up(tmp_path: Path, model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = llm_in(tmp_path / "kv", model)
    served(llm, 0, 1, 2)
    saving, now = disk_of(llm.engine)._saving, iter(range(100))
    monkeypatch.setattr(saving, "_clock", lambda: float(next(now)))
    assert llm.save_cache(timeout_s=2.5) >= 2 * BLOCKS
    assert in_files(llm) == [2], "what was used last comes first"
