"""Engines with tiers below the pool, in host memory and in files: the tokens of engines without a cache, K/V that comes
back bit for bit, also in the next process, and news of it for routers."""

import errno
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.block_events import CPU, DISK, GPU, block_hashes
from nanoinfer.cluster import PassCosts, PrefixRouter, RoutedRequest
from nanoinfer.model.loader import LoadedModel, load_model
from tests.helpers.adapters import save_adapter
from tests.helpers.block_mirror import FeedReader, blocks_of_tree
from tests.helpers.checkpoints import save_checkpoint
from tests.helpers.fetches import Fetches
from tests.helpers.kv_files import kv_files
from tests.helpers.oracles import TINY_MODEL, VOCAB
from tests.helpers.tiers import SameBits, disk_of, tier_of, written
from tests.helpers.tiny_llm import tiny_llm
from tests.helpers.waiting import HANG_S

STEMS = np.random.default_rng(7).integers(0, VOCAB, size=(4, 44)).tolist()
PROMPTS = [[*stem, i] for i, stem in enumerate(STEMS[:3])]
MANY = [*PROMPTS, STEMS[3], [*STEMS[0][:33], 1, 2], STEMS[1][:40]]
PARAMS = SamplingParams(max_new_tokens=12, temperature=0)
Tokens = list[list[int]]
NOTHING = {"device": 0, "host": 0, "disk": 0}


def llm_in(folder: Path, model: LoadedModel, draft_model: LoadedModel | None = None, **options: Any) -> LLM:
    options = {"max_running_requests": 1, "max_total_tokens": 96, "host_cache_tokens": 128, **options}
    return tiny_llm(model, draft_model, max_context_len=64, cache_dir=folder, **options)


def served(
    llm: LLM, prompts: Sequence[list[int]] = PROMPTS, **options: Any
) -> tuple[list[list[int]], list[dict[str, int]]]:
    """The tokens, and where cached ones came from."""
    outputs = [llm.generate(prompt, PARAMS, use_tqdm=False, **options)[0] for prompt in prompts]
    llm.engine.check_integrity()
    return [output.token_ids for output in outputs], [output.cached_tokens_by_tier for output in outputs]


def of_disk(tokens: int) -> dict[str, int]:
    return {**NOTHING, "disk": tokens}


# --- what one process leaves, the next one finds ----------------------------------------------------------------------


@pytest.mark.parametrize(("page_size", "kv_cache_dtype"), [(1, None), (4, "int8"), (16, None)])
def test_a_new_engine_continues_what_was_saved_at_shutdown(
    tmp_path: Path, model: LoadedModel, page_size: int, kv_cache_dtype: str | None
) -> None:
    options = {"page_size": page_size, "kv_cache_dtype": kv_cache_dtype}
    first = llm_in(tmp_path, model, **options)
    tokens, tiers = served(first)
    assert tiers == [NOTHING] * 3
    first.shutdown()
    first.shutdown()
    second = llm_in(tmp_path, model, **options)
    assert served(second) == (tokens, [of_disk(32)] * 3)  # whole blocks of 44 tokens
    stats = second.engine.stats()
    assert (stats.disk_held_tokens, stats.disk_fetched_tokens, stats.disk_misses) == (3 * 48, 3 * 32, 0)
    assert served(second)[1][-1]["disk"] == 0, "it is in memory now"
    files = {file: file.stat().st_ino for file in kv_files(tmp_path)}
    second.shutdown()
    assert {file: file.stat().st_ino for file in kv_files(tmp_path)} == files, "nothing is written again"


def test_what_comes_back_from_files_has_the_bits_it_had(tmp_path: Path, model: LoadedModel, wanted: Tokens) -> None:
    """Through all tiers in one process: a pool for one request, host memory for two, files for the others."""
    llm = llm_in(tmp_path, model, max_total_tokens=64, host_cache_tokens=96)
    bits, disk = SameBits(llm.engine), disk_of(llm.engine)
    others = [[i, *prompt[1:]] for i, prompt in enumerate(PROMPTS, start=1)]
    for _ in range(3):
        assert served(llm)[0] == wanted
        written(llm.engine)
        served(llm, others)
        written(llm.engine)
    assert disk.fetched_tokens > 64
    assert bits.compared > disk.fetched_tokens / 2


