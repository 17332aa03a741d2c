"""Tiny random checkpoints of the text decoders of transformers, and what transformers says of them."""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING

from tests.helpers.families import LLAMA3_ROPE

VOCAB = 320
# What a config gets of this, if it has a field of that name.
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "sliding_window": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "top_k", "moe_k"), 2),
    "moe_intermediate_size": 32,
    **dict.fromkeys(("n_group", "topk_group", "num_experts_shared"), 1),
}
MLA = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "qk_head_dim": 24}
MLA |= {"num_key_value_heads": 4, "v_head_dim": 16, "head_dim": 8, "first_k_dense_replace": 1, "n_shared_experts": 1}
LOCAL, FULL = "sliding_attention", "full_attention"
GPT2 = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 256}
SHARED = {"first_k_dense_replace": 1, "n_shared_experts": 1}
DELTA = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
GEMMA: dict[str, Any] = {"vocab_size_per_layer_input": VOCAB, "num_kv_shared_layers": 2}
GEMMA |= {"hidden_size_per_layer_input": 16, "layer_types": [LOCAL, FULL, LOCAL, FULL]}
GEMMA4 = {**GEMMA, "global_head_dim": 32, "num_global_key_value_heads": 1, "enable_moe_block": False}
GEMMA3N = {**GEMMA, "laurel_rank": 8, "altup_num_inputs": 2}
GEMMA3N |= {"intermediate_size": [96] * 4, "activation_sparsity_pattern": [0.0] * 4}
LLAMA4 = {"intermediate_size_mlp": 96, "intermediate_size": 32, "num_experts_per_tok": 1, "attention_chunk_size": 64}
PARTIAL_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
GRANITE = {"embedding_multiplier": 12.0, "attention_multiplier": 0.1, "residual_multiplier": 0.5, "logits_scaling": 8.0}
# By name: the model type, and what its config has beside COMMON. One of each kind is compared in every run of the tests.
QUICK: dict[str, tuple[str, dict[str, Any]]] = {
    "experts": ("qwen2_moe", {"shared_expert_intermediate_size": 32, "sliding_window": None}),
    "softcaps and windows": ("gemma2", {"query_pre_attn_scalar": 16}),
    "heads by layer, shared K/V": ("gemma4_text", GEMMA4),
    "sinks": ("gpt_oss", {}),
    "MLA": ("deepseek_v3", MLA),
    "parallel blocks": ("cohere", {}),
    "windows that only masks know": ("phimoe", {}),
}
PLAIN = (  # types that need nothing beside COMMON
    "llama mistral ministral ministral3 mixtral qwen2 qwen3 gemma smollm3 phi phi3 granitemoe olmo olmo2 olmo3 olmoe "
    "flex_olmo glm glm4 cohere2 starcoder2 gpt_neox stablelm exaone4 hunyuan_v1_dense ernie4_5 seed_oss apertus arcee "
    "nemotron helium bitnet nanochat minimax_m2 persimmon"
)
SLOW: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in PLAIN.split()},
    **{name: (name, MLA) for name in ("minicpm3", "glm4_moe_lite")},
    **{name: (name, SHARED) for name in ("glm4_moe", "dots1")},
    "two attentions in a layer": ("diffllama", {}),
    "no rotary embeddings": ("gpt2", GPT2),
    "deepseek_v2": ("deepseek_v2", {**MLA, "topk_method": "greedy"}),
    "llama with llama3's rope": ("llama", {"rope_parameters": {**LLAMA3_ROPE, "original_max_position_embeddings": 64}}),
    "qwen3_moe": ("qwen3_moe", {"sliding_window": None}),
    "gemma3": ("gemma3_text", {"query_pre_attn_scalar": 16}),
    "gemma3n": ("gemma3n_text", GEMMA3N),
    "gemma4 without shared K/V": (
        "gemma4_text",
        {**GEMMA4, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
    ),
    "vaultgemma": ("vaultgemma", {"query_pre_attn_scalar": 16}),
    "llama4": ("llama4_text", LLAMA4),
    "phi4-mini": ("phi3", {"rope_parameters": PARTIAL_ROPE}),
    "granite": ("granite", GRANITE),
    "granitemoeshared": ("granitemoeshared", {"shared_intermediate_size": 32}),
    "granite4 without mamba": (
        "granitemoehybrid",
        {
            "layer_types": ["attention"] * 4,
            "num_local_experts": 0,
            "shared_intermediate_size": 64,
            "mamba_n_heads": 8,
            "mamba_d_head": 16,
        },
    ),
    "gpt_bigcode": ("gpt_bigcode", GPT2),
    "opt": ("opt", {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "hunyuan_moe": ("hunyuan_v1_moe", {"moe_topk": 2, "num_experts": 4}),
    "ernie4_5_moe": ("ernie4_5_moe", {"moe_layer_start_index": 1, "moe_num_shared_experts": 1}),
    "jetmoe": ("jetmoe", {"kv_channels": 16}),
    "modernbert-decoder": ("modernbert-decoder", {"local_attention": 16}),
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1}
NO_INTERFACE = "attention interface"
# The third: what the refusal says.
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "qwen3_5": ("qwen3_5_text", DELTA, "state of their own: linear_attention"),
    "granite4": (
        "granitemoehybrid",
        {**MAMBA, "layer_types": ["mamba", "attention"] * 2, "shared_intermediate_size": 32, "mamba_expand": 2},
        "state of their own",
    ),
    "lfm2": ("lfm2", {"layer_types": ["conv", FULL] * 2, "block_ff_dim": 96}, "conv"),
    "mamba2": ("mamba2", {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "expand": 2}, "state of"),
    "jamba": ("jamba", {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False}, "mamba"),
    "recurrent_gemma": (
        "recurrent_gemma",
        {"block_types": ["recurrent", "recurrent", "attention"], "attention_window_size": 8, "lru_width": 64},
        "recurrent",
    ),
    "doge": ("doge", {}, "a mask of its own"),
    "gptj": ("gptj", {**GPT2, "rotary_dim": 8}, NO_INTERFACE),
    "falcon": ("falcon", {}, NO_INTERFACE),
    "dynamic rope": ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
}


def any_config(model_type: str, changes: dict[str, Any]) -> transformers.PretrainedConfig:
    """A tiny config of any type: COMMON as far as it has such fields, with `changes`."""
    config_class = CONFIG_MAPPING[model_type]
    default, aliases = config_class(), getattr(config_class, "attribute_map", None) or {}
    computed = {name for name in dir(config_class) if isinstance(getattr(config_class, name), property)}
    fields = {*default.to_dict(), *aliases, *(name for name in dir(default) if name[0] != "_"), *changes} - computed
    known = {name: value for name, value in {**COMMON, **changes}.items() if name in fields}
    return config_class(
        **{name: value for name, value in known.items() if name in changes or aliases.get(name) not in known}
    )


def save_any(path: Path, model_type: str, changes: dict[str, Any]) -> transformers.PreTrainedModel:
    """Save a random model to `path`, with logits far apart. Returns it, with eager attention."""
    torch.manual_seed(1)
    config = any_config(model_type, changes)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    generator, tied = torch.Generator().manual_seed(5), getattr(config, "tie_word_embeddings", False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2:
                is_table = "embed" in name or "wte" in name
                parameter.copy_(noise * ((0.15 if tied else 0.5) if is_table else (0.3 if tied else 0.12)))
            elif name.endswith("bias") or "sink" in name:
                parameter.copy_(noise * 0.1)
            elif "norm" in name or "ln" in name:
                parameter.add_(noise * 0.1)
    model.generation_config.eos_token_id = None
    model.save_pretrained(path)
    return model


@dataclass(frozen=True)
class Expected:
    """What transformers continues a prompt with, and the log-probabilities of its tokens but the first."""

    prompt: list[int]
    tokens: list[int]
    prompt_logprobs: list[float]


@torch.no_grad()
def expected_of(model: transformers.PreTrainedModel, num_tokens: int = 6) -> list[Expected]:
    """For prompts of several lengths, up to five times the windows' size; the last two begin alike."""
    random, found = Random(3), []
    prompts = [[random.randrange(3, VOCAB) for _ in range(size)] for size in (1, 5, 40)]
    prompts.append(prompts[-1][:20] + [random.randrange(3, VOCAB) for _ in range(9)])
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False)
        logprobs = model(ids).logits[0, :-1].float().log_softmax(-1).gather(1, ids[0, 1:, None])
        found.append(Expected(prompt, out[0, len(prompt) :].tolist(), logprobs[:, 0].tolist()))
    return found
