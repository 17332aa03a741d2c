"""Every supported model family against transformers: logits of single passes, and log-probabilities."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.loader import load_model
from tests.helpers.checkpoints import FAMILIES, greedy
from tests.helpers.families import VARIANTS
from tests.helpers.oracles import TINY_MODEL, PlainLlama
from tests.helpers.rows import (
    HandWrittenRows,
    all_logits,
    assert_close,
    compare_all_passes,
    logprob_of_each_token,
    random_tokens,
)

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]


# --- single passes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "page_size"),
    [
        *((variant, 4) for variant in VARIANTS),
        *((variant, size) for variant in ("llama", "qwen2-window-tied", "gemma3", "phi3") for size in (1, 16)),
    ],
)
def test_prefill_extend_and_decode_give_the_logits_of_transformers(
    variant: str, page_size: int, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    family, changes = VARIANTS[variant]
    path = checkpoint(family, **changes)
    compare_all_passes(load_model(path), oracle(path), page_size=page_size)


@pytest.mark.parametrize(
    "variant",
    ["llama-mqa-biases", "mistral-window", "qwen2", "qwen3", "gemma3", "phi3", "qwen2-moe-window-all-experts"],
)
def test_bfloat16_stays_close_to_transformers_in_bfloat16(variant: str, checkpoint: Checkpoint) -> None:
    family, changes = VARIANTS[variant]
    path = checkpoint(family, **changes, dtype="bfloat16")
    model = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    assert model.dtype == torch.bfloat16
    loaded = load_model(path)
    assert loaded.dtype == torch.bfloat16
    compare_all_passes(loaded, model, page_size=1, relative=0.05)


@pytest.mark.parametrize("family", FAMILIES)
def test_normalized_logprobs_are_means_over_the_tokens_of_the_pass(
    family: str, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    path = checkpoint(family)
    model = oracle(path)
    sequences = [random_tokens(length, seed) for seed, length in enumerate((17, 30, 12), start=50)]
    logprobs = [logprob_of_each_token(model, tokens) for tokens in sequences]
    rows = HandWrittenRows(load_model(path), 3)

    logits, normalized = rows.extend({0: sequences[0][:9], 1: sequences[1], 2: sequences[2][:2]}, True)
    assert normalized.dtype == torch.float32
    expected = [logprobs[0][1:9].mean(), logprobs[1][1:].mean(), logprobs[2][1]]
    assert_close(normalized, torch.stack(expected))
    assert_close(logits[1], all_logits(model, sequences[1])[-1])

    # The first new token's predecessor is not in the pass; where only one token is new there is nothing to take a mean of.
    _, normalized = rows.extend({2: sequences[2][2:], 0: sequences[0][9:10]}, True)
    assert_close(normalized[0], logprobs[2][3:].mean())
    assert normalized[1].isnan()


# --- what a caller sees ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "page_size"), [*zip(FAMILIES, (1, 4) * 3, strict=True), ("llama", 4)])
def test_logprobs_of_prompt_and_output_are_those_of_transformers(
    family: str, page_size: int, checkpoint: Checkpoint, oracle: Oracle
) -> None:
    path = checkpoint(family)
    model = oracle(path)
    llm = LLM(path, max_total_tokens=256, page_size=page_size)
    shared = random_tokens(16, seed=1)
    prompts = [shared + random_tokens(length, seed=2) for length in (3, 9)]
    params = SamplingParams(max_new_tokens=6, temperature=0, ignore_eos=True, logprobs=3, prompt_logprobs=True)
    for turn in range(2):  # with an empty cache, and with everything in the cache already
        for prompt, out in zip(prompts, llm.generate(prompts, params, use_tqdm=False), strict=True):
            assert out.token_ids == greedy(model, prompt, 6), f"turn {turn}"
            assert out.cached_tokens == 0, "every prompt token is computed anew"
            assert out.prompt_logprobs[0] is None
            assert_close(torch.tensor(out.prompt_logprobs[1:]), logprob_of_each_token(model, prompt)[1:])
            table = all_logits(model, prompt + out.token_ids).log_softmax(-1)[len(prompt) - 1 : -1]
            assert len(out.logprobs) == 6
            for token, entry, row in zip(out.token_ids, out.logprobs, table, strict=True):
                assert next(iter(entry)) == token, "the sampled one comes first"
                assert sorted(entry) == sorted(row.topk(3).indices.tolist())
                assert_close(torch.tensor(list(entry.values())), row[list(entry)])
        llm.engine.check_integrity()


@pytest.mark.parametrize(
    "changes",
    [
        {**TINY_MODEL, "seed": 3},
        {**TINY_MODEL, "seed": 4, "num_hidden_layers": 1, "hidden_size": 8},
        {"tie_word_embeddings": True, "head_dim": 24, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
    ],
    ids=["tiny", "draft", "larger"],
)
def test_logits_are_those_of_transformers_at_once_and_one_by_one(
    changes: dict[str, Any],
    checkpoint: Callable[..., Path],
    oracle: Callable[[Path], transformers.PreTrainedModel],
) -> None:
    path = checkpoint("llama", **changes)
    plain, model, rng = PlainLlama(path), oracle(path), np.random.default_rng(0)
    for length in (1, 2, 17, 60):
        ids = rng.integers(0, 32, length).tolist()
        wanted = all_logits(model, ids)
        at_once, _ = plain(ids, None)
        torch.testing.assert_close(torch.from_numpy(at_once).float(), wanted, rtol=1e-4, atol=1e-4)
        start, past = plain(ids[: length // 2 + 1], None)
        rows = [start]
        for token in ids[length // 2 + 1 :]:
            row, past = plain([token], past)
            rows.append(row)
        np.testing.assert_allclose(np.concatenate(rows), at_once, atol=1e-9)
