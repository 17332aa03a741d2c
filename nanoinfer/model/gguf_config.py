"""Reads a GGUF file's metadata as what a config.json would say of the same model."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from nanoinfer.errors import UnsupportedModelError
from nanoinfer.model.families import find_family
from nanoinfer.model.plain_config import PlainConfig
from nanoinfer.model.rope import RopeScaling
from nanoinfer.requests.gguf_header import GGUFHeader, read_header

# llama.cpp's name of an architecture → ours. Mistral's files are those of a Llama, and so are Mixtral's, with experts.
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2moe": "Qwen2MoeForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "olmoe": "OlmoeForCausalLM",
}
MIXTRAL = "MixtralForCausalLM"
SIZES = {
    "hidden_size": "{arch}.embedding_length",
    "intermediate_size": "{arch}.feed_forward_length",
    "num_hidden_layers": "{arch}.block_count",
    "num_attention_heads": "{arch}.attention.head_count",
    "max_position_embeddings": "{arch}.context_length",
    "rms_norm_eps": "{arch}.attention.layer_norm_rms_epsilon",
}
KV_HEADS = "{arch}.attention.head_count_kv"
# Tokens that end a text by their names, as in llama.cpp: a file names one of them only.
ENDS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|end_of_text|>",
)
LARGE_GEMMA = 62  # the layers of Gemma 3 27B, which scales its scores by another number, as llama.cpp knows
EMBEDDING, HEAD, ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"
LLAMA3: dict[str, Any] = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def read_gguf_config(path: Path) -> PlainConfig:
    """The configuration in the file `path`. UnsupportedModelError naming what is not supported, or not there."""
    header = read_header(path)
    arch = header.architecture
    if arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedModelError(f"architecture {arch!r} of a GGUF file: must be one of {known}")
    has_experts = bool(header.get("{arch}.expert_count"))
    architecture = MIXTRAL if arch == "llama" and has_experts else ARCHITECTURES[arch]
    said = {field: _number(header, key) for field, key in SIZES.items()}
    heads, layers, most = said["num_attention_heads"], said["num_hidden_layers"], len(header.tensors)
    if not 1 <= layers <= most:
        raise UnsupportedModelError(f"{arch}.block_count={layers}: must be in 1..{most}, the number of tensors")
    head_dim = header.get("{arch}.attention.key_length") or said["hidden_size"] // heads
    if EMBEDDING not in header.tensors:
        raise UnsupportedModelError(f"{EMBEDDING}: is not in the file, so it has no model")
    said |= {
        "architectures": [architecture],
        "model_type": find_family(architecture).model_type,
        "vocab_size": header.tensors[EMBEDDING].shape[0],
        "num_key_value_heads": _number(header, KV_HEADS) if header.get(KV_HEADS) is not None else heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "tie_word_embeddings": HEAD not in header.tensors,
        "eos_token_id": _end_tokens(header),
        "dtype": None,
        "is_causal": header.get("{arch}.attention.causal", True),
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        "sliding_window": header.get("{arch}.attention.sliding_window") or None,
        "layer_types": ["full_attention"] * layers,
        "rope_parameters": _rope(header, head_dim),
    }
    if has_experts:
        said |= _of_experts(header, said)
    return PlainConfig(**(said | _of_gemma(header, said) if arch == "gemma3" else said))


def _of_experts(header: GGUFHeader, said: dict[str, Any]) -> dict[str, Any]:
    """What a file does not say of its experts is as in llama.cpp."""
    scale = header.get("{arch}.expert_weights_scale", 1.0)
    if scale not in (0.0, 1.0):
        raise UnsupportedModelError(f"{header.architecture}.expert_weights_scale={scale}: must be 1, or missing")
    size = said["intermediate_size"]
    return {
        "num_experts": _number(header, "{arch}.expert_count"),
        "num_experts_per_tok": _number(header, "{arch}.expert_used_count"),
        "moe_intermediate_size": header.get("{arch}.expert_feed_forward_length") or size,
        "shared_expert_intermediate_size": header.get("{arch}.expert_shared_feed_forward_length") or size,
        "norm_topk_prob": header.architecture == "qwen3moe",
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "qkv_bias": said["attention_bias"],
        "clip_qkv": header.get("{arch}.attention.clamp_kqv"),
    }


def _of_gemma(header: GGUFHeader, said: dict[str, Any]) -> dict[str, Any]:
    layers, local = said["num_hidden_layers"], said["sliding_window"] is not None
    pattern = header.get(
        "{arch}.attention.sliding_window_pattern", 6
    )  # one of so many layers sees all, or each layer's
    sliding = [(i + 1) % pattern > 0 for i in range(layers)] if isinstance(pattern, int) else [*map(bool, pattern)]
    kinds = ["sliding_attention" if local and each else "full_attention" for each in sliding]
    own_rope = {"rope_type": "default", "rope_theta": _shortest(header.get("{arch}.rope.freq_base_swa", 10000.0))}
    large = layers == LARGE_GEMMA
    return {
        "layer_types": kinds,
        "rope_parameters": {"full_attention": said["rope_parameters"], "sliding_attention": own_rope},
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": said["hidden_size"] // said["num_attention_heads"] if large else said["head_dim"],
        "final_logit_softcapping": _shortest(header.get("{arch}.final_logit_softcapping")) or None,
        "use_bidirectional_attention": False,
    }


def _rope(header: GGUFHeader, head_dim: int) -> dict[str, Any]:
    if "rope_factors_long.weight" in header.tensors:
        raise UnsupportedModelError("rope_factors_long.weight: must not be there, since longrope is not supported")
    # As in llama.cpp: files of 2023 have the latter, and without a type, a factor is linear.
    factor = header.get("{arch}.rope.scaling.factor") or header.get("{arch}.rope.scale_linear")
    kind = header.get("{arch}.rope.scaling.type", "linear" if factor else "none")
    theta = _shortest(header.get("{arch}.rope.freq_base", 10000.0))
    rope = {
        "rope_type": "default" if kind == "none" else kind,
        "rope_theta": theta,
        "partial_rotary_factor": header.get("{arch}.rope.dimension_count", head_dim) / head_dim,
        "factor": factor,
        "original_max_position_embeddings": header.get("{arch}.rope.scaling.original_context_length"),
        "attention_factor": header.get("{arch}.rope.scaling.yarn_attn_factor"),
        "beta_fast": header.get("{arch}.rope.scaling.yarn_beta_fast"),
        "beta_slow": header.get("{arch}.rope.scaling.yarn_beta_slow"),
    }
    said = {name: _shortest(value) for name, value in rope.items() if value is not None}
    return said if ROPE_FACTORS not in header.tensors else said | _llama3(header, theta)


def _llama3(header: GGUFHeader, theta: float) -> dict[str, Any]:
    """Llama 3's scaling, of which the file has only what each pair of dimensions is divided by. The parameters are those
    of all its checkpoints, with the largest divisor as the factor; UnsupportedModelError if these give other divisors."""
    info = header.tensors[ROPE_FACTORS]
    stored = torch.from_numpy(np.fromfile(header.path, "<f4", info.shape[0], offset=info.start))
    scaling: dict[str, Any] = {"rope_type": "llama3", "factor": float(stored.max()), **LLAMA3}
    unscaled = 1.0 / theta ** (torch.arange(0, 2 * len(stored), 2).float() / (2 * len(stored)))
    if not torch.allclose(unscaled / RopeScaling(**scaling).stretch(unscaled, theta), stored, rtol=1e-4):
        raise UnsupportedModelError(
            f"{ROPE_FACTORS}: must be those of Llama 3, from its original context of 8,192 tokens"
        )
    return scaling


def _end_tokens(header: GGUFHeader) -> list[int]:
    """The tokens that end a text: those that the file names, and those of ENDS."""
    named = [header.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    tokens = header.get("tokenizer.ggml.tokens", [])
    ids = {token: i for i, token in enumerate(tokens) if token in ENDS}
    return [*dict.fromkeys(token for token in (*named, *ids.values()) if token is not None)]


def _number(header: GGUFHeader, key: str) -> Any:
    value = header.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnsupportedModelError(f"{key.format(arch=header.architecture)}={value!r}: must be there, and a number")
    return _shortest(value)


def _shortest(value: Any) -> Any:
    """A float32 as the shortest number that is rounded to it: 1e-05, as a config.json says it, not 9.999999747e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value
