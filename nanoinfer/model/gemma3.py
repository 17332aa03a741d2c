"""Gemma 3, text only: also norms after attention and MLP, rotary tables of their own for local layers, and scaled
embeddings."""

from typing import Any

import torch

from nanoinfer.errors import UnsupportedModelError
from nanoinfer.model.config import ModelConfig, read_activation, read_sliding_windows
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.layers.rms_norm import RMSNorm
from nanoinfer.model.llama import DecoderLayer, LlamaForCausalLM, Rotation
from nanoinfer.model.rope import RopeScaling, RotaryEmbedding


class Gemma3DecoderLayer(DecoderLayer):
    """Four norms: attention and MLP each have one before and one after, where the result joins the residual stream."""

    def __init__(self, config: ModelConfig, layer_id: int, dtype: torch.dtype, device: torch.device):
        super().__init__(config, layer_id, dtype, device)
        self.pre_feedforward_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.post_feedforward_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.is_local = config.sliding_windows[layer_id] is not None

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        rotation: Any,
        metadata: InputMetadata,
        rows: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As in DecoderLayer, but `rotation` is the pair that `Gemma3ForCausalLM.rotation` returns."""
        x, residual = self.input_layernorm.add(x, residual)
        x = self.post_attention_layernorm(self.self_attn(x, rotation[self.is_local], metadata, rows))
        if rows is not None:
            residual = residual[rows]
        x, residual = self.pre_feedforward_layernorm.add(x, residual)
        return self.post_feedforward_layernorm(self.mlp(x, metadata.adapters_of(rows))), residual


class Gemma3ForCausalLM(LlamaForCausalLM):
    """Gemma Team, 2025."""

    model_type = "gemma3_text"
    layer_class = Gemma3DecoderLayer

    def __init__(self, config: ModelConfig, max_len: int, dtype: torch.dtype, device: torch.device):
        super().__init__(config, max_len, dtype, device)
        self.local_rotary = self.rotary
        if config.local_rope_theta is not None:
            theta = config.local_rope_theta
            self.local_rotary = RotaryEmbedding(config.head_dim, max_len, theta, RopeScaling(), dtype, device)

    @classmethod
    def read_config(cls, hf: Any) -> ModelConfig:
        """Read a `transformers.Gemma3TextConfig`. Its `attn_logit_softcapping` has no effect in transformers."""
        if hf.use_bidirectional_attention:
            raise UnsupportedModelError(
                "use_bidirectional_attention=True: must be False, the engine's masks are causal"
            )
        local = hf.rope_parameters["sliding_attention"]
        if local["rope_type"] != "default":
            raise UnsupportedModelError(f"rope_type={local['rope_type']!r} of sliding_attention: must be default")
        if "sliding_attention" in hf.layer_types and hf.sliding_window is None:
            raise UnsupportedModelError(
                "sliding_window=None: must be a number, because layer_types has sliding_attention"
            )
        return ModelConfig.of_decoder(
            hf,
            rope_parameters=hf.rope_parameters["full_attention"],
            local_rope_theta=float(local["rope_theta"]),
            activation=read_activation(hf, "hidden_activation"),
            sliding_windows=read_sliding_windows(hf),
            qkv_bias=bool(hf.attention_bias),
            o_bias=bool(hf.attention_bias),
            qk_norm=True,
            norm_offset=1.0,
            embedding_scale=hf.hidden_size**0.5,
            attention_scale=hf.query_pre_attn_scalar**-0.5,
            logit_softcap=hf.final_logit_softcapping,
        )

    def rotation(self, positions: torch.Tensor) -> tuple[Rotation, Rotation]:
        """One rotation for layers that see everything, and one for layers with a sliding window."""
        return super().rotation(positions), (self.local_rotary.cos, self.local_rotary.sin, positions)
