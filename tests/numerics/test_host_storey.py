"""Engines with a storey in host memory: the tokens of engines without a cache, and K/V that comes back bit for bit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.loader import LoadedModel
from tests.helpers.adapters import save_adapter
from tests.helpers.engines import finish, step
from tests.helpers.oracles import VOCAB, Oracle, make_model
from tests.helpers.pressure import World
from tests.helpers.storeys import SameBits, storey_of
from tests.helpers.tiny_llm import tiny_llm
from tests.soak.episodes import by_hand

MAX_NEW_TOKENS = 12
STEMS = np.random.default_rng(7).integers(0, VOCAB, size=(4, 44)).tolist()
PROMPTS = [[*stem, i] for i, stem in enumerate(STEMS)] + [[*STEMS[0][:33], 1, 2], STEMS[1][:40]]
PARAMS = SamplingParams(max_new_tokens=MAX_NEW_TOKENS, temperature=0)


def small_llm(model: LoadedModel, **options: Any) -> LLM:
    """Room for one conversation and a half."""
    options = {"max_running_requests": 2, "max_total_tokens": 96, "host_cache_tokens": 1024, **options}
    return tiny_llm(model, max_context_len=64, **options)


def tokens_of(llm: LLM, prompts: Sequence[list[int]] = PROMPTS, **options: Any) -> list[list[int]]:
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
    storey_of(llm.engine)
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
    storey = storey_of(llm.engine)
    wanted = {name: tokens_of(plain, PROMPTS[:2], adapter=name) for name in names}
    assert wanted["one"] != wanted["two"] != wanted[None]
    for name in names * 2:
        assert tokens_of(llm, PROMPTS[:2], adapter=name) == wanted[name]
    fetched = storey.fetched_tokens
    assert fetched > 100
    held = len(storey.index)
    llm.unload_adapter("one")
    llm.engine.check_integrity()
    assert 0 < len(storey.index) < held, "nobody asks for its K/V any more"
    llm.load_adapter("one", folders["two"])
    assert tokens_of(llm, PROMPTS[:2], adapter="one") == wanted["two"]
    llm.generate(PROMPTS[0], PARAMS, use_tqdm=False, extra_key="secret")
    assert storey.fetched_tokens == fetched, "not even for the same tokens and the same name"


def test_retracted_and_paused_requests_come_back_from_host_memory(model: LoadedModel) -> None:
    llm = small_llm(model, max_running_requests=3, max_total_tokens=104, schedule_conservativeness=0.001)
    engine, bits = llm.engine, SameBits(llm.engine)
    wanted = tokens_of(without_cache(model), PROMPTS[:3])
    ids = [engine.add_request(prompt, PARAMS) for prompt in PROMPTS[:3]]
    step(engine)
    engine.pause(ids[0])
    last = finish_all_but(engine, ids[0])
    engine.resume(ids[0])
    last |= finish(engine)
    assert [last[request_id].token_ids for request_id in ids] == wanted
    assert {each for output in last.values() for each in output.cached_tokens_by_tier.values()} == {0}, "at first"
    assert engine.stats().retractions > 0
    assert bits.compared > 0


def finish_all_but(engine: Any, request_id: int) -> dict[int, Any]:
    last: dict[int, Any] = {}
    while any(engine.is_unfinished(other) for other in engine.open_requests.groups if other != request_id):
        last |= step(engine)
    return last


def test_the_draft_models_k_v_comes_back_too(model: LoadedModel) -> None:
    options = {"drafter": "model", "adaptive_drafts": False, "max_running_requests": 1, "max_total_tokens": 64}
    llm = tiny_llm(model, model, max_context_len=64, host_cache_tokens=256, **options)
    storey_of(llm.engine)
    drafter: Any = llm.engine.scheduler.drafters[0]  # type: ignore[attr-defined]
    sizes: list[int] = []
    forward = drafter._runner.forward_batch

    def counted(batch: Any) -> Any:
        sizes.append(len(batch.input_ids))
        return forward(batch)

    drafter._runner.forward_batch = counted
    wanted = tokens_of(without_cache(model), PROMPTS[:2])
    assert [tokens_of(llm, [prompt])[0] for prompt in PROMPTS[:2]] == wanted
    assert max(sizes) >= 45, "the draft model computed the prompts"
    sizes.clear()
    assert [tokens_of(llm, [prompt])[0] for prompt in PROMPTS[:2]] == wanted
    assert max(sizes) <= 45 - 32 + 1, "and now only what is behind whole blocks"


def test_everything_at_once_gives_the_tokens_of_each_request_alone(model: LoadedModel, tmp_path: Path) -> None:
    oracle = Oracle(make_path(tmp_path), by_hand.MAX_NEW_TOKENS)
    sums = dict.fromkeys(("retractions", "host_fetched_tokens", "accepted_tokens"), 0)
    for seed, (page_size, host) in enumerate(((1, 64), (4, 2048), (1, 2048))):
        rng = np.random.default_rng(seed)
        config = {**by_hand.random_config(rng), "max_total_tokens": 96, "page_size": page_size, "max_queue": 6}
        config |= {"host_cache_tokens": host, "disable_radix_cache": False, "chunked_prefill_size": (8, None)[seed % 2]}
        config |= {"drafter": ("ngram", "model"), "num_scheduler_steps": 1, "schedule_conservativeness": 0.001}
        world = World(model, oracle, **config)
        by_hand.run_episode(world, rng, np.array(STEMS), steps=60)
        sums = {name: total + world.engine.stats()[name] for name, total in sums.items()}
    assert all(sums.values()), sums


def make_path(path: Path) -> Path:
    make_model(path / "again")
    return path / "again"
