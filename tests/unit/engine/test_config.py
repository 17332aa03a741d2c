"""Options of LLM, refused by name and early; and ModelConfig: what a checkpoint's configuration means."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from nanoinfer import LLM, UnsupportedModelError
from nanoinfer.device import memory_for_kv, resolve_device
from nanoinfer.model.config import ModelConfig, RopeScaling
from tests.helpers.checkpoints import FAMILIES, TINY, tiny_config

Checkpoint = Callable[..., Path]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_running_requests": 0}, "max_running_requests=0"),
        ({"max_total_tokens": 100, "page_size": 16}, "max_total_tokens=100.*page_size=16"),
        ({"page_size": 1.5}, "page_size=1.5"),
        ({"host_cache_tokens": 0}, "host_cache_tokens=0"),
        ({"host_cache_tokens": 64, "disable_radix_cache": True}, "host_cache_tokens=64"),
        ({"schedule_policy": "sjf"}, "schedule_policy='sjf'.*lpm"),
        ({"eviction_policy": "mru"}, "eviction_policy='mru'.*lru"),
        ({"attention_backend": "flash"}, "attention_backend='flash'.*torch_native"),
        ({"quantization": "awq"}, "quantization='awq'"),
        ({"kv_cache_dtype": "fp3"}, "kv_cache_dtype='fp3'"),
        ({"kernels": "fast"}, "kernels='fast'"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"max_tokens": 5}, "max_tokens"),
    ],
)
def test_a_wrong_option_is_refused_by_name_before_the_model_is_looked_for(options: dict[str, Any], named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        LLM("no/such/model/anywhere", **options)


@pytest.mark.parametrize("options", [{"max_context_len": 257}, {"dtype": "int8"}, {"dtype": torch.int64}])
def test_what_depends_on_the_model_is_refused_before_its_weights_are_read(
    options: dict[str, Any], checkpoint: Checkpoint, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint("llama") / "config.json").read_bytes())
    with pytest.raises(ValueError, match=f"{next(iter(options))}="):
        LLM(tmp_path, **options)
    with pytest.raises(FileNotFoundError, match="safetensors"):
        LLM(tmp_path)


# --- ModelConfig ---------------------------------------------------------------------------------------------------


def config_of(family: str, **changes: object) -> ModelConfig:
    """From a transformers configuration that was never on disk."""
    return ModelConfig.from_hf_config(tiny_config(family, architectures=[f"{family.title()}ForCausalLM"], **changes))


def test_sizes_are_those_of_the_checkpoint(checkpoint: Checkpoint) -> None:
    config = ModelConfig.from_pretrained(checkpoint("qwen3", head_dim=24))
    for field, value in TINY.items():
        if hasattr(config, field):
            assert getattr(config, field) == value, field
    assert (config.architecture, config.head_dim, config.eos_token_ids) == ("Qwen3ForCausalLM", 24, (2,))
    assert config.dtype == torch.float32


@pytest.mark.parametrize(
    ("family", "changes", "windows"),
    [
        ("llama", {}, (None, None, None)),
        ("mistral", {"sliding_window": None}, (None, None, None)),
        ("mistral", {"sliding_window": 6}, (6, 6, 6)),
        ("qwen2", {"sliding_window": 6}, (None, None, None)),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2}, (None, None, 6)),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0}, (6, 6, 6)),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 3}, (None, None, None)),
        ("gemma3", {"sliding_window": 6}, (6, None, 6)),
        ("gemma3", {"sliding_window": 6, "layer_types": None, "sliding_window_pattern": 3}, (6, 6, None)),
        ("phi3", {}, (None, None, None)),
        ("phi3", {"sliding_window": 6}, (6, 6, 6)),
    ],
)
def test_windows_are_given_by_layer(
    family: str, changes: dict[str, object], windows: tuple[int | None, ...], checkpoint: Checkpoint
) -> None:
    assert config_of(family, **changes).sliding_windows == windows
    assert ModelConfig.from_pretrained(checkpoint(family, **changes)).sliding_windows == windows


@pytest.mark.parametrize("family", FAMILIES)
def test_absent_sizes_are_derived(family: str) -> None:
    if family in ("llama", "qwen2", "phi3"):  # the others' configuration classes refuse None
        assert config_of(family, num_key_value_heads=None).num_key_value_heads == 4
    if family not in ("qwen3", "gemma3"):  # whose configuration classes have a head_dim
        assert config_of(family).head_dim == 64 // 4
    assert config_of(family, head_dim=10).head_dim == 10


def test_rope_scaling_keeps_the_fields_of_its_type() -> None:
    assert config_of("llama").rope_scaling == RopeScaling()
    linear = config_of("mistral", rope_parameters={"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0})
    assert (linear.rope_theta, linear.rope_scaling) == (1e6, RopeScaling("linear", factor=4.0))
    fields = {"factor": 32.0, "low_freq_factor": 1.5, "high_freq_factor": 3.0, "original_max_position_embeddings": 64}
    llama3 = config_of("qwen2", rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **fields})
    assert llama3.rope_scaling == RopeScaling("llama3", **fields)
    yarn = {"factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 16, "attention_factor": 1.5}
    qwen3 = config_of("qwen3", rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, **yarn})
    assert qwen3.rope_scaling == RopeScaling("yarn", **yarn)
    assert qwen3.max_position_embeddings == 8 * 64


def test_gemma_has_a_softcap_of_logits_only_where_its_config_says_so() -> None:
    assert config_of("gemma3", final_logit_softcapping=30.0).logit_softcap == 30.0
    assert config_of("gemma3", attn_logit_softcapping=50.0).attention_softcap is None, "as in transformers"


def test_an_unsupported_configuration_object_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"GPT2LMHeadModel.*LlamaForCausalLM"):
        ModelConfig.from_hf_config(transformers.GPT2Config(architectures=["GPT2LMHeadModel"]))
    with pytest.raises(UnsupportedModelError, match="hidden_act='relu'"):
        config_of("qwen2", hidden_act="relu")
    with pytest.raises(UnsupportedModelError, match="chunked_attention"):
        config_of("qwen2", layer_types=["chunked_attention", "full_attention", "full_attention"])


def test_a_directory_without_config_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        ModelConfig.from_pretrained(tmp_path)


def test_sizes_not_given_follow_the_model_and_the_memory(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint("llama")
    llm = LLM(path, max_running_requests=3)
    assert (llm.config.max_context_len, llm.config.max_total_tokens) == (256, 3 * 256)
    llm = LLM(path, max_running_requests=3, max_context_len=10, page_size=16)
    assert (llm.config.max_context_len, llm.config.max_total_tokens) == (10, 16)
    kv_bytes = llm.model.config.kv_bytes_per_token(torch.float32)
    monkeypatch.setattr("nanoinfer.llm.memory_for_kv", lambda device, share: 100 * kv_bytes)
    assert LLM(path).config.max_total_tokens == 100
    assert LLM(path, page_size=16).config.max_total_tokens == 96
    assert LLM(path, max_total_tokens=200).config.max_total_tokens == 200, "asked for is asked for"


@pytest.mark.parametrize("device", ["meta", "xpu", "gpu", "", "cpu:x", None, 1.5])
def test_a_device_that_is_none_is_refused_by_name(device: object) -> None:
    with pytest.raises(ValueError, match="device="):
        resolve_device(device)  # type: ignore[arg-type]


def test_a_device_that_is_not_there_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("nanoinfer.device._npu_available", lambda: False)
    with pytest.raises(ValueError, match="device='cuda'"):
        resolve_device("cuda")
    with pytest.raises(ValueError, match="device='npu'"):
        resolve_device("npu")
    assert resolve_device("auto") == torch.device("cpu")
    assert resolve_device(torch.device("cpu")) == torch.device("cpu")
    assert 2**26 < memory_for_kv(torch.device("cpu")) < 2**50
