"""random_model: a decoder with random weights, made in memory, for timing passes of any size without a checkpoint."""

from pathlib import Path
from typing import Any

import torch

from nanoinfer.device import resolve_dtype
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.kernels import select_kernels
from nanoinfer.model.llama import LlamaForCausalLM
from nanoinfer.model.loader import LoadedModel

# 47 M parameters, 180 MiB in float32: larger than the caches of most processors, so that a pass reads memory.
SHAPE: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}


def random_model(
    dtype: str | torch.dtype = "float32",
    kernels: str = "auto",
    seed: int = 0,
    quantization: str | None = None,
    **changes: Any,
) -> LoadedModel:
    """A Llama of shape SHAPE with `changes`. No tokenizer (prompts are token ids), no end tokens.

    The same seed gives the same weights. `quantization`: the kind of linear weights, as for LLM. ValueError or
    UnsupportedModelError when a field is out of range.
    """
    from transformers import LlamaConfig

    hf_config = LlamaConfig(**{**SHAPE, **changes}, architectures=["LlamaForCausalLM"], eos_token_id=None)
    config, resolved, cpu = ModelConfig.from_hf_config(hf_config), resolve_dtype(dtype), torch.device("cpu")
    chosen = select_kernels(kernels, resolved, cpu)
    network = LlamaForCausalLM(config, config.max_position_embeddings, resolved, cpu)
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        if parameter.ndim == 1:
            parameter.fill_(1.0)  # a norm's weight
        else:  # keeps the scale of activations
            parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
    network.use_kernels(chosen, quantization)
    return LoadedModel("random", Path("random"), network, config, None, resolved, cpu, config.max_position_embeddings)
