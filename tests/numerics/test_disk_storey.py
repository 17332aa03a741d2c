"""Engines with files below host memory: what one process leaves there, the next one continues, with the same tokens."""

import errno
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.loader import LoadedModel, load_model
from tests.helpers.adapters import save_adapter
from tests.helpers.checkpoints import save_checkpoint
from tests.helpers.fetches import Fetches
from tests.helpers.kv_files import kv_files
from tests.helpers.oracles import TINY_MODEL, VOCAB
from tests.helpers.storeys import SameBits, disk_of, storey_of, written
from tests.helpers.tiny_llm import tiny_llm

PROMPTS = [[*stem, i] for i, stem in enumerate(np.random.default_rng(7).integers(0, VOCAB, size=(3, 44)).tolist())]
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


def test_what_comes_back_from_files_has_the_bits_it_had(tmp_path: Path, model: LoadedModel, wanted: Tokens) -> None:
    """Through all storeys in one process: a pool for one request, host memory for two, files for the others."""
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


def test_save_cache_writes_what_is_cached_and_goes_on(tmp_path: Path, model: LoadedModel, wanted: Tokens) -> None:
    first = llm_in(tmp_path, model)
    assert served(first)[0] == wanted
    assert first.save_cache() == 0
    files = {file: file.stat().st_ino for file in kv_files(tmp_path)}
    assert first.save_cache() == 0
    assert {file: file.stat().st_ino for file in kv_files(tmp_path)} == files, "nothing was left to write"
    second = llm_in(tmp_path, model)
    assert served(second) == (wanted, [of_disk(32)] * 3), "while the first one still runs"
    assert served(first)[0] == wanted


def test_files_that_take_nothing_more_end_a_save_with_what_was_lost(tmp_path: Path, model: LoadedModel) -> None:
    llm = llm_in(tmp_path, model)
    served(llm)
    disk_of(llm.engine).close()
    assert llm.save_cache() == 3 * 48
    llm.shutdown()
    assert kv_files(tmp_path) == []


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
    command = [
        sys.executable,
        "-m",
        "nanoinfer",
        "generate",
        prompt,
        "--cache-dir",
        str(tmp_path / "kv"),
        "--temperature=0",
    ]
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
    assert storey_of(llm.engine).index.size == 160, "host memory as large as the pool"
