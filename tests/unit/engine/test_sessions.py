"""The first engines (seed 004): sessions with K/V of their own, one by one and as a padded batch."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from nanoinfer import LLM, SamplingParams
from nanoinfer.sessions.inference import InferenceEngine, InferenceSession, KVAccount
from nanoinfer.sessions.offline_scheduler import OfflineScheduler
from tests.helpers.checkpoints import greedy

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]

PROMPTS = [[5, 9, 200, 31, 7], [7], [250, 11, 64, 3, 3, 3, 90, 12, 13, 14, 15], [5, 9, 201]]
GREEDY: dict[str, Any] = {"temperature": 0.0, "stop_on_eos": False}


@pytest.fixture(scope="module")
def engine(checkpoint: Checkpoint) -> InferenceEngine:
    return InferenceEngine(checkpoint("llama"))


def prefilled(engine: InferenceEngine, prompt: list[int], max_new_tokens: int = 4, **settings: Any) -> InferenceSession:
    session = InferenceSession(engine, max_new_tokens, **{**GREEDY, **settings})
    session.prefill(prompt)
    return session


def served(engine: InferenceEngine, batched: bool, settings: list[dict[str, Any]]) -> list[list[int]]:
    """The tokens of PROMPTS, of which the last two join after two steps."""
    scheduler = OfflineScheduler(engine, batched)
    for i, (prompt, changes) in enumerate(zip(PROMPTS, settings, strict=True)):
        if i == 2:
            scheduler.step()
            scheduler.step()
        assert scheduler.add_request(prompt, **changes) == i
    while scheduler.has_unfinished():
        scheduler.step()
    return [session.generated_ids for session in scheduler.sessions.values()]


# --- tokens ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [False, True])
def test_sampled_tokens_are_those_of_the_main_engine(batched: bool, checkpoint: Checkpoint) -> None:
    path = checkpoint("llama")
    settings: list[dict[str, Any]] = [
        {"max_new_tokens": 8, "seed": 1, "temperature": 0.8},
        {"max_new_tokens": 5, "seed": 2, "top_k": 7},
        {"max_new_tokens": 9, "seed": 3, "top_p": 0.6, "temperature": 1.3},
        {"max_new_tokens": 7, "temperature": 0.0},
    ]
    llm = LLM(path, max_total_tokens=256)
    outputs = llm.generate(PROMPTS, [SamplingParams(**changes) for changes in settings], use_tqdm=False)
    assert served(InferenceEngine(llm.model), batched, settings) == [output.token_ids for output in outputs]


@pytest.mark.parametrize("use_cache", [True, False])
def test_generate_with_and_without_a_cache_is_the_same(use_cache: bool, checkpoint: Checkpoint, oracle: Oracle) -> None:
    path = checkpoint("llama")
    engine = InferenceEngine(path)
    tokens = engine.generate(PROMPTS[2], 8, use_cache=use_cache, **GREEDY)
    assert tokens == greedy(oracle(path), PROMPTS[2], 8)
    computed = len(PROMPTS[2]) + 7 if use_cache else sum(range(len(PROMPTS[2]), len(PROMPTS[2]) + 8))
    assert (engine.account.forwards, engine.account.tokens_computed) == (8, computed)


def test_generate_without_a_seed_is_repeatable_by_the_engines_seed(checkpoint: Checkpoint) -> None:
    path = checkpoint("llama")
    first, second, other = (InferenceEngine(path, random_seed=seed).generate([1, 2], 20) for seed in (5, 5, 6))
    assert first == second != other


def test_an_end_token_ends_a_session_unless_told_otherwise(engine: InferenceEngine, checkpoint: Checkpoint) -> None:
    model = replace(engine.model, config=replace(engine.model.config, eos_token_ids=(0,)))
    free = engine.generate(PROMPTS[0], 12, **GREEDY)
    end = free[4]
    stopping = InferenceEngine(replace(model, config=replace(model.config, eos_token_ids=(end,))))
    assert stopping.generate(PROMPTS[0], 12, temperature=0.0) == free[: free.index(end) + 1]
    assert stopping.generate(PROMPTS[0], 12, **GREEDY) == free


# --- sessions ----------------------------------------------------------------------------------------------------


def test_a_session_owns_the_kv_of_all_but_its_newest_token(engine: InferenceEngine) -> None:
    config = engine.model.config
    session = prefilled(engine, PROMPTS[0])
    for length in (5, 6, 7):
        assert len(session.kv_cache) == config.num_hidden_layers
        shape = (1, config.num_key_value_heads, length, config.head_dim)
        assert all(tensor.shape == shape for layer in session.kv_cache for tensor in layer)
        assert session.kv_bytes == length * engine.kv_bytes_per_token
        session.step_once()
    assert (session.finished, session.kv_cache, session.kv_bytes) == (True, [], 0)


def test_a_batched_step_gives_every_session_what_it_would_get_alone(engine: InferenceEngine) -> None:
    alone = [prefilled(engine, prompt) for prompt in PROMPTS]
    together = [prefilled(engine, prompt) for prompt in PROMPTS]
    logits = engine.decode_step_sessions(together)
    assert logits.shape == (4, engine.model.config.vocab_size)
    for session, other, row in zip(alone, together, logits, strict=True):
        torch.testing.assert_close(engine.decode_step_sessions([session])[0], row, rtol=1e-4, atol=1e-4)
        for layer, other_layer in zip(session.kv_cache, other.kv_cache, strict=True):
            torch.testing.assert_close(layer, other_layer, rtol=1e-4, atol=1e-4)


def test_a_finished_session_takes_no_more_tokens(engine: InferenceEngine) -> None:
    session = prefilled(engine, [1, 2], max_new_tokens=1)
    assert session.finished
    before = replace(engine.account)
    assert session.step_once() is None
    assert session.apply_batch_logits(torch.zeros(engine.model.config.vocab_size)) is None
    assert len(session.generated_ids) == 1
    assert engine.account == before


def test_settings_may_be_assigned_until_the_prefill(engine: InferenceEngine) -> None:
    session = InferenceSession(engine)
    session.max_new_tokens, session.temperature, session.stop_on_eos = 3, 0.0, False
    session.prefill(PROMPTS[0])
    while not session.finished:
        session.step_once()
    assert session.generated_ids == engine.generate(PROMPTS[0], 3, **GREEDY)


def test_bad_sessions_are_refused_and_nothing_changes(engine: InferenceEngine) -> None:
    good = prefilled(engine, PROMPTS[0])
    before, lengths = replace(engine.account), [layer[0].shape for layer in good.kv_cache]
    with pytest.raises(ValueError, match=r"sessions\[1\]"):
        engine.decode_step_sessions([good, prefilled(InferenceEngine(engine.model), [1], max_new_tokens=1)])
    with pytest.raises(ValueError, match=r"sessions\[1\]"):
        engine.decode_step_sessions([good, InferenceSession(engine)])
    with pytest.raises(ValueError, match="twice"):
        engine.decode_step_sessions([good, good])
    with pytest.raises(ValueError, match="prefill"):
        good.prefill([1])
    with pytest.raises(ValueError, match="prefill"):
        InferenceSession(engine).step_once()
    assert (engine.account, [layer[0].shape for layer in good.kv_cache]) == (before, lengths)


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        ([], {}, "is empty"),
        ([320], {}, "token id 320"),
        ("text", {}, "no tokenizer files"),
        ([1] * 250, {"max_new_tokens": 7}, "max_context_len=256"),
        ([1], {"max_new_tokens": 1.5}, "max_new_tokens=1.5"),
        ([1], {"do_sample": 0}, "do_sample=0"),
        ([1], {"temperature": -1.0}, "temperature=-1.0"),
        ([1], {"top_k": -2}, "top_k=-2"),
    ],
)
def test_a_refused_request_is_named_and_not_added(
    prompt: Any, settings: dict[str, Any], message: str, engine: InferenceEngine
) -> None:
    scheduler = OfflineScheduler(engine)
    before = replace(engine.account)
    with pytest.raises(ValueError, match=message):
        scheduler.add_request(prompt, **settings)
    assert (scheduler.sessions, scheduler.has_unfinished(), engine.account) == ({}, False, before)
    assert scheduler.add_request([1], max_new_tokens=1) == 0


# --- the scheduler -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [False, True])
def test_a_step_tells_one_token_of_each_unfinished_request(batched: bool, engine: InferenceEngine) -> None:
    scheduler = OfflineScheduler(engine, batched)
    assert (scheduler.has_unfinished(), scheduler.step(), scheduler.run()) == (False, {}, {})
    for prompt, n in zip(PROMPTS, (3, 1, 2, 4), strict=True):
        scheduler.add_request(prompt, n, **GREEDY)
    before = replace(engine.account)
    steps = []
    while scheduler.has_unfinished():
        steps.append(scheduler.step())
    assert [sorted(step) for step in steps] == [[0, 2, 3], [0, 3], [3]]
    for request_id, session in scheduler.sessions.items():
        assert session.generated_ids[1:] == [step[request_id] for step in steps if request_id in step]
        assert session.kv_bytes == 0
    cost = engine.account - before
    assert (cost.forwards, cost.tokens_computed) == (3 if batched else 6, 6)


def test_run_gives_prompt_and_output_as_text(story: LLM) -> None:
    scheduler = OfflineScheduler(InferenceEngine(story.model))
    prompts = ["Once upon a time", "One day, a fox"]
    for prompt in prompts:
        scheduler.add_request(prompt, max_new_tokens=12, temperature=0.0)
    outputs = story.generate(prompts, SamplingParams(max_new_tokens=12, temperature=0), use_tqdm=False)
    expected = {i: prompt + output.text for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))}
    assert scheduler.run() == expected
    assert scheduler.run() == expected, "nothing is lost by asking again"


# --- what it costs -----------------------------------------------------------------------------------------------


def test_the_account_of_a_padded_step(engine: InferenceEngine) -> None:
    sessions = [prefilled(engine, [1] * 3), prefilled(engine, [2] * 7)]
    before = replace(engine.account)
    engine.decode_step_sessions(sessions)
    kv = engine.kv_bytes_per_token
    assert engine.account - before == KVAccount(
        forwards=1,
        tokens_computed=2,
        bytes_copied=(3 + 7) * kv + (4 + 8) * kv,  # into the rectangle, and out of it again
        decode_bytes_used=(4 + 8) * kv,
        decode_bytes_padding=(8 - 4) * kv,
    )


@pytest.mark.parametrize(
    ("name", "value"), [("max_new_tokens", 9), ("temperature", 1.0), ("top_k", 3), ("stop_on_eos", True), ("seed", 1)]
)
def test_settings_are_fixed_by_the_prefill(name: str, value: Any, engine: InferenceEngine) -> None:
    session = prefilled(engine, PROMPTS[0])
    before = getattr(session, name)
    with pytest.raises(ValueError, match=f"{name}={value}"):
        setattr(session, name, value)
    assert getattr(session, name) == before


def test_step_count_counts_the_sampled_tokens(engine: InferenceEngine) -> None:
    session = InferenceSession(engine, 3, **GREEDY)
    counts = [session.step_count]
    session.prefill(PROMPTS[0])
    counts.append(session.step_count)
    while not session.finished:
        session.step_once()
        counts.append(session.step_count)
    session.step_once()
    assert [*counts, session.step_count] == [0, 1, 2, 3, 3]


@pytest.mark.parametrize("unlimited", [0, -1])
def test_without_a_limit_a_session_goes_on_to_the_end_of_the_context(unlimited: int, checkpoint: Checkpoint) -> None:
    engine, prompt = (
        InferenceEngine(LLM(checkpoint("llama"), max_context_len=24, max_total_tokens=64).model),
        PROMPTS[0],
    )
    assert engine.generate(prompt, unlimited, **GREEDY) == engine.generate(prompt, 24 - len(prompt), **GREEDY)
    with pytest.raises(ValueError, match="max_context_len=24"):
        engine.generate([1] * 24, unlimited, **GREEDY)


def test_without_sampling_a_session_is_greedy_at_any_temperature(engine: InferenceEngine) -> None:
    settings: dict[str, Any] = {"temperature": 5.0, "top_k": 50, "seed": 1, "stop_on_eos": False}
    assert engine.generate(PROMPTS[0], 8, do_sample=False, **settings) == engine.generate(PROMPTS[0], 8, **GREEDY)
    assert engine.generate(PROMPTS[0], 8, **settings) != engine.generate(PROMPTS[0], 8, **GREEDY)
