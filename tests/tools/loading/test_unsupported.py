"""Checkpoints that the engine does not implement are refused by what is in their config.json."""

import re
from pathlib import Path

import pytest

from nanoinfer import LLM, UnsupportedModelError
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.llama import LlamaForCausalLM
from nanoinfer.registry import MODEL_FAMILIES
from tests.helpers.checkpoints import FAMILIES, REMOVED, edited, greedy
from tests.helpers.families import LLAMA3
from tests.helpers.loading import PROMPT, Checkpoint, Oracle, tokens_of


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, "GPT2LMHeadModel"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"architectures": REMOVED, "model_type": "gpt2"}, "model_type='gpt2'"),
        ({"architectures": [], "model_type": REMOVED}, "model_type=None"),
    ],
)
def test_an_unsupported_architecture_is_refused_with_what_is_supported(
    changes: dict[str, object], message: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = edited(checkpoint("llama"), tmp_path / "other", **changes)
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        LLM(path, model_impl="nanoinfer")
    assert all(architecture in str(caught.value) for architecture in MODEL_FAMILIES)


@pytest.mark.parametrize("unsaid", [REMOVED, [], None])
def test_an_architecture_that_is_not_said_is_the_one_of_the_model_type(
    unsaid: object, checkpoint: Checkpoint, oracle: Oracle, tmp_path: Path
) -> None:
    path = edited(checkpoint("qwen3"), tmp_path / "unsaid", architectures=unsaid)
    assert ModelConfig.from_pretrained(path) == ModelConfig.from_pretrained(checkpoint("qwen3"))
    assert tokens_of(path) == greedy(oracle(path), PROMPT, 6)


def test_an_architecture_is_not_guessed_where_two_families_have_the_model_type(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(MODEL_FAMILIES, "MyForCausalLM", LlamaForCausalLM)
    path = edited(checkpoint("llama"), tmp_path / "unsaid", architectures=REMOVED)
    with pytest.raises(UnsupportedModelError, match="MyForCausalLM"):
        ModelConfig.from_pretrained(path)


def rope(rope_type: str, **more: object) -> dict[str, object]:
    return {"rope_parameters": {"rope_theta": 1e4, "rope_type": rope_type, **more}}


DEFAULT = {"rope_type": "default", "rope_theta": 1e4}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 1e4, **YARN}
LONGROPE = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        *((family, {"is_causal": False}, "is_causal=False") for family in FAMILIES),
        *((family, {"sliding_window": 0}, "sliding_window=0") for family in ("mistral", "phi3", "gemma3")),
        ("llama", rope("longrope", **LONGROPE), "rope_type='longrope'"),
        ("llama", {"rope_parameters": REMOVED, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ("llama", rope("linear"), "factor"),
        ("llama", rope("llama3", factor=2.0), "low_freq_factor"),
        ("llama", rope("llama3", **{**LLAMA3, "high_freq_factor": 1.0}), r"high_freq_factor=1\.0"),
        ("llama", rope("yarn", **{**YARN, "factor": 0.5}), r"factor=0\.5"),
        ("llama", rope("yarn", **YARN, beta_fast=1, beta_slow=32), "beta_fast=1"),
        ("llama", {"partial_rotary_factor": 0.5}, r"partial_rotary_factor=0\.5"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ("llama", {"head_dim": 15}, "rotary dimension"),
        ("llama", {"model_type": "mistral"}, "model_type='mistral'"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ("gemma3", {"sliding_window": None}, "sliding_window=None"),
        ("gemma3", {"layer_types": ["chunked_attention"] + 2 * ["full_attention"]}, "chunked_attention"),
        (
            "gemma3",
            {"rope_parameters": {"full_attention": DEFAULT, "sliding_attention": YARN_ROPE}},
            "sliding_attention",
        ),
        ("phi3", rope("default", partial_rotary_factor=0.75), r"partial_rotary_factor=0\.75"),
        ("qwen3_moe", {"num_experts_per_tok": 7}, r"num_experts_per_tok=7: must be in 1\.\.num_experts=6"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step=0"),
        ("mixtral", {"num_experts_per_tok": 0}, "num_experts_per_tok=0"),
        ("olmoe", {"clip_qkv": 8.0}, r"clip_qkv=8\.0"),
    ],
)
def test_what_a_family_does_not_implement_is_refused_by_name(
    family: str, changes: dict[str, object], message: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """It would compute other numbers than transformers. (Whose own network computes what it can: model_impl="auto".)"""
    path = edited(checkpoint(family), tmp_path / "other", **changes)
    (path / "model.safetensors").unlink()  # said from the configuration alone
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        LLM(path, model_impl="nanoinfer")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["DeepseekV3ForCausalLM"], "n_routed_experts": 256}, "architecture DeepseekV3ForCausalLM"),
        ({"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}}, "is a model with vision"),
    ],
)
def test_why_a_model_is_refused_is_said_behind_its_folder(
    changes: dict[str, object], reason: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """That it has experts is no reason."""
    path = edited(checkpoint("llama"), tmp_path / "other", **changes)
    with pytest.raises(UnsupportedModelError, match=f"^{re.escape(str(path))}: {reason}"):
        LLM(path)
