"""export_prefix and import_prefix: one engine computes a prompt, another continues it, with the tokens of one engine."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.errors import AdapterError, EngineClosedError
from nanoinfer.model.loader import LoadedModel, load_model
from tests.helpers.adapters import save_adapter
from tests.helpers.checkpoints import save_checkpoint
from tests.helpers.engines import finish, make_engine, step
from tests.helpers.oracles import TINY_MODEL, VOCAB
from tests.helpers.tiers import tier_of
from tests.helpers.tiny_llm import tiny_llm

ROOT = Path(__file__).parent.parent.parent
PROMPT: list[int] = np.random.default_rng(7).integers(0, VOCAB, size=45).tolist()
ONE_TOKEN = SamplingParams(max_new_tokens=1, temperature=0)
PARAMS = SamplingParams(max_new_tokens=12, temperature=0)


def small_llm(model: LoadedModel, draft_model: LoadedModel | None = None, **options: Any) -> LLM:
    options = {"max_running_requests": 2, "max_total_tokens": 128, **options}
    return tiny_llm(model, draft_model, max_context_len=64, **options)


def prefilled(llm: LLM, **options: Any) -> bytes:
    """What an engine exports that has computed the prompt, and one token."""
    llm.generate(PROMPT, ONE_TOKEN, use_tqdm=False, **options)
    return llm.export_prefix(PROMPT, **options)


def served(llm: LLM, **options: Any) -> tuple[list[int], int]:
    """The prompt's continuation, and how many of its tokens were cached."""
    (output,) = llm.generate(PROMPT, PARAMS, use_tqdm=False, **options)
    llm.engine.check_integrity()
    return output.token_ids, output.cached_tokens


def bits(llm: LLM) -> list[bytes]:
    """Of the prompt's K/V in the pool, a token after the other."""
    slots = llm.engine.radix_cache.match_prefix(PROMPT).indices.numpy()
    buffers = llm.engine.cache.token_to_kv_pool.kv_storage.slot_buffers()
    rows = np.concatenate([buffer[slots].flatten(1).view(torch.uint8).cpu().numpy() for buffer in buffers], axis=1)
    return [row.tobytes() for row in rows]


# --- one prefills, another decodes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_cache_dtype", [None, "int8"])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_what_is_imported_has_the_bits_and_the_tokens_of_one_engine(
    model: LoadedModel, page_size: int, kv_cache_dtype: str | None
) -> None:
    options = {"page_size": page_size, "kv_cache_dtype": kv_cache_dtype}
    wanted, _ = served(small_llm(model, disable_radix_cache=True, **options))
    first, second = (small_llm(model, **options) for _ in range(2))
    data = prefilled(first)
    whole_pages = 45 - 45 % page_size
    assert second.import_prefix(data) == whole_pages
    assert bits(second) == bits(first)
    assert len(bits(second)) == whole_pages
    second.engine.check_integrity()
    assert served(second) == (wanted, min(whole_pages, 44))
    assert second.import_prefix(bytearray(data)) == whole_pages, "what is there already stays"
    assert second.engine.radix_cache.total_size() == (45 + 11) // page_size * page_size


@pytest.mark.slow
def test_one_process_computes_the_prompt_and_another_continues_it(tmp_path: Path) -> None:
    text, file = "Once upon a time, there was a little fox named Ruby. She lived near the river.", tmp_path / "prefix"
    code = """import sys, nanoinfer
llm = nanoinfer.LLM("story")
tokens = llm.tokenizer.encode(sys.argv[1])
llm.generate(tokens, {"max_new_tokens": 1, "temperature": 0})
open(sys.argv[2], "wb").write(llm.export_prefix(tokens))"""
    env = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    subprocess.run([sys.executable, "-c", code, text, str(file)], env=env, cwd=ROOT, check=True)
    wanted = LLM("story", disable_radix_cache=True).generate(text, PARAMS)[0]
    llm = LLM("story")
    assert llm.import_prefix(file.read_bytes()) == wanted.prompt_tokens
    (output,) = llm.generate(text, PARAMS)
    assert (output.token_ids, output.cached_tokens) == (wanted.token_ids, wanted.prompt_tokens - 1)


@pytest.mark.cpu
def test_what_has_left_for_host_memory_is_exported_too(model: LoadedModel) -> None:
    first = small_llm(model, host_cache_tokens=256)
    tier_of(first.engine)
    prefilled(first)
    in_pool = bits(first)
    first.engine.radix_cache.evict(128)
    second = small_llm(model)
    assert second.import_prefix(first.export_prefix(PROMPT)) == 32, "whole blocks"
    assert bits(second) == in_pool[:32]
    first.generate(PROMPT[:20], ONE_TOKEN, use_tqdm=False)
    third = small_llm(model)
    assert third.import_prefix(first.export_prefix(PROMPT)) == 32, "20 from the pool, the rest from inside a block on"
    assert bits(third) == in_pool[:32]


