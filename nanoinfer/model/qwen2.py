"""Qwen2: Llama's decoder with a bias in query, key and value, and windows in the layers that `layer_types` names."""

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
