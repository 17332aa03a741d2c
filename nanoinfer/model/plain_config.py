"""Reads an ordinary config.json as it stands, in no time. Only to import what transformers reads it with takes a second.

Nothing is filled in that transformers would fill in, so its defaults are not repeated here. A file is left to transformers
if it does not say something that its family reads, or says anything unusual: an unknown key, another type of value, a
scaled rope, windows in some layers, an invalid size. Families that are not in MUST_SAY always are.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nanoinfer.model.families import find_family
from nanoinfer.requests.tokenizer_files import read_object

NONE = type(None)
SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings"),
)
# Every key that an ordinary file may have, and the types of its value.
ORDINARY: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(SIZES, (int,)),
    **dict.fromkeys(["architectures", "layer_types"], (list,)),
    **dict.fromkeys(["model_type", "dtype", "torch_dtype", "hidden_act", "transformers_version"], (str,)),
    **dict.fromkeys(["tie_word_embeddings", "attention_bias", "mlp_bias"], (bool,)),
    **dict.fromkeys(["use_sliding_window", "use_cache"], (bool,)),
    **dict.fromkeys(["rms_norm_eps", "initializer_range"], (float,)),
    **dict.fromkeys(["rope_theta", "attention_dropout", "resid_pdrop", "embd_pdrop"], (int, float)),
    **dict.fromkeys(["bos_token_id", "pad_token_id", "sliding_window"], (int, NONE)),
    **dict.fromkeys(["max_window_layers", "original_max_position_embeddings", "pretraining_tp", "head_dim"], (int,)),
    "eos_token_id": (int, list, NONE),
    "rope_parameters": (dict,),
    "rope_scaling": (NONE,),
}
# What the file of any family must say, and per architecture what it must say beside that.
ALL_MUST_SAY = {*SIZES, "rms_norm_eps", "tie_word_embeddings", "eos_token_id", "hidden_act"}
MUST_SAY = {
    "LlamaForCausalLM": {"attention_bias", "mlp_bias"},
    "MistralForCausalLM": {"sliding_window"},
    "Qwen2ForCausalLM": {"use_sliding_window"},
    "Qwen3ForCausalLM": {"use_sliding_window", "attention_bias", "head_dim"},
    "Phi3ForCausalLM": {"sliding_window"},
}
DTYPES = ("float32", "bfloat16", "float16")


class PlainConfig(SimpleNamespace):
    """What the families in MUST_SAY read of a `transformers` configuration object."""

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


def read_plain_config(path: Path) -> PlainConfig | None:
    """The configuration in the file `path`; None if it must be left to transformers."""
    raw = read_object(path)
    if raw is None or any(type(value) not in ORDINARY.get(key, ()) for key, value in raw.items()):
        return None
    architecture = str((raw.get("architectures") or [None])[0])
    if architecture not in MUST_SAY or not ALL_MUST_SAY | MUST_SAY[architecture] <= raw.keys():
        return None
    family, rope, full = find_family(architecture), _rope(raw), ["full_attention"] * raw["num_hidden_layers"]
    head_dim, rest = divmod(raw["hidden_size"], max(raw["num_attention_heads"], 1))
    head_dim = raw.get("head_dim", head_dim)
    dtypes = [raw[key] for key in ("dtype", "torch_dtype") if key in raw]
    if (
        not family.__module__.startswith("nanoinfer.")  # one from outside may read other keys
        or raw.get("model_type") != family.model_type
        or rope is None
        or rest
        or head_dim % 2
        or min(head_dim, *(raw[size] for size in SIZES)) < 1
        or not is_end_token(raw["eos_token_id"])
        or raw.get("layer_types", full) != full
        or ("use_sliding_window" in MUST_SAY[architecture] and raw["use_sliding_window"])
        or len(dtypes) > 1
        or not {*dtypes} <= {*DTYPES}
    ):
        return None
    windows = {} if "sliding_window" in MUST_SAY[architecture] else {"layer_types": full}
    return PlainConfig(**{**raw, **windows, "rope_parameters": rope, "dtype": dtypes[0] if dtypes else None})


def is_end_token(value: object) -> bool:
    """Whether `eos_token_id` is what it can be: a token, a list of tokens, or None."""
    return type(value) in (int, NONE) or (isinstance(value, list) and all(type(token) is int for token in value))


def _rope(raw: dict[str, Any]) -> dict[str, Any] | None:
    """`rope_parameters` as files have it since transformers 5, or made from their older `rope_theta`; None if there are
    both or neither, or if the rope is scaled."""
    if ("rope_parameters" in raw) == ("rope_theta" in raw):
        return None
    rope = raw.get("rope_parameters") or {"rope_theta": raw.get("rope_theta"), "rope_type": "default"}
    unscaled = {"rope_type": "default", "partial_rotary_factor": 1.0}
    ordinary = {**unscaled, **rope} == {**unscaled, "rope_theta": rope.get("rope_theta")} and "rope_type" in rope
    return rope if ordinary and type(rope.get("rope_theta")) in (int, float) else None
