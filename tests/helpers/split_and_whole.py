"""What a split model and a whole one are asked, and how their answers are compared."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM, RequestOutput, SamplingParams
from tests.helpers.rows import random_tokens

Checkpoint = Callable[..., Path]

WHOLE = {"max_total_tokens": 256}
STEM = random_tokens(18, seed=1)
PROMPTS = [STEM, random_tokens(1, seed=2), STEM + random_tokens(9, seed=3), random_tokens(30, seed=4)]


def of(temperature: float, seed: int | None = None, **fields: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=10, temperature=temperature, seed=seed, ignore_eos=True, **fields)


PARAMS = [of(0, logprobs=3, prompt_logprobs=True), of(0.7, 5), of(1.0, 6, logprobs=0), of(0)]


def served(llm: LLM, adapters: Sequence[str | None] | None = None) -> list[RequestOutput]:
    """The prompts, with an empty tree and with what is in it then."""
    found = []
    for _ in range(2):
        found += llm.generate(PROMPTS, PARAMS, use_tqdm=False, adapter=adapters)
        llm.engine.check_integrity()
    return found


def assert_same(found: Sequence[RequestOutput], wanted: Sequence[RequestOutput], exactly: bool = False) -> None:
    """The same tokens; log-probabilities up to rounding, or `exactly` the same."""
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.cached_tokens == theirs.cached_tokens
        assert (ours.logprobs is None) == (theirs.logprobs is None)
        for one, other in zip(ours.logprobs or (), theirs.logprobs or (), strict=True):
            assert one == (other if exactly else pytest.approx(other, rel=1e-3, abs=1e-3))
        if theirs.prompt_logprobs is not None:
            assert ours.prompt_logprobs is not None
            assert ours.prompt_logprobs[0] is theirs.prompt_logprobs[0] is None
            expected = theirs.prompt_logprobs[1:]
            assert ours.prompt_logprobs[1:] == (expected if exactly else pytest.approx(expected, rel=1e-3, abs=1e-3))


# 323 tokens and an MLP of 97 can be divided by nothing; four ranks and two key/value heads: each head is in two ranks.
ODD = {"vocab_size": 323, "intermediate_size": 97}
SIX_HEADS = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3}
VARIANTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "llama": ("llama", {}, 2),
    "llama-replicated-odd": ("llama", ODD, 4),
    "llama-tied-odd-three": ("llama", {**ODD, **SIX_HEADS, "tie_word_embeddings": True}, 3),
    "llama-mqa-biases": ("llama", {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}, 2),
    "mistral-window": ("mistral", {"sliding_window": 5}, 2),
    "qwen2": ("qwen2", {}, 2),
    "qwen2-tied-replicated": ("qwen2", {"tie_word_embeddings": True}, 4),
    "qwen3-bias": ("qwen3", {"head_dim": 24, "attention_bias": True}, 2),
    "qwen3-replicated": ("qwen3", {"head_dim": 24}, 4),
    "gemma3": ("gemma3", {}, 2),
    "gemma3-softcap-untied-odd": ("gemma3", {**ODD, "final_logit_softcapping": 0.2, "tie_word_embeddings": False}, 4),
    "phi3": ("phi3", {}, 2),
    "phi3-odd-replicated": ("phi3", ODD, 4),
}  # fmt: skip
