"""EngineConfig, ModelConfig and the arguments of LLM: what they hold, and that a wrong value is refused by name, early."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from nanoinfer import LLM, UnsupportedModelError
from nanoinfer.config import EngineConfig
from nanoinfer.device import memory_for_kv, resolve_device, resolve_dtype
from nanoinfer.model.config import ModelConfig, RopeScaling
from tests.helpers.checkpoints import FAMILIES, TINY, tiny_config

Checkpoint = Callable[..., Path]
SIZES = {"max_running_requests": 4, "max_total_tokens": 64, "max_context_len": 32}


# --- EngineConfig --------------------------------------------------------------------------------------------------


def test_an_engine_config_may_be_as_small_as_it_gets() -> None:
    config = EngineConfig(
        max_running_requests=1, max_total_tokens=1, max_context_len=1, max_prefill_tokens=1, policy_window=1
    )
    assert config.page_size == 1
    assert config.schedule_policy == "lpm"
    assert config.attention_backend == "auto"
    assert config.disable_radix_cache is False


@pytest.mark.parametrize(
    "field",
    ["max_running_requests", "max_total_tokens", "max_context_len", "page_size", "max_prefill_tokens", "policy_window"],
)
@pytest.mark.parametrize("value", [0, -1, 1.0, True, "8", None, float("nan")])
def test_a_size_must_be_a_positive_integer(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field}=.*at least 1"):
        EngineConfig(**{**SIZES, field: value})


@pytest.mark.parametrize(("total", "page_size"), [(64, 3), (64, 128), (17, 16)])
def test_the_pool_must_be_whole_pages(total: int, page_size: int) -> None:
    with pytest.raises(ValueError, match=f"max_total_tokens={total}.*page_size={page_size}"):
        EngineConfig(**{**SIZES, "max_total_tokens": total}, page_size=page_size)
    assert EngineConfig(**{**SIZES, "max_total_tokens": 2 * page_size}, page_size=page_size).page_size == page_size


@pytest.mark.parametrize(
    ("field", "choice"),
    [("schedule_policy", "dfs-weight"), ("eviction_policy", "lfu"), ("attention_backend", "torch_native")],
)
@pytest.mark.parametrize("value", ["best", "", None, ["lpm"]])
def test_a_name_that_is_unknown_is_refused_with_the_choices(field: str, choice: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field}=.*must be one of .*{choice}"):
        EngineConfig(**SIZES, **{field: value})
    assert getattr(EngineConfig(**SIZES, **{field: choice}), field) == choice


@pytest.mark.parametrize("seed", [-1, 0.5, "0", True])
def test_a_random_seed_must_be_none_or_not_negative(seed: object) -> None:
    with pytest.raises(ValueError, match="random_seed="):
        EngineConfig(**SIZES, random_seed=seed)  # type: ignore[arg-type]
    assert EngineConfig(**SIZES, random_seed=0).random_seed == 0


@pytest.mark.parametrize("value", ["no", 0, None])
def test_whether_the_cache_is_off_must_be_a_bool(value: object) -> None:
    with pytest.raises(ValueError, match="disable_radix_cache="):
        EngineConfig(**SIZES, disable_radix_cache=value)  # type: ignore[arg-type]


def test_configs_are_frozen(checkpoint: Checkpoint) -> None:
    for config, field in (
        (EngineConfig(**SIZES), "page_size"),
        (ModelConfig.from_pretrained(checkpoint("llama")), "vocab_size"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(config, field, 2)


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
    ("family", "changes", "qkv", "o", "mlp", "norm"),
    [
        ("llama", {}, False, False, False, False),
        ("llama", {"attention_bias": True}, True, True, False, False),
        ("llama", {"mlp_bias": True}, False, False, True, False),
        ("mistral", {}, False, False, False, False),
        ("qwen2", {}, True, False, False, False),
        ("qwen3", {}, False, False, False, True),
        ("qwen3", {"attention_bias": True}, True, True, False, True),
        ("gemma3", {}, False, False, False, True),
        ("gemma3", {"attention_bias": True}, True, True, False, True),
        ("phi3", {}, False, False, False, False),
    ],
)
def test_biases_and_norms_follow_the_family(
    family: str, changes: dict[str, object], qkv: bool, o: bool, mlp: bool, norm: bool
) -> None:
    config = config_of(family, **changes)
    assert (config.qkv_bias, config.o_bias, config.mlp_bias, config.qk_norm) == (qkv, o, mlp, norm)


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
    fields = {
        "factor": 32.0,
        "low_freq_factor": 1.5,
        "high_freq_factor": 3.0,
        "original_max_position_embeddings": 64,
    }
    llama3 = config_of("qwen2", rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **fields})
    assert llama3.rope_scaling == RopeScaling("llama3", **fields)
    yarn = {"factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 16, "attention_factor": 1.5}
    qwen3 = config_of("qwen3", rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, **yarn})
    assert qwen3.rope_scaling == RopeScaling("yarn", **yarn)
    assert qwen3.max_position_embeddings == 8 * 64


@pytest.mark.parametrize("family", FAMILIES)
def test_what_only_gemma_has_is_neutral_elsewhere(family: str) -> None:
    config = config_of(family)
    scales = (config.embedding_scale, config.attention_scale, config.norm_offset, config.local_rope_theta)
    assert scales == ((8.0, 24**-0.5, 1.0, 10_000.0) if family == "gemma3" else (1.0, None, 0.0, None))
    assert (config.attention_softcap, config.logit_softcap) == (None, None)
    assert config.activation == ("gelu_tanh_and_mul" if family == "gemma3" else "silu_and_mul")


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


def test_kv_bytes_count_keys_and_values_of_all_layers() -> None:
    config = config_of("qwen3", head_dim=24)
    assert config.kv_bytes_per_token(torch.float32) == 3 * (2 + 2) * 24 * 4
    assert config.kv_bytes_per_token(torch.bfloat16) == 3 * (2 + 2) * 24 * 2


# --- arguments of LLM ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page_size": 0}, "page_size=0"),
        ({"page_size": 1.5}, r"page_size=1\.5"),
        ({"page_size": 16, "max_total_tokens": 100}, "max_total_tokens=100.*page_size=16"),
        ({"max_total_tokens": 0}, "max_total_tokens=0"),
        ({"max_total_tokens": -16}, "max_total_tokens=-16"),
        ({"max_running_requests": 0}, "max_running_requests=0"),
        ({"max_context_len": 0}, "max_context_len=0"),
        ({"max_prefill_tokens": 0}, "max_prefill_tokens=0"),
        ({"schedule_policy": "sjf"}, "schedule_policy='sjf'.*lpm, fcfs, random, dfs-weight"),
        ({"eviction_policy": "mru"}, "eviction_policy='mru'.*lru"),
        ({"attention_backend": "flash"}, "attention_backend='flash'.*torch_native"),
        ({"disable_radix_cache": "yes"}, "disable_radix_cache='yes'"),
        ({"random_seed": -1}, "random_seed=-1"),
        ({"quantization": "awq"}, "quantization='awq': must be one of None, int4, int8; quantized checkpoints"),
        ({"dtype": "fp4"}, "dtype='fp4': must be one of auto, float32"),
        ({"quantization": ["int8"]}, "quantization=.*must be one of None"),
        ({"device": "tpu"}, "device='tpu'.*cpu, cuda or npu"),
    ],
)
def test_a_wrong_option_is_refused_before_the_model_is_looked_for(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLM("no/such/model/anywhere", **options)  # type: ignore[arg-type]


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="max_tokens"):
        LLM("no/such/model/anywhere", max_tokens=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_context_len": 257}, r"max_context_len=257: must be in 1\.\.256"),
        ({"dtype": "int8"}, "dtype='int8'.*float32, bfloat16, float16"),
        ({"dtype": torch.int64}, r"dtype=torch\.int64"),
        ({"dtype": 16}, "dtype=16"),
    ],
)
def test_what_depends_on_the_model_is_refused_before_its_weights_are_read(
    options: dict[str, object], message: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint("llama") / "config.json").read_bytes())
    with pytest.raises(ValueError, match=message):
        LLM(tmp_path, **options)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="safetensors"):
        LLM(tmp_path)


def test_sizes_not_given_follow_the_model_and_the_memory(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint("llama")
    llm = LLM(path, max_running_requests=3)
    assert (llm.config.max_context_len, llm.config.max_total_tokens) == (256, 3 * 256)
    llm = LLM(path, max_running_requests=3, max_context_len=10, page_size=16)
    assert (llm.config.max_context_len, llm.config.max_total_tokens) == (10, 16)
    kv_bytes = llm.model.config.kv_bytes_per_token(torch.float32)
    monkeypatch.setattr("nanoinfer.frontends.llm.memory_for_kv", lambda device, share: 100 * kv_bytes)
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


@pytest.mark.parametrize(
    ("name", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16), (torch.float16, torch.float16)]
)
def test_a_dtype_is_given_as_name_or_as_itself(name: str | torch.dtype, dtype: torch.dtype) -> None:
    assert resolve_dtype(name) == dtype
