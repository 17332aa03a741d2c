"""ModelConfig: what a checkpoint is, validated and frozen."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nanoinfer.device import resolve_dtype
from nanoinfer.errors import UnsupportedModelError

MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for longer contexts; `rope_type` is default, linear or llama3."""

    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """One dense decoder: Llama, Mistral, Qwen2 and Qwen3 differ only in these fields. Sizes in elements."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: RopeScaling
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_windows: tuple[int | None, ...]  # per layer: how far back a token sees, itself included; None = everything
    eos_token_ids: tuple[int, ...]
    dtype: torch.dtype | None  # of the weights; None where the config does not say

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "ModelConfig":
        """Read `config.json` (and the end tokens of `generation_config.json`) from a local checkpoint directory.

        Raises FileNotFoundError without `config.json`, UnsupportedModelError naming what is not supported.
        """
        from huggingface_hub.errors import StrictDataclassError
        from transformers import AutoConfig, GenerationConfig, PretrainedConfig

        path = Path(path)
        if not (path / "config.json").is_file():
            raise FileNotFoundError(f"{path}: no config.json there, so no Hugging Face checkpoint")
        raw, _ = PretrainedConfig.get_config_dict(str(path))
        model_type = MODEL_TYPES[_check_architecture(raw)]
        if raw.get("model_type") != model_type:
            raise UnsupportedModelError(
                f"model_type={raw.get('model_type')!r}: must be {model_type!r} with architecture {raw['architectures'][0]}"
            )
        try:
            hf_config = AutoConfig.from_pretrained(str(path), trust_remote_code=False)
        except (KeyError, StrictDataclassError) as error:  # how transformers says that fields are missing or at odds
            raise UnsupportedModelError(f"{path / 'config.json'}: {error}") from error
        eos = hf_config.eos_token_id
        if (path / "generation_config.json").is_file():
            eos = GenerationConfig.from_pretrained(str(path)).eos_token_id
        return cls.from_hf_config(hf_config, eos)

    @classmethod
    def from_hf_config(cls, hf: Any, eos_token_id: int | list[int] | None = None) -> "ModelConfig":
        """From a `transformers` configuration object; UnsupportedModelError naming what is not supported."""
        architecture = _check_architecture(hf.to_dict())
        _check_supported(hf)
        heads = hf.num_attention_heads
        rope = dict(hf.rope_parameters or {})
        eos = hf.eos_token_id if eos_token_id is None else eos_token_id
        # A key that the family's own code does not read has no effect, so a stray one in a config changes nothing here.
        attention_bias = architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM") and bool(hf.attention_bias)
        return cls(
            architecture=architecture,
            vocab_size=hf.vocab_size,
            hidden_size=hf.hidden_size,
            intermediate_size=hf.intermediate_size,
            num_hidden_layers=hf.num_hidden_layers,
            num_attention_heads=heads,
            num_key_value_heads=hf.num_key_value_heads or heads,
            head_dim=getattr(hf, "head_dim", None) or hf.hidden_size // heads,
            rms_norm_eps=hf.rms_norm_eps,
            max_position_embeddings=hf.max_position_embeddings,
            rope_theta=float(rope.get("rope_theta", 10000.0)),
            rope_scaling=_rope_scaling(rope, hf.max_position_embeddings),
            tie_word_embeddings=bool(hf.tie_word_embeddings),
            qkv_bias=attention_bias or architecture == "Qwen2ForCausalLM",
            o_bias=attention_bias,
            mlp_bias=architecture == "LlamaForCausalLM" and bool(hf.mlp_bias),
            qk_norm=architecture == "Qwen3ForCausalLM",
            sliding_windows=_sliding_windows(architecture, hf),
            eos_token_ids=tuple([eos] if isinstance(eos, int) else eos or ()),
            dtype=resolve_dtype(hf.dtype) if isinstance(hf.dtype, str) else hf.dtype,
        )

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of K and V, over all layers, that one token holds."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * dtype.itemsize


def _check_architecture(config: dict[str, Any]) -> str:
    architectures = config.get("architectures") or [f"model_type {config.get('model_type')}"]
    architecture = architectures[0]
    if architecture not in MODEL_TYPES:
        raise UnsupportedModelError(f"architecture {architecture}: must be one of {', '.join(MODEL_TYPES)}")
    return architecture


def _check_supported(hf: Any) -> None:
    if hf.hidden_act != "silu":
        raise UnsupportedModelError(f"hidden_act={hf.hidden_act!r}: must be 'silu'")
    if getattr(hf, "quantization_config", None):
        raise UnsupportedModelError("quantization_config: quantized checkpoints are not supported; use the original")
    heads, kv_heads = hf.num_attention_heads, hf.num_key_value_heads
    if kv_heads and heads % kv_heads:
        raise UnsupportedModelError(f"num_key_value_heads={kv_heads}: must divide num_attention_heads={heads}")


def _rope_scaling(rope: dict[str, Any], max_position_embeddings: int) -> RopeScaling:
    kind = rope.get("rope_type", "default")
    fields = {
        "default": (),
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    }
    if kind not in fields:
        raise UnsupportedModelError(f"rope_type={kind!r}: must be one of {', '.join(fields)}")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError(f"partial_rotary_factor={rope['partial_rotary_factor']}: must be 1.0")
    rope.setdefault("original_max_position_embeddings", max_position_embeddings)
    missing = [name for name in fields[kind] if name not in rope]
    if missing:
        raise UnsupportedModelError(f"rope_type={kind!r}: {', '.join(missing)} missing from the checkpoint's config")
    scaling = RopeScaling(rope_type=kind, **{name: rope[name] for name in fields[kind]})
    if not scaling.factor >= 1:
        raise UnsupportedModelError(f"rope factor={scaling.factor}: must be at least 1")
    if not 0 < scaling.low_freq_factor < scaling.high_freq_factor:
        raise UnsupportedModelError(
            f"rope high_freq_factor={scaling.high_freq_factor}: must exceed low_freq_factor={scaling.low_freq_factor} > 0"
        )
    return scaling


def _sliding_windows(architecture: str, hf: Any) -> tuple[int | None, ...]:
    """Window per layer. Qwen and newer Mistrals switch it on by layer (`layer_types`), others have one for all; Llama
    has none."""
    if architecture == "LlamaForCausalLM":
        return (None,) * hf.num_hidden_layers
    window = hf.sliding_window
    types = getattr(hf, "layer_types", None) or ["sliding_attention"] * hf.num_hidden_layers
    unknown = set(types) - {"sliding_attention", "full_attention"}
    if unknown:
        raise UnsupportedModelError(f"layer_types: {sorted(unknown)} not supported; must be sliding or full attention")
    return tuple(window if kind == "sliding_attention" else None for kind in types)
