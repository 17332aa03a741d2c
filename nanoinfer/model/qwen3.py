"""Qwen3: Llama's decoder with norms on query and key heads, and windows in the layers that `layer_types` names."""

from typing import Any

from nanoinfer.model.config import ModelConfig, read_sliding_windows
from nanoinfer.model.llama import LlamaForCausalLM


class Qwen3ForCausalLM(LlamaForCausalLM):
    """For the dense Qwen3 models."""

    model_type = "qwen3"

    @classmethod
    def read_config(cls, hf: Any) -> ModelConfig:
        """Read a `transformers.Qwen3Config`."""
        return ModelConfig.of_decoder(
            hf,
            sliding_windows=read_sliding_windows(hf),
            qkv_bias=bool(hf.attention_bias),
            o_bias=bool(hf.attention_bias),
            qk_norm=True,
        )