def test_what_waits_for_the_writer_is_found_all_the_same(tmp_path: Path, model: LoadedModel, wanted: Tokens) -> None:
    llm = llm_in(tmp_path, model, max_total_tokens=64, host_cache_tokens=96)
    disk_of(llm.engine)._writer = Fetches()  # type: ignore[assignment]
    served(llm, [*PROMPTS, [9] * 45])
    assert kv_files(tmp_path) == []
    assert served(llm, PROMPTS[:1]) == (wanted[:1], [of_disk(32)])


def test_what_the_disk_does_not_take_is_counted_and_offered_again(
    tmp_path: Path, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = llm_in(tmp_path, model)
    served(llm)

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(disk_of(llm.engine).files, "_write_file", fail)
    assert llm.save_cache() == 3 * 48
    assert llm.save_cache() == 3 * 48
    monkeypatch.undo()
    assert llm.save_cache() == 0
    assert llm.engine.stats().disk_held_tokens == 3 * 48
    llm.shutdown()


@pytest.mark.slow
def test_a_command_continues_what_the_last_one_has_computed(tmp_path: Path) -> None:
    prompt = "Once upon a time there was a little fox who lived in a big big forest and liked to play every single day"
    options = [f"--cache-dir={tmp_path / 'kv'}", "--temperature=0"]
    command = [sys.executable, "-m", "nanoinfer", "generate", prompt, *options]
    first, second = (subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2))
    assert second.stdout == first.stdout
    assert " 0 cached" in first.stderr
    assert " 16 cached" in second.stderr


def test_the_draft_models_k_v_is_in_the_files_too(tmp_path: Path, model: LoadedModel, wanted: Tokens) -> None:
    options = {"drafter": "model", "adaptive_drafts": False}
    llm_in(tmp_path, model, model, **options).generate(PROMPTS, PARAMS, use_tqdm=False)
    first = llm_in(tmp_path, model, model, **options)
    assert served(first)[0] == wanted
    first.shutdown()
    second = llm_in(tmp_path, model, model, **options)
    sizes: list[int] = []
    runner = second.engine.scheduler.drafters[0]._runner  # type: ignore[attr-defined]
    forward = runner.forward_batch
    runner.forward_batch = lambda batch: sizes.append(len(batch.input_ids)) or forward(batch)
    assert served(second) == (wanted, [of_disk(32)] * 3)
    assert max(sizes) <= 45 - 32 + 1, "the draft model has not computed the prompts"


def test_adapters_are_known_by_their_content(tmp_path: Path, model: LoadedModel) -> None:
    one, two = (save_adapter(tmp_path / name, model.model, seed) for seed, name in enumerate(("one", "two")))
    first = llm_in(tmp_path / "kv", model, adapters={"a": one, "b": two})
    tokens = {name: served(first, PROMPTS[:1], adapter=name)[0] for name in ("a", "b")}
    secret = served(first, PROMPTS[:1], extra_key=("secret", 1))[0]
    first.shutdown()
    second = llm_in(tmp_path / "kv", model, adapters={"b": one, "c": two})
    assert served(second, PROMPTS[:1]) == (secret, [NOTHING]), "nobody asked the base model without a key"
    assert served(second, PROMPTS[:1], adapter="b") == (tokens["a"], [of_disk(32)])
    assert served(second, PROMPTS[:1], adapter="c") == (tokens["b"], [of_disk(32)])
    assert served(second, PROMPTS[:1], extra_key=("secret", 2)) == (secret, [NOTHING])
    assert served(second, PROMPTS[:1], extra_key=("secret", 1)) == (secret, [of_disk(32)])


# --- what is not surely the same is not used --------------------------------------------------------------------------


