"""Phi-3: Llama's decoder with a sliding window. Its checkpoints store query, key and value as one tensor, and gate and up
as one. The long-context variants (longrope, partial rotary) are refused."""

from typing import Any

import torch

from nanoinfer.model.config import ModelConfig
from nanoinfer.model.llama import DecoderLayer, LlamaForCausalLM


class Phi3DecoderLayer(DecoderLayer):
    """The two fused matrices are stored fused in the checkpoint, too, so each has a single part."""

    def __init__(self, config: ModelConfig, layer_id: int, dtype: torch.dtype, device: torch.device):
        super().__init__(config, layer_id, dtype, device)
        self.self_attn.qkv_proj.parts = {"qkv_proj": self.self_attn.qkv_proj.out_features}
        self.mlp.gate_up_proj.parts = {"gate_up_proj": self.mlp.gate_up_proj.out_features}


class Phi3ForCausalLM(LlamaForCausalLM):
    """Abdin et al., 2024."""

    model_type = "phi3"
    layer_class = Phi3DecoderLayer

    @classmethod
    def read_config(cls, hf: Any) -> ModelConfig:
        """Read a `transformers.Phi3Config`."""
        return ModelConfig.of_decoder(hf, sliding_windows=(hf.sliding_window,) * hf.num_hidden_layers)
