"""Saving to a folder with room for a part: what was used last is there afterwards, also after the next save."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.loader import LoadedModel
from tests.helpers.fetches import Fetches
from tests.helpers.kv_files import kv_files
from tests.helpers.oracles import VOCAB
from tests.helpers.storeys import disk_of
from tests.helpers.tiny_llm import tiny_llm
from tests.helpers.waiting import HANG_S

CHATS = np.random.default_rng(3).integers(0, VOCAB, size=(6, 48)).tolist()
PARAMS = SamplingParams(max_new_tokens=1, temperature=0)
BLOCKS = 48  # tokens of a chat in whole blocks: the 48 of its prompt


def llm_in(folder: Path, model: LoadedModel, chats: float | None = None, **options: object) -> LLM:
    """A pool for two chats above host memory for six, and a folder for so many."""
    bound = None if chats is None else int(chats * size_of_a_chat(folder.with_name("one chat"), model))
    options = {"max_total_tokens": 112, "host_cache_tokens": 6 * BLOCKS, "cache_dir_max_bytes": bound, **options}
    return tiny_llm(model, max_context_len=64, max_running_requests=1, cache_dir=folder, **options)


def size_of_a_chat(folder: Path, model: LoadedModel) -> int:
    """Bytes of its files."""
    llm = tiny_llm(model, max_context_len=64, cache_dir=folder)
    served(llm, 0)
    assert llm.save_cache() == 0
    return sum(file.stat().st_size for file in kv_files(folder))


def served(llm: LLM, *chats: int) -> None:
    for chat in chats:
        llm.generate(CHATS[chat], PARAMS, use_tqdm=False)


def reach(llm: LLM, tokens: list[int]) -> int:
    """How many leading tokens are in files."""
    disk = disk_of(llm.engine)
    disk.look().result(HANG_S)
    return disk.reach(np.array(tokens), None, 0)


def in_files(llm: LLM) -> list[int]:
    """Which chats are whole in files."""
    return [chat for chat, tokens in enumerate(CHATS) if reach(llm, tokens) == BLOCKS]


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
    assert in_files(again) == [1, 4], "a smaller bound: what was used longest ago went first"


def test_chats_that_grow_are_whole_from_the_newest_on_and_saves_without_news_write_nothing(
    tmp_path: Path, model: LoadedModel
) -> None:
    llm, rng = llm_in(tmp_path / "kv", model, chats=2.6, max_total_tokens=160), np.random.default_rng(1)
    chats = {chat: CHATS[chat][:16] for chat in range(4)}
    order: list[int] = []
    for _ in range(40):
        chat = int(rng.integers(4))
        grown = chats[chat] + rng.integers(0, VOCAB, 16).tolist()
        chats[chat] = grown if len(grown) <= 48 else rng.integers(0, VOCAB, 16).tolist()
        llm.generate(chats[chat], PARAMS, use_tqdm=False)
        order = [chat, *(each for each in order if each != chat)]
        assert llm.save_cache() == 0
        whole = [reach(llm, chats[each]) == len(chats[each]) for each in order]
        assert whole[0]
        assert whole == sorted(whole, reverse=True), "no newer one had to go for an older one"
        files = {file: file.stat().st_ino for file in kv_files(tmp_path / "kv")}
        assert llm.save_cache() == 0
        assert {file: file.stat().st_ino for file in kv_files(tmp_path / "kv")} == files


def test_what_another_process_has_removed_is_written_again(tmp_path: Path, model: LoadedModel) -> None:
    llm = llm_in(tmp_path / "kv", model)
    served(llm, 0, 1)
    assert llm.save_cache() == 0
    for file in kv_files(tmp_path / "kv"):
        file.unlink()  # and nobody has looked since
    assert llm.save_cache() == 0
    assert in_files(llm) == [0, 1]


@pytest.mark.parametrize("flushed", [False, True])
def test_what_leaves_the_tree_while_it_is_saved_is_found_in_host_memory_or_counted(
    tmp_path: Path, model: LoadedModel, monkeypatch: pytest.MonkeyPatch, flushed: bool
) -> None:
    llm = llm_in(tmp_path / "kv", model)
    served(llm, 0, 1)
    disk = disk_of(llm.engine)
    look = disk.look

    def gone_first() -> Any:
        if flushed:
            llm.engine.flush_cache()
        else:
            served(llm, 2, 3)
        return look()

    with monkeypatch.context() as patch:
        patch.setattr(disk, "look", gone_first)  # which comes between choosing and writing
        assert llm.save_cache() == (2 * BLOCKS if flushed else 0)
    assert in_files(llm) == ([] if flushed else [0, 1])


def test_a_save_ends_when_its_time_is_up(tmp_path: Path, model: LoadedModel) -> None:
    llm = llm_in(tmp_path / "kv", model)
    served(llm, 0, 1, 2)
    disk = disk_of(llm.engine)
    writer, disk._writer = disk._writer, Fetches()  # type: ignore[assignment]
    assert llm.save_cache(timeout_s=0.0) == 3 * BLOCKS
    assert kv_files(tmp_path / "kv") == []
    disk._writer = writer
    assert llm.save_cache(timeout_s=HANG_S) == 0