@pytest.mark.cpu
def test_with_anything_changed_nothing_is_found(tmp_path: Path, model: LoadedModel, wanted: Tokens) -> None:
    folder = tmp_path / "kv"
    llm_in(folder, model).shutdown()
    first = llm_in(folder, model)
    served(first)
    first.shutdown()

    def loaded(name: str, seed: int = 3, dtype: Any = None, **changes: Any) -> LoadedModel:
        return load_model(save_checkpoint(tmp_path / name, "llama", seed=seed, **{**TINY_MODEL, **changes}), dtype)

    others: dict[str, tuple[Any, ...]] = {
        "page size": (model, None, {"page_size": 4}),
        "storage of K/V": (model, None, {"kv_cache_dtype": "int8"}),
        "a draft model": (model, model, {"drafter": "model"}),
        "attention": (model, None, {"attention_backend": "torch_native"}),
        "weights": (loaded("weights", seed=5), None, {}),
        "rope": (loaded("rope", rope_theta=5000.0), None, {}),
        "dtype": (loaded("dtype", dtype="bfloat16"), None, {}),
    }
    for name, (other, draft, options) in others.items():
        llm = llm_in(folder, other, draft, **options)
        tokens, tiers = served(llm, PROMPTS[:1])
        assert tiers == [NOTHING], name
        if other is model and not options.get("kv_cache_dtype"):
            assert tokens == wanted[:1], name
    assert served(llm_in(folder, model), PROMPTS[:1]) == (wanted[:1], [of_disk(32)]), "and with the same, all"


def test_a_damaged_file_is_a_miss(tmp_path: Path, model: LoadedModel, wanted: Tokens) -> None:
    first = llm_in(tmp_path, model)
    served(first)
    first.shutdown()
    for path in kv_files(tmp_path):
        data = bytearray(path.read_bytes())
        data[-100] ^= 1
        path.write_bytes(data)
    second = llm_in(tmp_path, model)
    assert served(second) == (wanted, [NOTHING] * 3)
    assert second.engine.stats().disk_misses == 3


# --- what is refused --------------------------------------------------------------------------------------------------


def test_files_need_a_folder_and_a_tree(tmp_path: Path, model: LoadedModel) -> None:
    with pytest.raises(ValueError, match="cache_dir='': must be None or a folder"):
        tiny_llm(model, cache_dir="")
    with pytest.raises(ValueError, match="cache_dir_max_bytes=5: must be None without cache_dir"):
        tiny_llm(model, cache_dir_max_bytes=5)
    with pytest.raises(ValueError, match=r"cache_dir=.*: must be None with disable_radix_cache=True"):
        tiny_llm(model, cache_dir=tmp_path, disable_radix_cache=True)
    with pytest.raises(ValueError, match="save_cache: needs cache_dir"):
        tiny_llm(model).save_cache()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cache_dir"):
        tiny_llm(model, cache_dir=tmp_path / "file")
    llm = tiny_llm(model, cache_dir=tmp_path / "kv", max_total_tokens=160)
    assert tier_of(llm.engine).index.size == 160, "host memory as large as the pool"


# --- host memory ------------------------------------------------------------------------------------------------------


def small_llm(model: LoadedModel, **options: Any) -> LLM:
    """Room for one conversation and a half."""
    options = {"max_running_requests": 2, "max_total_tokens": 96, "host_cache_tokens": 1024, **options}
    return tiny_llm(model, max_context_len=64, **options)


def tokens_of(llm: LLM, prompts: Sequence[list[int]] = MANY, **options: Any) -> list[list[int]]:
    return [output.token_ids for output in llm.generate(prompts, PARAMS, use_tqdm=False, **options)]


def without_cache(model: LoadedModel, **options: Any) -> LLM:
    return small_llm(model, host_cache_tokens=None, disable_radix_cache=True, **options)


@pytest.mark.parametrize("kv_cache_dtype", [None, "int8"])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_what_comes_back_has_its_bits_and_the_tokens_are_those_without_a_cache(
    model: LoadedModel, page_size: int, kv_cache_dtype: str | None
) -> None:
    wanted = tokens_of(without_cache(model, kv_cache_dtype=kv_cache_dtype))
    llm = small_llm(model, page_size=page_size, kv_cache_dtype=kv_cache_dtype)
    bits = SameBits(llm.engine)
    for _ in range(3):
        assert tokens_of(llm) == wanted
        llm.engine.check_integrity()
    stats = llm.engine.stats()
    assert bits.compared == stats.host_fetched_tokens > 100
    assert stats.host_held_tokens <= stats.host_slots == 1024
    assert stats.host_stored_tokens == stats.host_held_tokens, "nothing was stored twice"


