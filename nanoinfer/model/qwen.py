"""Qwen2 and Qwen3: Llama's decoder with windows in the layers that `layer_types` names. Qwen2 has a bias in query, key and
value, Qwen3 norms on query and key heads."""

from typing import Any

from nanoinfer.model.config import ModelConfig, read_sliding_windows
from nanoinfer.model.llama import LlamaForCausalLM


class Qwen2ForCausalLM(LlamaForCausalLM):
    """For Qwen2 and Qwen2.5."""

    model_type = "qwen2"

    @classmethod
    def read_config(cls, hf: Any) -> ModelConfig:
        """Read a `transformers.Qwen2Config`."""
        return ModelConfig.of_decoder(hf, sliding_windows=read_sliding_windows(hf), qkv_bias=True)


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
