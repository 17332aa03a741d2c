"""ModelConfig: the description of a checkpoint, validated and frozen."""

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import torch

from nanoinfer.device import resolve_dtype
from nanoinfer.errors import UnsupportedModelError
from nanoinfer.model.families import find_family, infer_architecture
from nanoinfer.model.other_formats import unsupported_kind
from nanoinfer.model.plain_config import PlainConfig, is_end_token, read_plain_config
from nanoinfer.model.quantized_checkpoint import checkpoint_format
from nanoinfer.model.rope import RopeScaling, read_rope_scaling
from nanoinfer.registry import MODEL_FAMILIES
from nanoinfer.requests.gguf_header import SUFFIX
from nanoinfer.requests.tokenizer_files import read_object

# transformers' name of an activation → the operation of Kernels that applies it between the MLP's matrix products.
ACTIVATIONS = {"silu": "silu_and_mul", "gelu_pytorch_tanh": "gelu_tanh_and_mul"}
C = TypeVar("C", bound="ModelConfig")


@dataclass(frozen=True)
class ModelConfig:
    """One decoder. Families differ in these fields; some also put their layers together differently. A family that needs
    more fields has a subclass with them, as frozen as this one. Sizes are in elements."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int  # with yarn: at least the length to which yarn stretches the original context
    rope_theta: float
    rope_scaling: RopeScaling
    tie_word_embeddings: bool
    sliding_windows: tuple[int | None, ...]  # per layer: how many tokens a token sees, itself included; None = all
    eos_token_ids: tuple[int, ...]
    dtype: torch.dtype | None  # of the weights; None if the config does not say
    # The rest is for some families only.
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    activation: str = "silu_and_mul"  # an operation of Kernels
    local_rope_theta: float | None = None  # for layers with a sliding window, if they have their own rotary tables
    embedding_scale: float = 1.0  # multiplies the embeddings
    attention_scale: float | None = None  # multiplies the scores; None: head_dim ** -0.5
    attention_softcap: float | None = None  # c: scores become c * tanh(score / c)
    logit_softcap: float | None = None  # the same for logits
    logit_scale: float = 1.0  # multiplies the logits, before their softcap
    norm_offset: float = 0.0  # added to the norms' weights: 1.0 if the checkpoint stores weight - 1

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "ModelConfig":
        """Read `config.json` (and the end tokens of `generation_config.json`) from a local checkpoint directory, or what a
        GGUF file says.

        Raises FileNotFoundError without `config.json`, UnsupportedModelError naming the folder and what is not supported.
        """
        path = Path(path)
        if path.suffix == SUFFIX:
            from nanoinfer.model.gguf_config import read_gguf_config

            try:
                return cls.from_hf_config(read_gguf_config(path))
            except UnsupportedModelError as error:
                raise UnsupportedModelError(f"{path}: {error}") from error
        if not (path / "config.json").is_file():
            raise FileNotFoundError(
                f"{path}: no config.json there, so this is not a Hugging Face checkpoint; a GGUF file is given as FILE.gguf"
            )
        try:
            config = cls.from_hf_config(read_plain_config(path / "config.json") or _read_any_config(path))
            checkpoint_format(path)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{path}: {unsupported_kind(path / 'config.json')}{error}") from error
        return with_end_tokens(config, path)

    @classmethod
    def from_hf_config(cls, hf: Any) -> "ModelConfig":
        """Read a `transformers` configuration object, as its family does. UnsupportedModelError naming what is not
        supported."""
        if not isinstance(hf, PlainConfig):  # transformers does this when it builds a model
            hf.standardize_rope_params()
        config: ModelConfig = find_family(_architecture(hf.to_dict())).read_config(hf)
        return config

    @classmethod
    def of_decoder(cls, hf: Any, rope_parameters: dict[str, Any] | None = None, **fields: Any) -> Self:
        """For a family's `read_config`: read what all families have in common, and add this family's `fields`, those of a
        subclass too.

        A key that the family's code in transformers does not read has no effect there, so it must have none here. That is
        why each family itself reads what not all of them have. `rope_parameters`: given if they are not
        `hf.rope_parameters`. `activation` is read from `hf.hidden_act` unless `fields` has it.
        """
        if getattr(hf, "is_causal", None) is False:
            raise UnsupportedModelError("is_causal=False: must be True, the engine's masks are causal")
        heads, kv_heads = hf.num_attention_heads, hf.num_key_value_heads or hf.num_attention_heads
        if heads % kv_heads:
            raise UnsupportedModelError(f"num_key_value_heads={kv_heads}: must divide num_attention_heads={heads}")
        rope = dict(rope_parameters or hf.rope_parameters or {})
        # Even if each type of layer has its own rope parameters, transformers reads this one beside the types.
        rope["truncate"] = (getattr(hf, "rope_parameters", None) or {}).get("truncate", True)
        scaling = read_rope_scaling(rope, hf.max_position_embeddings)
        common = {
            "architecture": _architecture(hf.to_dict()),
            "vocab_size": hf.vocab_size,
            "hidden_size": hf.hidden_size,
            "intermediate_size": hf.intermediate_size,
            "num_hidden_layers": hf.num_hidden_layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": getattr(hf, "head_dim", None) or hf.hidden_size // heads,
            "rms_norm_eps": hf.rms_norm_eps,
            "max_position_embeddings": scaling.context_len(hf.max_position_embeddings),
            "rope_theta": float(rope.get("rope_theta", 10000.0)),
            "rope_scaling": scaling,
            "tie_word_embeddings": bool(hf.tie_word_embeddings),
            "sliding_windows": (None,) * hf.num_hidden_layers,
            "eos_token_ids": end_tokens(hf.eos_token_id),
            "dtype": resolve_dtype(hf.dtype) if isinstance(hf.dtype, str) else hf.dtype,
        }
        if "activation" not in fields:
            fields["activation"] = read_activation(hf)
        config = cls(**{**common, **fields})
        for window in {*config.sliding_windows} - {None}:
            if not isinstance(window, int) or window < 1:
                raise UnsupportedModelError(f"sliding_window={window}: must be at least 1, or null")
        return config

    def facts(self) -> dict[str, Any]:
        """What is known of the model, by field; `dtype` is the file's, and may not be the one that is served."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "dtype"}

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """How many bytes the K and V of one token take up, over all layers."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * dtype.itemsize


def read_activation(hf: Any, field: str = "hidden_act") -> str:
    """ModelConfig's `activation` from the `field` of a `transformers` configuration."""
    name = getattr(hf, field)
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(f"{field}={name!r}: must be one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def read_sliding_windows(hf: Any) -> tuple[int | None, ...]:
    """ModelConfig's `sliding_windows`, for families that have them: in the layers that `layer_types` names, else in all."""
    types = getattr(hf, "layer_types", None) or ["sliding_attention"] * hf.num_hidden_layers
    unknown = set(types) - {"sliding_attention", "full_attention"}
    if unknown:
        raise UnsupportedModelError(f"layer_types: {sorted(unknown)} not supported; must be sliding or full attention")
    return tuple(hf.sliding_window if kind == "sliding_attention" else None for kind in types)


def _read_any_config(path: Path) -> Any:
    """What transformers makes of a checkpoint's config.json. UnsupportedModelError if it refuses it."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, PretrainedConfig

    raw, _ = PretrainedConfig.get_config_dict(str(path))
    architecture = _architecture(raw)
    model_type = find_family(architecture).model_type
    if raw.get("model_type") != model_type:
        raise UnsupportedModelError(
            f"model_type={raw.get('model_type')!r}: must be {model_type!r} with architecture {architecture}"
        )
    try:
        return AutoConfig.from_pretrained(str(path), trust_remote_code=False)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, StrictDataclassError) as error:
        # These are what transformers raises for a config that it cannot read.
        raise UnsupportedModelError(f"config.json: {type(error).__name__}: {error}") from error


def with_end_tokens(config: C, path: Path) -> C:
    """`config` with the end tokens that the checkpoint's generation_config.json names, if it names any."""
    named = _generation_end_tokens(path)
    return config if named is None else replace(config, eos_token_ids=end_tokens(named))


def _generation_end_tokens(path: Path) -> int | list[int] | None:
    """The end tokens in a checkpoint's generation_config.json; None if it names none, or is not there."""
    file = path / "generation_config.json"
    if not file.is_file():
        return None
    raw = read_object(file)
    if raw is not None and is_end_token(eos := raw.get("eos_token_id")):
        return eos
    from transformers import GenerationConfig  # it says what is wrong with the file

    return GenerationConfig.from_pretrained(str(path)).eos_token_id


def _architecture(config: dict[str, Any]) -> str:
    """A base model (LlamaModel) is served as its family's model with a head."""
    named: str = (config.get("architectures") or [infer_architecture(config.get("model_type"))])[0]
    with_head = re.sub(r"(Text)?Model$", "ForCausalLM", named)
    return with_head if with_head in MODEL_FAMILIES else named


def end_tokens(eos: int | list[int] | None) -> tuple[int, ...]:
    return tuple([eos] if isinstance(eos, int) else eos or ())