def test_outputs_say_where_their_cached_tokens_were(model: LoadedModel) -> None:
    llm = small_llm(model, max_running_requests=1, max_total_tokens=64)
    tier_of(llm.engine)
    first, second = PROMPTS[:2]

    def tiers(prompt: list[int]) -> tuple[int, dict[str, int]]:
        (output,) = llm.generate(prompt, PARAMS, use_tqdm=False)
        assert output.cached_tokens_by_tier == output.outputs[0].cached_tokens_by_tier
        return output.cached_tokens, output.cached_tokens_by_tier

    assert tiers(first) == (0, {"device": 0, "host": 0, "disk": 0})
    assert tiers(first) == (44, {"device": 44, "host": 0, "disk": 0})
    assert tiers(second) == (0, {"device": 0, "host": 0, "disk": 0})
    assert tiers(first) == (32, {"device": 0, "host": 32, "disk": 0})  # whole blocks of 45 tokens
    assert tiers([*first[:40], 9, 9, 9]) == (40, {"device": 40, "host": 0, "disk": 0})


def test_a_prefix_begins_in_the_pool_and_goes_on_in_host_memory(model: LoadedModel) -> None:
    """Even inside of a block."""
    llm = small_llm(model, max_running_requests=1, max_total_tokens=64)
    bits, first = SameBits(llm.engine), PROMPTS[0]
    wanted = tokens_of(without_cache(model), [first])
    assert tokens_of(llm, [first]) == wanted
    llm.engine.radix_cache.match_prefix(first[:21])  # cuts the node there
    llm.engine.radix_cache.evict(1)
    (output,) = llm.generate(first, PARAMS, use_tqdm=False)
    assert (output.token_ids, output.cached_tokens_by_tier) == (wanted[0], {"device": 21, "host": 11, "disk": 0})
    assert bits.compared == 11


def test_adapters_and_keys_have_blocks_of_their_own(model: LoadedModel, tmp_path: Path) -> None:
    folders = {name: save_adapter(tmp_path / name, model.model, seed) for seed, name in enumerate(("one", "two"))}
    names = [None, "one", "two"]
    plain, llm = (make(model, adapters=folders) for make in (without_cache, small_llm))
    tier = tier_of(llm.engine)
    wanted = {name: tokens_of(plain, PROMPTS[:2], adapter=name) for name in names}
    assert wanted["one"] != wanted["two"] != wanted[None]
    for name in names * 2:
        assert tokens_of(llm, PROMPTS[:2], adapter=name) == wanted[name]
    fetched = tier.fetched_tokens
    assert fetched > 100
    held = len(tier.index)
    llm.unload_adapter("one")
    llm.engine.check_integrity()
    assert 0 < len(tier.index) < held, "nobody asks for its K/V any more"
    llm.load_adapter("one", folders["two"])
    assert tokens_of(llm, PROMPTS[:2], adapter="one") == wanted["two"]
    llm.generate(PROMPTS[0], PARAMS, use_tqdm=False, extra_key="secret")
    assert tier.fetched_tokens == fetched, "not even for the same tokens and the same name"


# --- what a feed tells of files ---------------------------------------------------------------------------------------


def blocks_of(prompts: list[list[int]], extra_key: Any = None) -> set[int]:
    """The whole blocks of 44 tokens and 12 generated ones are 48 tokens; those of the prompt alone are 32."""
    return {block for prompt in prompts for block in block_hashes(prompt[:32], 16, extra_key)}


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
    assert (len(reader.mirror.media[DISK]), len(kv_files(tmp_path))) == (9, 3)
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
    assert len(kv_files(tmp_path / "kv")) == 2
    assert len(reader.mirror.media[DISK]) == 3
    assert blocks_of(PROMPTS[1:2], ("secret", b"1")) <= reader.mirror.media[DISK].keys()


# --- flushing ---------------------------------------------------------------------------------------------------------


def test_what_was_flushed_during_a_save_is_not_written_with_others_k_v(tmp_path: Path, model: LoadedModel) -> None:
    """Between two of a save's visits, host memory may be emptied, and its slots given to others."""
    llm = llm_in(tmp_path, model)
    engine, disk, tier = llm.engine, disk_of(llm.engine), tier_of(llm.engine)
    served(llm)
    held = [tuple(tier.index.tokens_of(block)[0].tolist()) for block in tier.index]
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
