"""Whatever the engine does, a split model gives the tokens of a whole one. The ranks are threads."""

from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from tests.helpers.split_and_whole import PROMPTS, SIX_HEADS, WHOLE, Checkpoint, assert_same, of, served
from tests.helpers.split_models import split_llm

INT8 = {"quantization": "int8"}
OPTIONS: dict[str, dict[str, Any]] = {
    "int8 K/V": {"kv_cache_dtype": "int8"},
    "plain torch": {"kernels": "torch", "attention_backend": "torch_native"},
    "n-gram drafts": {"drafter": "ngram", "adaptive_drafts": False},
    "tree drafts": {"drafter": "tree", "adaptive_drafts": False},
    "several steps": {"num_scheduler_steps": 4},
    "no tree": {"disable_radix_cache": True},
    "small chunks, pages": {"chunked_prefill_size": 8, "page_size": 4},
    "little room": {"max_total_tokens": 64, "max_running_requests": 3},
    "captured where possible": {"capture": "auto", "kernels": "auto", "attention_backend": "auto"},
    "int8, int8 K/V, drafts": {**INT8, "kv_cache_dtype": "int8", "drafter": "ngram", "adaptive_drafts": False},
    "int8, int8 K/V, several steps": {**INT8, "kv_cache_dtype": "int8", "num_scheduler_steps": 4},
    "int4, int8 K/V, tree drafts": {
        "quantization": "int4",
        "kv_cache_dtype": "int8",
        "drafter": "tree",
        "adaptive_drafts": False,
    },
    "int4, several steps, little room": {
        "quantization": "int4",
        "num_scheduler_steps": 4,
        "max_total_tokens": 64,
        "max_running_requests": 3,
    },
}


@pytest.mark.parametrize("option", OPTIONS)
def test_whatever_the_engine_does_the_tokens_stay(option: str, checkpoint: Checkpoint) -> None:
    path, options = checkpoint("qwen3", head_dim=24), {**WHOLE, **OPTIONS[option]}
    whole = LLM(path, **options)
    wanted = served(whole)
    with split_llm(path, 2, **options) as llm:
        assert_same(served(llm), wanted)
        for count in ("retractions", "drafted_tokens", "accepted_tokens", "evicted_tokens"):
            assert llm.engine.stats()[count] == whole.engine.stats()[count], count
        assert llm.engine.stats()["capture"] == "no (the model is split over 2 processes)"


def test_a_draft_model_is_not_split(checkpoint: Checkpoint) -> None:
    path, drafter = checkpoint("llama"), checkpoint("llama", num_hidden_layers=1)
    options = {**WHOLE, "drafter": "model", "draft_model": drafter, "adaptive_drafts": False}
    wanted = served(LLM(path, **options))
    with split_llm(path, 2, **options) as llm:
        assert_same(served(llm), wanted)
        assert llm.engine.stats()["drafted_tokens"] > 0


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_gets_the_same_bits_in_any_company(dtype: str, quantization: str | None, checkpoint: Checkpoint) -> None:
    """Three ranks: where sums of three numbers are made in an order that depends on the batch, the bits do, too."""
    path = checkpoint("llama", **SIX_HEADS)
    options = {"kernels": "auto", "attention_backend": "auto", "disable_radix_cache": True, "dtype": dtype}
    with split_llm(path, 3, quantization=quantization, **options, **WHOLE) as llm:
        if llm.engine.stats()["kernels"] != "cpp":
            pytest.skip("only the kernels in C++ promise it")
        params = of(0, logprobs=3)
        alone = [llm.generate(prompt, params)[0] for prompt in PROMPTS]
        assert_same(llm.generate(PROMPTS, params, use_tqdm=False), alone, exactly=True)


def test_each_rank_has_its_share_of_weights_and_kv(checkpoint: Checkpoint) -> None:
    path = checkpoint("llama")
    whole = LLM(path, **WHOLE).model
    with split_llm(path, 2, **WHOLE) as llm:
        model = llm.model
        assert model.kv_bytes_per_token() == whole.kv_bytes_per_token() / 2
        norms = sum(p.numel() for p in whole.model.parameters() if p.ndim == 1)
        assert model.model.num_parameters - norms == (whole.model.num_parameters - norms) / 2
        assert model.config.num_attention_heads == 2
        assert model.config.vocab_size == whole.config.vocab_size


def test_int8_weights_give_the_bits_of_one_process_in_bfloat16_too(checkpoint: Checkpoint) -> None:
    path = checkpoint("llama", **SIX_HEADS)
    options = {**WHOLE, "dtype": "bfloat16", "quantization": "int8", "kernels": "auto", "attention_backend": "auto"}
    wanted = served(LLM(path, **options))
    with split_llm(path, 3, **options) as llm:
        assert_same(served(llm), wanted, exactly=True)


def test_grammars_with_drafts_of_their_own_and_a_draft_model() -> None:
    """The bundled model, which has a tokenizer; its draft model is not split."""
    options = {"drafter": ("grammar", "model"), "adaptive_drafts": False, **WHOLE}
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    params = [SamplingParams(max_new_tokens=24, temperature=0, json_schema=schema), of(0.8, 3), of(0)]
    whole = LLM("story", **options)
    wanted = whole.generate(["A user:", "Once", "The fox"], params, use_tqdm=False)
    assert wanted[0].accepted_tokens > 0
    with split_llm("story", 2, **options) as llm:
        assert_same(llm.generate(["A user:", "Once", "The fox"], params, use_tqdm=False), wanted)
        assert llm.engine.stats()["accepted_tokens"] == whole.engine.stats()["accepted_tokens"]


def test_bfloat16_stays_close(checkpoint: Checkpoint) -> None:
    path = checkpoint("llama")
    options = {**WHOLE, "dtype": "bfloat16"}
    params = SamplingParams(max_new_tokens=1, temperature=0, prompt_logprobs=True)
    wanted = LLM(path, **options).generate(PROMPTS[3], params)[0].prompt_logprobs
    assert wanted is not None
    with split_llm(path, 2, **options) as llm:
        found = llm.generate(PROMPTS[3], params)[0].prompt_logprobs
    assert found is not None
    assert found[1:] == pytest.approx(wanted[1:], rel=0.05, abs=0.3)
