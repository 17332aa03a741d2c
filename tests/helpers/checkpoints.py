"""Tiny random checkpoints, in Hugging Face format, of every family the engine supports."""

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

CONFIG_CLASSES = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
}
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


def save_checkpoint(
    path: Path, family: str = "llama", seed: int = 0, max_shard_size: str = "1GB", **changes: object
) -> Path:
    """Save a random model of `family`, TINY with `changes`, to `path`; biases and norms are random too."""
    config = CONFIG_CLASSES[family](**{**TINY, **changes})
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                noise = 0.3 * torch.randn(parameter.shape, generator=generator)
                parameter.copy_((1.0 if "norm" in name else 0.0) + noise)
    model.save_pretrained(path, max_shard_size=max_shard_size)
    return path


@torch.no_grad()
def greedy(model: transformers.PreTrainedModel, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What transformers' `generate` continues `prompt` with, end tokens ignored."""
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
