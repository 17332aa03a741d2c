"""Checkpoints that the engine does not implement are refused by what is in their config.json."""

import re
from pathlib import Path

import pytest

from nanoinfer import LLM, UnsupportedModelError
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.llama import LlamaForCausalLM
from nanoinfer.registry import MODEL_FAMILIES
from tests.helpers.checkpoints import FAMILIES, REMOVED, edited, greedy
from tests.helpers.loading import LLAMA3, PROMPT, Checkpoint, Oracle, tokens_of


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, "GPT2LMHeadModel"),
        ({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}, "MixtralForCausalLM"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"architectures": ["NewestForCausalLM"], "model_type": "newest"}, "NewestForCausalLM"),
        (
            {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"},
            "Gemma3ForConditionalGeneration",
        ),
        ({"architectures": REMOVED, "model_type": "gpt2"}, "architectures: missing.*model_type='gpt2'.*phi3"),
        ({"architectures": [], "model_type": REMOVED}, "architectures: missing.*model_type=None"),
    ],
)
def test_an_unsupported_architecture_is_refused_with_what_is_supported(
    changes: dict[str, object], message: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = edited(checkpoint("llama"), tmp_path / "other", **changes)
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        LLM(path)
    assert {"LlamaForCausalLM", "Gemma3ForCausalLM", "Phi3ForCausalLM"} <= set(MODEL_FAMILIES)
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
    with pytest.raises(UnsupportedModelError, match=r"LlamaForCausalLM \(model_type llama\), MyForCausalLM") as caught:
        ModelConfig.from_pretrained(path)
    assert "Qwen2" not in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bidirectional_model_is_refused(family: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """transformers then masks nothing: its numbers would be others than ours."""
    path = edited(checkpoint(family), tmp_path / "bidirectional", is_causal=False)
    with pytest.raises(UnsupportedModelError, match="is_causal=False"):
        LLM(path)


@pytest.mark.parametrize("family", ["mistral", "phi3", "gemma3"])
@pytest.mark.parametrize("window", [0, -1])
def test_a_window_without_tokens_is_refused(family: str, window: int, checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = edited(checkpoint(family), tmp_path / "window", sliding_window=window)
    with pytest.raises(UnsupportedModelError, match=f"sliding_window={window}"):
        LLM(path)


LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
WRONG_YARN: list[tuple[dict[str, object], str]] = [
    ({"factor": 0.5}, r"factor=0\.5"),
    ({"original_max_position_embeddings": -16}, "original_max_position_embeddings=-16"),
    ({"attention_factor": -0.5}, r"attention_factor=-0\.5"),
    ({"beta_fast": 1, "beta_slow": 32}, "beta_fast=1"),
    ({"beta_slow": -1}, "beta_slow=-1 > 0"),
    ({"rope_theta": 1.0}, r"rope_theta=1\.0"),
]
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_parameters": {"rope_theta": 1e4, **LONGROPE}}, "rope_type='longrope'"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "dynamic", "factor": 2.0}}, "rope_type='dynamic'"),
        ({"rope_parameters": REMOVED, "rope_theta": 1e4, "rope_scaling": LONGROPE}, "rope_type='longrope'"),
        ({"rope_parameters": REMOVED, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type='dynamic'"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear"}}, "factor"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "llama3", "factor": 2.0}}, "low_freq_factor"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor=0\.5"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantization_config"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3.*num_attention_heads=4"),
        ({"head_dim": 15}, "even rotary dimension"),
        ({"num_attention_heads": 3, "head_dim": 16}, "number of attention heads"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 0.5}}, r"factor=0\.5"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 0.0}}, r"factor=0\.0"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}},
            r"high_freq_factor=1\.0.*low_freq_factor=1\.0",
        ),
        *(({"rope_parameters": {"rope_theta": 1e4, **YARN, **wrong}}, message) for wrong, message in WRONG_YARN),
        ({"model_type": "mistral"}, "model_type='mistral'"),
        ({"model_type": REMOVED}, "model_type=None"),
    ],
)
def test_what_the_engine_does_not_implement_is_refused_by_name(
    changes: dict[str, object], message: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = edited(checkpoint("llama"), tmp_path / "other", **changes)
    (path / "model.safetensors").unlink()  # said from the configuration alone
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        LLM(path)
    assert str(path) in str(caught.value)


DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ("gemma3", {"hidden_activation": "gelu"}, "hidden_activation='gelu'"),
        ("gemma3", {"sliding_window": None}, "sliding_window=None"),
        ("gemma3", {"layer_types": ["chunked_attention"] + 2 * ["full_attention"]}, "chunked_attention"),
        (
            "gemma3",
            {"rope_parameters": {"full_attention": DEFAULT_ROPE, "sliding_attention": {**DEFAULT_ROPE, **LINEAR}}},
            "rope_type='linear' of sliding_attention",
        ),
        (
            "gemma3",
            {"rope_parameters": {"full_attention": DEFAULT_ROPE, "sliding_attention": {"rope_theta": 1e4, **YARN}}},
            "rope_type='yarn' of sliding_attention",
        ),
        ("phi3", {"rope_parameters": {"rope_theta": 1e4, **LONGROPE}}, "rope_type='longrope'"),
        ("phi3", {"rope_parameters": {**DEFAULT_ROPE, "partial_rotary_factor": 0.75}}, r"partial_rotary_factor=0\.75"),
        ("phi3", {"hidden_act": "relu"}, "hidden_act='relu'"),
    ],
)
def test_what_a_family_does_not_implement_is_refused_by_name(
    family: str, changes: dict[str, object], message: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = edited(checkpoint(family), tmp_path / "other", **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        ModelConfig.from_pretrained(path)


# What checkpoints on the Hub say beside their method.
QUANTIZED: dict[str, dict[str, object]] = {
    "gptq": {"bits": 4, "group_size": 128, "desc_act": True},
    "awq": {"bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
    "bitsandbytes": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "fp8": {"activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]},
    "compressed-tensors": {"format": "float-quantized", "config_groups": {}, "ignore": ["lm_head"]},
    "mxfp4": {"modules_to_not_convert": ["lm_head"]},
}


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        *(
            ({"quantization_config": {"quant_method": method, **said}}, f"quantized with {method}")
            for method, said in QUANTIZED.items()
        ),
        ({"quantization_config": {"bits": 4}}, "quantized with an unknown method"),
        ({"architectures": ["MixtralForCausalLM"], "num_local_experts": 8}, "a mixture of experts"),
        ({"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128}, "a mixture of experts"),
        ({"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}}, "a model with vision"),
        (
            {
                "architectures": ["Llama4ForConditionalGeneration"],
                "vision_config": {},
                "text_config": {"num_local_experts": 16},
            },
            "a mixture of experts and a model with vision",
        ),
    ],
)
def test_a_kind_of_model_that_is_refused_is_named_with_its_folder(
    changes: dict[str, object], kind: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = edited(checkpoint("llama"), tmp_path / "other", **changes)
    with pytest.raises(UnsupportedModelError, match=f"^{re.escape(str(path))}: is {kind}"):
        LLM(path)


@pytest.mark.parametrize(
    ("said", "method"),
    [
        ('{"bits": 4, "group_size": 128, "desc_act": false}', "gptq"),
        ('{"bits": 4, "quant_method": "awq"}', "awq"),
        ("{", "gptq"),
    ],
)
def test_a_quantization_that_only_a_file_beside_the_config_tells_of_is_named_with_its_folder(
    said: str, method: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """AutoGPTQ's quantize_config.json; its config.json has no quantization_config."""
    path = edited(checkpoint("llama"), tmp_path / "gptq")
    (path / "quantize_config.json").write_text(said)
    with pytest.raises(UnsupportedModelError, match=f"^{re.escape(str(path))}: is quantized with {method}"):
        LLM(path)