def test_an_adapter_is_known_by_its_content_and_keys_stay_apart(tmp_path: Path, model: LoadedModel) -> None:
    one, two = (save_adapter(tmp_path / name, model.model, seed) for seed, name in enumerate(("one", "two")))
    first, second = small_llm(model, adapters={"a": one}), small_llm(model, adapters={"b": two, "c": one})
    wanted, _ = served(first, adapter="a")
    data = first.export_prefix(PROMPT, adapter="a")
    for wrong in ({}, {"adapter": "b"}, {"adapter": "c", "extra_key": "secret"}):
        with pytest.raises(ValueError, match="another adapter or another extra_key"):
            second.import_prefix(data, **wrong)
    assert second.import_prefix(data, adapter="c") == 45
    assert served(second, adapter="c") == (wanted, 44)
    assert served(second)[1] == served(second, adapter="b")[1] == 0
    secret = prefilled(first, extra_key=("secret", 1))
    assert second.import_prefix(secret, extra_key=("secret", 1)) == 45
    assert served(second, extra_key=("secret", 1))[1] == 44
    with pytest.raises(AdapterError, match="no such adapter"):
        first.export_prefix(PROMPT, adapter="z")


def test_the_draft_models_k_v_is_moved_too(model: LoadedModel) -> None:
    wanted, _ = served(small_llm(model))
    first, second = (small_llm(model, model, drafter="model", adaptive_drafts=False) for _ in range(2))
    served(first)
    assert second.import_prefix(first.export_prefix(PROMPT)) == 45
    sizes: list[int] = []
    runner = second.engine.scheduler.drafters[0]._runner  # type: ignore[attr-defined]
    forward = runner.forward_batch
    runner.forward_batch = lambda batch: sizes.append(len(batch.input_ids)) or forward(batch)
    assert served(second) == (wanted, 44)
    assert max(sizes) < 10, "the draft model has not computed the prompt"


# --- room -------------------------------------------------------------------------------------------------------------


def test_it_takes_the_place_of_what_nobody_uses_and_no_more(model: LoadedModel) -> None:
    data = prefilled(small_llm(model))
    llm = small_llm(model, max_total_tokens=64)
    engine = llm.engine
    llm.generate([5] * 40, PARAMS, use_tqdm=False)
    assert llm.import_prefix(data) == 45, "the other prompt has left"
    engine.check_integrity()
    engine.flush_cache()
    engine.add_request([6] * 40, PARAMS)
    step(engine)
    held = engine.cache.obtainable_size()
    assert 0 < held < 45
    assert llm.import_prefix(data) == held
    engine.check_integrity()
    (output,) = finish(engine).values()
    assert output.token_ids == small_llm(model).generate([6] * 40, PARAMS, use_tqdm=False)[0].token_ids
    assert served(llm)[0] == served(small_llm(model))[0]


def test_a_prefix_that_is_there_does_not_make_room_for_its_own_end(model: LoadedModel) -> None:
    first, second = small_llm(model), small_llm(model, max_total_tokens=40)
    data = prefilled(first)
    assert second.import_prefix(first.export_prefix(PROMPT[:20])) == 20
    assert second.import_prefix(data) == 40
    assert bits(second) == bits(first)[:40]
    second.engine.check_integrity()


def test_nothing_cached_is_no_bytes(model: LoadedModel) -> None:
    first, second = small_llm(model, page_size=16), small_llm(model, page_size=16)
    assert first.export_prefix(PROMPT) == b""
    first.generate(PROMPT[:10], ONE_TOKEN, use_tqdm=False)
    assert first.export_prefix(PROMPT[:10]) == b"", "less than a page"
    assert second.import_prefix(b"") == 0


# --- what is refused --------------------------------------------------------------------------------------------------


def test_an_engine_that_differs_says_in_what(tmp_path: Path, model: LoadedModel) -> None:
    """Each thing in which it can: tests/unit/model/test_fingerprint.py."""
    data = prefilled(small_llm(model, page_size=4))
    other = load_model(save_checkpoint(tmp_path / "weights", "llama", seed=5, **TINY_MODEL))
    for field, llm in (("page_size", small_llm(model, page_size=16)), ("weights", small_llm(other, page_size=4))):
        with pytest.raises(ValueError, match=rf"in {field} \([^,]*, here [^,]*\)$"):
            llm.import_prefix(data)
        assert llm.engine.radix_cache.total_size() == 0


def test_damaged_bytes_change_nothing(model: LoadedModel) -> None:
    data, llm = prefilled(small_llm(model)), small_llm(model)
    for at in (0, 3, 8, 40, len(data) // 2, len(data) - 100, len(data) - 1):
        altered = bytearray(data)
        altered[at] ^= 1
        with pytest.raises(ValueError, match="data: "):
            llm.import_prefix(altered)
    for part in (data[:7], data[:100], data[:-1], data + b"\0"):
        with pytest.raises(ValueError, match="data"):
            llm.import_prefix(part)
    assert llm.engine.radix_cache.total_size() == 0
    assert llm.import_prefix(data) == 45


def test_what_cannot_move_is_named(model: LoadedModel) -> None:
    llm = small_llm(model)
    for tokens, key, field in (("text", None, "token_ids"), (PROMPT, 1.5, "extra_key")):
        with pytest.raises(ValueError, match=field):
            llm.export_prefix(tokens, extra_key=key)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="extra_key"):
        llm.import_prefix(b"", extra_key=1.5)
    with pytest.raises(ValueError, match="disable_radix_cache"):
        small_llm(model, disable_radix_cache=True).export_prefix(PROMPT)
    with pytest.raises(ValueError, match="import_prefix"):
        make_engine().import_prefix(b"")
    llm = small_llm(model)
    data = prefilled(llm)
    llm.shutdown()
    for call in (lambda: llm.import_prefix(data), lambda: llm.export_prefix(PROMPT)):
        with pytest.raises(EngineClosedError, match="it has no K/V and takes none"):
            call()
    assert llm.import_prefix(b"") == 0, "there is nothing to do"
