"""Tiny random checkpoints, in Hugging Face format, of every family the engine supports."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
import transformers

CONFIG_CLASSES = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "gemma3": transformers.Gemma3TextConfig,
    "phi3": transformers.Phi3Config,
    "qwen3_moe": transformers.Qwen3MoeConfig,
    "qwen2_moe": transformers.Qwen2MoeConfig,
    "olmoe": transformers.OlmoeConfig,
    "mixtral": transformers.MixtralConfig,
    # The engine does not have these: tests add them from outside.
    "gemma2": transformers.Gemma2Config,
    "arcee": transformers.ArceeConfig,
}
FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma3", "phi3"]
MOE_FAMILIES = ["qwen3_moe", "qwen2_moe", "olmoe", "mixtral"]
TINY = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # large enough that logits are far apart and a wrong token shows
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# What a family needs beside TINY: defaults that are as small, and not all of the three layers of one type.
TINY_GEMMA: dict[str, object] = {
    "head_dim": 16,
    "query_pre_attn_scalar": 24,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
TINY_EXPERTS: dict[str, object] = {"num_experts": 6, "num_experts_per_tok": 2}
TINY_QWEN_MOE: dict[str, object] = {**TINY_EXPERTS, "moe_intermediate_size": 48, "norm_topk_prob": True}
TINY_OF_FAMILY: dict[str, dict[str, object]] = {
    "gemma2": TINY_GEMMA,
    "gemma3": TINY_GEMMA,
    "qwen3_moe": {**TINY_QWEN_MOE, "mlp_only_layers": [1]},
    "qwen2_moe": {**TINY_QWEN_MOE, "shared_expert_intermediate_size": 40},
    "olmoe": TINY_EXPERTS,
    "mixtral": {"num_local_experts": 6, "num_experts_per_tok": 2},
}
REMOVED = object()  # a value for `edited`


def tiny_config(family: str, **changes: object) -> transformers.PretrainedConfig:
    """TINY with `changes`, as a configuration of `family` that was never on disk."""
    config_class = CONFIG_CLASSES[family]
    return config_class(**{**TINY, **TINY_OF_FAMILY.get(family, {}), **changes})


def save_checkpoint(
    path: Path, family: str = "llama", seed: int = 0, max_shard_size: str = "1GB", **changes: object
) -> Path:
    """Save a random model of `family`, TINY with `changes`, to `path`; biases and norms are random too."""
    gemma = family.startswith("gemma")
    stored_norm = 0.0 if gemma else 1.0  # Gemma's checkpoints store weight - 1
    config = tiny_config(family, **changes)
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                noise = 0.3 * torch.randn(parameter.shape, generator=generator)
                parameter.copy_((stored_norm if "norm" in name else 0.0) + noise)
            elif gemma and "embed_tokens" in name:
                parameter.mul_(0.1)  # it is scaled up again: as large as in Llama, every token would repeat for ever
    model.save_pretrained(path, max_shard_size=max_shard_size)
    return path


def edited(source: Path, target: Path, **changes: object) -> Path:
    """A copy of a checkpoint with other values in its `config.json`; REMOVED takes a key away."""
    shutil.copytree(source, target)
    config = {**json.loads((target / "config.json").read_text()), **changes}
    kept = {key: value for key, value in config.items() if value is not REMOVED}
    (target / "config.json").write_text(json.dumps(kept))
    return target


_KNOWN: WeakKeyDictionary[transformers.PreTrainedModel, dict[tuple[int, ...], list[int]]] = WeakKeyDictionary()


def greedy(model: transformers.PreTrainedModel, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What transformers' `generate` continues `prompt` with, end tokens ignored. Remembered: the model must not change."""
    known = _KNOWN.setdefault(model, {})
    key = tuple(prompt)
    if len(known.get(key, [])) < num_tokens:
        known[key] = _generate(model, prompt, num_tokens)
    return known[key][:num_tokens]


@torch.no_grad()
def _generate(model: transformers.PreTrainedModel, prompt: Sequence[int], num_tokens: int) -> list[int]:
    ids = torch.tensor([list(prompt)])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()
