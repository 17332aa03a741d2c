"""A model that is split over ranks gives the tokens of one that is not: all families, kinds of weights and adapters.

The ranks are threads here; test_processes.py has processes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM
from nanoinfer.model.loader import load_model
from tests.helpers.adapters import save_adapter
from tests.helpers.split_and_whole import PARAMS, PROMPTS, VARIANTS, WHOLE, Checkpoint, assert_same, served
from tests.helpers.split_models import split_llm


def crossed(variants: Sequence[str], others: Sequence[str | None]) -> list[Any]:
    """Each variant with each of the others. In the quick ring each has one partner; the slow ring has the rest."""
    return [
        pytest.param(variant, other, marks=() if i % len(others) == j else pytest.mark.slow)
        for i, variant in enumerate(variants)
        for j, other in enumerate(others)
    ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_split_model_gives_the_tokens_of_a_whole_one(variant: str, checkpoint: Checkpoint) -> None:
    family, changes, size = VARIANTS[variant]
    path = checkpoint(family, **changes)
    wanted = served(LLM(path, **WHOLE))
    with split_llm(path, size, **WHOLE) as llm:
        assert_same(served(llm), wanted)
        assert llm.engine.model_runner.tp_size == size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "kernels"),
    crossed(["llama-tied-odd-three", "qwen3-replicated", "gemma3", "phi3-odd-replicated"], ["torch", "auto"]),
)
def test_int8_weights_give_the_same_bits(variant: str, kernels: str, checkpoint: Checkpoint) -> None:
    """Scales are those of the whole rows, and sums of whole numbers are exact, however they are split."""
    family, changes, size = VARIANTS[variant]
    path, options = checkpoint(family, **changes), {**WHOLE, "quantization": "int8", "kernels": kernels}
    wanted = served(LLM(path, **options))
    with split_llm(path, size, **options) as llm:
        assert_same(served(llm), wanted, exactly=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "kernels"),
    crossed(["llama-replicated-odd", "qwen2", "gemma3-softcap-untied-odd", "phi3"], ["torch", "auto"]),
)
def test_int4_weights_are_quantized_before_they_are_cut(variant: str, kernels: str, checkpoint: Checkpoint) -> None:
    """Groups of 32 inputs share a scale, and ranks begin in the middle of groups."""
    family, changes, size = VARIANTS[variant]
    path, options = checkpoint(family, **changes), {**WHOLE, "quantization": "int4", "kernels": kernels}
    wanted = served(LLM(path, **options))
    with split_llm(path, size, **options) as llm:
        assert_same(served(llm), wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "quantization"),
    crossed(["llama-mqa-biases", "qwen3-replicated", "gemma3", "phi3-odd-replicated"], [None, "int8", "int4"]),
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
