"""Whatever the engine does, a split model gives the tokens of a whole one: all families, kinds of weights and adapters. The
ranks are threads; test_processes.py has processes."""

from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.loader import load_model
from tests.helpers.adapters import save_adapter
from tests.helpers.gguf_files import Kind, write_gguf
from tests.helpers.split_models import (
    PARAMS,
    PROMPTS,
    SIX_HEADS,
    VARIANTS,
    WHOLE,
    Checkpoint,
    assert_same,
    of,
    served,
    split_llm,
)

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
    "int4, several steps, little room": {"quantization": "int4", "num_scheduler_steps": 4, "max_total_tokens": 64},
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


@pytest.mark.parametrize("kind", ["int8", "int4", Kind.Q4_1, Kind.F16], ids=str)
def test_quantized_weights_give_the_bits_of_one_process_in_bfloat16_too(
    kind: str | Kind, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """Also where a GGUF file has them."""
    options: dict[str, Any] = {"kernels": "auto", "attention_backend": "auto"}
    if isinstance(kind, str):
        path = checkpoint("llama", **SIX_HEADS)
        options |= {"dtype": "bfloat16", "quantization": kind}
    else:
        path = write_gguf(checkpoint("llama", **{**SIX_HEADS, "hidden_size": 96}), tmp_path / "model.gguf", kind)
    wanted = served(LLM(path, **options, **WHOLE))
    with split_llm(path, 3, **options, **WHOLE) as llm:
        if llm.engine.stats()["kernels"] != "cpp":
            pytest.skip("only the kernels in C++ promise it")
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


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_split_model_gives_the_tokens_of_a_whole_one(variant: str, checkpoint: Checkpoint) -> None:
    family, changes, size = VARIANTS[variant]
    path = checkpoint(family, **changes)
    wanted = served(LLM(path, **WHOLE))
    with split_llm(path, size, **WHOLE) as llm:
        assert_same(served(llm), wanted)
        assert llm.engine.model_runner.tp_size == size


QUANTIZED = {
    "int8": ["llama-tied-odd-three", "qwen3-replicated", "gemma3", "phi3-odd-replicated"],
    "int4": ["llama-replicated-odd", "qwen2", "gemma3-softcap-untied-odd", "phi3"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantization", "variant", "kernels"),
    [
        *((kind, variant, "auto") for kind, variants in QUANTIZED.items() for variant in variants),
        *((kind, variants[1], "torch") for kind, variants in QUANTIZED.items()),
    ],
)
def test_weights_are_quantized_before_they_are_cut(
    quantization: str, variant: str, kernels: str, checkpoint: Checkpoint
) -> None:
    """Ranks begin in the middle of groups whose weights, or activations, share a scale. In plain torch, the bits of
    a head's attention depend on how many heads there are."""
    family, changes, size = VARIANTS[variant]
    path, options = checkpoint(family, **changes), {**WHOLE, "quantization": quantization, "kernels": kernels}
    wanted = served(LLM(path, **options))
    with split_llm(path, size, **options) as llm:
        assert_same(served(llm), wanted, exactly=llm.engine.stats()["kernels"] == "cpp")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "quantization"),
    [("llama-mqa-biases", "int8"), ("qwen3-replicated", "int4"), ("gemma3", None), ("phi3-odd-replicated", "int8")],
)
def test_adapters_give_the_tokens_of_a_whole_model(
    variant: str, quantization: str | None, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """More adapters than places, so that they replace each other; one has only some projections."""
    family, changes, size = VARIANTS[variant]
    path = checkpoint(family, **changes)
    network = load_model(path, kernels="torch").model
    some = ["qkv_proj" if family == "phi3" else "v_proj", "down_proj"]
    adapters = {
        "small": save_adapter(tmp_path / "small", network, 1, rank=1),
        "large": save_adapter(tmp_path / "large", network, 2, rank=9),
        "some": save_adapter(tmp_path / "some", network, 3, ends=some),
    }
    options = {**WHOLE, "adapters": adapters, "max_adapters_on_device": 2, "quantization": quantization}
    each = ["small", "large", None, "some"]
    whole = LLM(path, **options)
    wanted = served(whole, each)
    assert wanted[0].token_ids != whole.generate(PROMPTS[0], PARAMS[0])[0].token_ids, "adapters change tokens"
    with split_llm(path, size, **options) as llm:
        assert_same(served(llm, each), wanted)
        llm.unload_adapter("small")
        llm.load_adapter("small", adapters["large"])
        again = llm.generate(PROMPTS[3:], PARAMS[3], adapter="small", use_tqdm=False)
        assert_same(again, whole.generate(PROMPTS[3:], PARAMS[3], adapter="large", use_tqdm=False))
