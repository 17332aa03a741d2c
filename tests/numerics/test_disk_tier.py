"""Engines with files at work: requests wait for K/V while others go on, and a folder may have room for a part only."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanoinfer import LLM, Engine, SamplingParams
from nanoinfer.model.loader import LoadedModel
from tests.helpers.engines import finish, step
from tests.helpers.fetches import Fetches
from tests.helpers.kv_files import kv_files
from tests.helpers.oracles import VOCAB
from tests.helpers.tiers import disk_of, tier_of
from tests.helpers.tiny_llm import tiny_llm
from tests.helpers.waiting import HANG_S
from tests.numerics.test_tiers import NOTHING, PARAMS, PROMPTS, Tokens, of_disk, served


def one_waits(engine: Engine) -> tuple[int, int]:
    """A request that is being computed, and one that waits for its prefix in files."""
    other = engine.add_request(PROMPTS[1], PARAMS)
    step(engine)
    waits = engine.add_request(PROMPTS[0], PARAMS)
    step(engine)
    return other, waits


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_a_request_waits_for_its_k_v_and_others_go_on(slow: tuple[LLM, Fetches], wanted: Tokens) -> None:
    llm, reads = slow
    engine = llm.engine
    waits, goes_on = (engine.add_request(prompt, PARAMS) for prompt in PROMPTS[:2])
    last: dict[int, Any] = {}
    while goes_on not in last or not last[goes_on].finished:
        last |= step(engine)
        assert engine.is_unfinished(waits)
        if engine.is_unfinished(goes_on):
            assert len(engine.scheduler.waiting) == 1
    assert (last[goes_on].token_ids, waits in last, len(reads.waiting)) == (wanted[1], False, 1)
    reads.run_all()
    last |= finish(engine)
    assert (last[waits].token_ids, last[waits].cached_tokens_by_tier) == (wanted[0], of_disk(32))


@pytest.mark.parametrize("others_run", [False, True])
def test_a_request_does_not_wait_for_a_disk_that_has_stalled(
    slow: tuple[LLM, Fetches], wanted: Tokens, others_run: bool
) -> None:
    llm, reads = slow
    engine, disk = llm.engine, disk_of(llm.engine)
    prompts = [1, 0] if others_run else [0]
    requests = [engine.add_request(PROMPTS[prompt], PARAMS) for prompt in prompts]
    step(engine)
    disk._reading_since = float("-inf")  # the reader has been at this block for ever
    last = finish(engine)
    assert [last[request].token_ids for request in requests] == [wanted[prompt] for prompt in prompts]
    assert ([future.cancelled() for future in reads.waiting], disk.fetching) == ([True], False)
    engine.flush_cache()
    assert served(llm, PROMPTS[:1]) == (wanted[:1], [NOTHING]), "nobody asks it again"
    disk._reading_since = None
    waits = engine.add_request([*PROMPTS[0][:40], 3], PARAMS)
    engine.flush_cache()
    step(engine)
    assert disk.fetching, "until it goes on"
    reads.run_all()
    assert finish(engine)[waits].cached_tokens_by_tier == of_disk(32)


def test_a_request_that_is_aborted_while_it_waits_leaves_nothing_behind(
    slow: tuple[LLM, Fetches], wanted: Tokens
) -> None:
    llm, reads = slow
    engine = llm.engine
    other, waits = one_waits(engine)
    engine.abort(waits)
    reads.run_all()
    assert finish(engine)[other].token_ids == wanted[1]
    assert served(llm, PROMPTS[2:]) == (wanted[2:], [NOTHING])
    assert not disk_of(llm.engine).fetching
    assert served(llm, PROMPTS[:1]) == (wanted[:1], [{**NOTHING, "host": 32}]), "what came all the same is used"


def test_a_step_ends_while_a_disk_has_stalled_so_that_others_get_their_turn(
    slow: tuple[LLM, Fetches], wanted: Tokens
) -> None:
    llm, reads = slow
    waits, other = (llm.engine.add_request(PROMPTS[0], PARAMS) for _ in range(2))
    assert step(llm.engine) == {}
    assert (llm.engine.is_unfinished(waits), disk_of(llm.engine).fetching) == (True, True)
    assert llm.engine.abort(waits) is not None
    reads.run_all()
    assert finish(llm.engine)[other].token_ids == wanted[0]


def test_k_v_on_its_way_takes_no_more_room_than_host_memory(slow: tuple[LLM, Fetches], model: LoadedModel) -> None:
    llm, reads = slow
    params = SamplingParams(n=8, max_new_tokens=12, seed=1, ignore_eos=True)
    (alone,) = tiny_llm(model, max_context_len=64, disable_radix_cache=True).generate(
        PROMPTS[:1], params, use_tqdm=False
    )
    request = llm.engine.add_request(PROMPTS[0], params)
    llm.engine.add_request(PROMPTS[1], PARAMS)
    step(llm.engine)
    assert len(reads.waiting) == tier_of(llm.engine).index.size // 32
    reads.run_all()
    last = finish(llm.engine)
    assert not reads.waiting, "all others find it in memory"
    assert [each.token_ids for each in last[request].outputs] == [each.token_ids for each in alone.outputs]


def test_what_came_while_another_one_did_not_fit_is_admitted(slow: tuple[LLM, Fetches], wanted: Tokens) -> None:
    llm, reads = slow
    engine, is_ready = llm.engine, disk_of(llm.engine).is_ready
    runs = engine.add_request(PROMPTS[1], PARAMS)
    step(engine)
    waits = engine.add_request(PROMPTS[0], PARAMS)
    step(engine)
    large = engine.add_request([5] * 40, SamplingParams(max_new_tokens=24, temperature=0, ignore_eos=True))
    engine.cache.outstanding_size, size = (
        lambda req, ratio=1.0: 1000 if req.request_id == large else size(req, ratio),
        engine.cache.outstanding_size,
    )

    def ready(req: Any) -> bool:
        if req.request_id == large:
            reads.run_all()  # after it was the other one's turn
        return is_ready(req)

    disk_of(engine).is_ready = ready  # type: ignore[method-assign]
    step(engine)
    step(engine)
    assert [req.request_id for req in engine.scheduler.running] == [runs, waits]
    engine.abort(large)
    assert finish(engine)[waits].token_ids == wanted[0]


@pytest.mark.parametrize("has_come", [False, True])
def test_what_is_on_its_way_at_a_flush_does_not_arrive(slow: tuple[LLM, Fetches], has_come: bool) -> None:
    llm, reads = slow
    engine, tier = llm.engine, tier_of(llm.engine)
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
        assert len(tier.index) == 0
    assert last[waits].cached_tokens_by_tier == NOTHING
    assert (disk_of(engine).fetching, disk_of(engine).fetched_tokens, reads.waiting) == (False, 0, [])
    engine.check_integrity()
    again = engine.add_request(PROMPTS[0], PARAMS)
    assert finish(engine)[again].token_ids == last[waits].token_ids


# --- saving -----------------------------------------------------------------------------------------------------------

CHATS = np.random.default_rng(3).integers(0, VOCAB, size=(6, 48)).tolist()
ONE_TOKEN = SamplingParams(max_new_tokens=1, temperature=0)
BLOCKS = 48  # tokens of a chat in whole blocks: the 48 of its prompt


def llm_in(folder: Path, model: LoadedModel, chats: float | None = None, **options: object) -> LLM:
    """A pool for two chats above host memory for six, and a folder for so many."""
    bound = None if chats is None else int(chats * size_of_a_chat(folder.with_name("one chat"), model))
    options = {"max_total_tokens": 112, "host_cache_tokens": 6 * BLOCKS, "cache_dir_max_bytes": bound, **options}
    return tiny_llm(model, max_context_len=64, max_running_requests=1, cache_dir=folder, **options)


def size_of_a_chat(folder: Path, model: LoadedModel) -> int:
    """Bytes of its files."""
    llm = tiny_llm(model, max_context_len=64, cache_dir=folder)
    chatted(llm, 0)
    assert llm.save_cache() == 0
    return sum(file.stat().st_size for file in kv_files(folder))


def chatted(llm: LLM, *chats: int) -> None:
    for chat in chats:
        llm.generate(CHATS[chat], ONE_TOKEN, use_tqdm=False)


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
    chatted(llm, 0, 1, 2, 3, 4, 5)
    for _ in range(3):
        assert llm.save_cache() == 0
        assert in_files(llm) == [3, 4, 5]
    chatted(llm, 1)
    assert llm.save_cache() == 0
    assert in_files(llm) == [1, 4, 5]
    chatted(llm, 4)
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
        llm.generate(chats[chat], ONE_TOKEN, use_tqdm=False)
        order = [chat, *(each for each in order if each != chat)]
        assert llm.save_cache() == 0
        whole = [reach(llm, chats[each]) == len(chats[each]) for each in order]
        assert whole[0]
        assert whole == sorted(whole, reverse=True), "no newer one had to go for an older one"
        assert llm.save_cache() == 0  # where a file had to go as a whole, some of its blocks may have room
        files = {file: file.stat().st_ino for file in kv_files(tmp_path / "kv")}
        assert llm.save_cache() == 0
        assert {file: file.stat().st_ino for file in kv_files(tmp_path / "kv")} == files


def test_what_another_process_has_removed_is_written_again(tmp_path: Path, model: LoadedModel) -> None:
    llm = llm_in(tmp_path / "kv", model)
    chatted(llm, 0, 1)
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
    chatted(llm, 0, 1)
    disk = disk_of(llm.engine)
    look = disk.look

    def gone_first() -> Any:
        if flushed:
            llm.engine.flush_cache()
        else:
            chatted(llm, 2, 3)
        return look()

    with monkeypatch.context() as patch:
        patch.setattr(disk, "look", gone_first)  # which comes between choosing and writing
        assert llm.save_cache() == (2 * BLOCKS if flushed else 0)
    assert in_files(llm) == ([] if flushed else [0, 1])


def test_a_save_ends_when_its_time_is_up(tmp_path: Path, model: LoadedModel) -> None:
    llm = llm_in(tmp_path / "kv", model)
    chatted(llm, 0, 1, 2)
    disk = disk_of(llm.engine)
    writer, disk._writer = disk._writer, Fetches()  # type: ignore[assignment]
    assert llm.save_cache(timeout_s=0.0) == 3 * BLOCKS
    assert kv_files(tmp_path / "kv") == []
    disk._writer = writer
    assert llm.save_cache(timeout_s=HANG_S) == 0
