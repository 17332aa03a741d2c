"""Mixtures of experts: Qwen3-MoE, Qwen2-MoE, OLMoE and Mixtral. In place of one MLP, a layer has many small ones and a
router, which chooses a few of them for each token (Shazeer et al., 2017; as here, with a softmax: Jiang et al., 2024)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nanoinfer.errors import UnsupportedModelError
from nanoinfer.model.adapter_rows import AdapterRows
from nanoinfer.model.config import ModelConfig, read_sliding_windows
from nanoinfer.model.kernels import Kernels, TorchKernels
from nanoinfer.model.layers.experts import Experts, Router
from nanoinfer.model.layers.rms_norm import RMSNorm
from nanoinfer.model.llama import MLP, DecoderLayer, LlamaForCausalLM


@dataclass(frozen=True)
class MoeConfig(ModelConfig):
    """A decoder with experts in all layers except `dense_layers`."""

    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0  # of each expert
    norm_topk_prob: bool = True  # whether the weights of a token's experts add up to 1
    shared_expert_intermediate_size: int = 0  # of the expert that all tokens go through; 0: there is none
    dense_layers: tuple[int, ...] = ()


class SparseMoeBlock(nn.Module):
    """A router, `gate`, and experts, each an MLP; with Qwen2-MoE, also a `shared_expert` for all tokens."""

    def __init__(self, config: MoeConfig, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.kernels: Kernels = TorchKernels()
        self.top_k, self.normalized = config.num_experts_per_tok, config.norm_topk_prob
        self.gate = Router(config.hidden_size, config.num_experts, False, dtype, device)
        size, shared_size = config.moe_intermediate_size, config.shared_expert_intermediate_size
        self.experts = Experts([MLP(config, size, dtype, device) for _ in range(config.num_experts)])
        self.shared_expert = MLP(config, shared_size, dtype, device) if shared_size else None
        self.shared_expert_gate = Router(config.hidden_size, 1, False, dtype, device) if shared_size else None

    def forward(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`x` [T, hidden] → [T, hidden]."""
        dispatched = self.kernels.dispatch(x, self.gate(x, adapters), self.top_k, self.normalized)
        outputs = self.experts(dispatched)
        if self.shared_expert is None or self.shared_expert_gate is None:
            return self.kernels.combine(outputs, dispatched)
        shared, shared_gate = self.shared_expert(x, adapters), self.shared_expert_gate(x, adapters)
        return self.kernels.combine(outputs, dispatched, shared, shared_gate)


class MoeDecoderLayer(DecoderLayer):
    """A layer with a SparseMoeBlock where the config has experts."""

    def new_mlp(self, config: ModelConfig, layer_id: int, dtype: torch.dtype, device: torch.device) -> Any:
        """As in DecoderLayer."""
        assert isinstance(config, MoeConfig)
        if layer_id in config.dense_layers:
            return super().new_mlp(config, layer_id, dtype, device)
        return SparseMoeBlock(config, dtype, device)


class MoeForCausalLM(LlamaForCausalLM):
    """What the families below have in common."""

    layer_class = MoeDecoderLayer
    can_be_split = False

    @classmethod
    def read_experts(cls, hf: Any, **fields: Any) -> MoeConfig:
        """`of_decoder` with what all these families say of their experts. UnsupportedModelError naming a wrong number."""
        experts, top_k = hf.num_experts, hf.num_experts_per_tok
        if not 1 <= top_k <= experts:
            raise UnsupportedModelError(f"num_experts_per_tok={top_k}: must be in 1..num_experts={experts}")
        return MoeConfig.of_decoder(hf, num_experts=experts, num_experts_per_tok=top_k, **fields)


def _qwen_experts(hf: Any) -> dict[str, Any]:
    """The fields that both Qwens' configurations have."""
    if hf.decoder_sparse_step < 1:
        raise UnsupportedModelError(f"decoder_sparse_step={hf.decoder_sparse_step}: must be at least 1")
    sparse = [(layer + 1) % hf.decoder_sparse_step == 0 for layer in range(hf.num_hidden_layers)]
    return {
        "moe_intermediate_size": hf.moe_intermediate_size,
        "norm_topk_prob": bool(hf.norm_topk_prob),
        "dense_layers": tuple(i for i, is_sparse in enumerate(sparse) if not is_sparse or i in hf.mlp_only_layers),
    }


class Qwen3MoeForCausalLM(MoeForCausalLM):
    """Yang et al., 2025."""

    model_type = "qwen3_moe"

    @classmethod
    def read_config(cls, hf: Any) -> ModelConfig:
        """Read a `transformers.Qwen3MoeConfig`."""
        return cls.read_experts(
            hf,
            sliding_windows=(hf.sliding_window,) * hf.num_hidden_layers,
            qkv_bias=bool(hf.attention_bias),
            o_bias=bool(hf.attention_bias),
            qk_norm=True,
            **_qwen_experts(hf),
        )


class Qwen2MoeForCausalLM(MoeForCausalLM):
    """Also has an expert that all tokens go through."""

    model_type = "qwen2_moe"

    @classmethod
    def read_config(cls, hf: Any) -> ModelConfig:
        """Read a `transformers.Qwen2MoeConfig`."""
        return cls.read_experts(
            hf,
            sliding_windows=read_sliding_windows(hf),
            qkv_bias=bool(hf.qkv_bias),
            shared_expert_intermediate_size=hf.shared_expert_intermediate_size,
            **_qwen_experts(hf),
        )


class OlmoeDecoderLayer(MoeDecoderLayer):
    """Its norms of query and key are over all heads at once."""

    def __init__(self, config: ModelConfig, layer_id: int, dtype: torch.dtype, device: torch.device):
        super().__init__(config, layer_id, dtype, device)
        for name, heads in (("q_norm", config.num_attention_heads), ("k_norm", config.num_key_value_heads)):
            norm = RMSNorm(heads * config.head_dim, config.rms_norm_eps, dtype, device)
            setattr(self.self_attn, name, norm)


class OlmoeForCausalLM(MoeForCausalLM):
    """Muennighoff et al., 2024."""

    model_type = "olmoe"
    layer_class = OlmoeDecoderLayer

    @classmethod
    def read_config(cls, hf: Any) -> ModelConfig:
        """Read a `transformers.OlmoeConfig`."""
        if hf.clip_qkv is not None:
            raise UnsupportedModelError(f"clip_qkv={hf.clip_qkv}: must be null")
        return cls.read_experts(
            hf,
            qkv_bias=bool(hf.attention_bias),
            o_bias=bool(hf.attention_bias),
            qk_norm=True,
            moe_intermediate_size=hf.intermediate_size,
            norm_topk_prob=bool(hf.norm_topk_prob),
        )


class MixtralForCausalLM(MoeForCausalLM):
    """Jiang et al., 2024."""

    model_type = "mixtral"

    @classmethod
    def read_config(cls, hf: Any) -> ModelConfig:
        """Read a `transformers.MixtralConfig`."""
        windows = (hf.sliding_window,) * hf.num_hidden_layers
        return cls.read_experts(hf, sliding_windows=windows, moe_intermediate_size=hf.intermediate_size)

    @classmethod
    def checkpoint_name(cls, name: str) -> str:
        """As in LlamaForCausalLM."""
        for ours, mixtrals in (
            (".mlp.", ".block_sparse_moe."),
            ("gate_proj", "w1"),
            ("down_proj", "w2"),
            ("up_proj", "w3"),
        ):
            name = name.replace(ours, mixtrals)
        return name
