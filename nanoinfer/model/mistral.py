"""Mistral: Llama's decoder with a sliding window in all layers or, for Ministral, in those that `layer_types` names."""

from typing import Any

from nanoinfer.model.config import ModelConfig, read_sliding_windows
from nanoinfer.model.llama import LlamaForCausalLM


class MistralForCausalLM(LlamaForCausalLM):
    """Jiang et al., 2023."""

    model_type = "mistral"

    @classmethod
    def read_config(cls, hf: Any) -> ModelConfig:
        """Read a `transformers.MistralConfig`."""
        return ModelConfig.of_decoder(hf, sliding_windows=read_sliding_windows(hf))
