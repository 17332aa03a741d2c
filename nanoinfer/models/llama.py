"""The dense decoder: one file serves Llama, Mistral, Qwen2 and Qwen3, whose differences are ModelConfig's fields."""

import torch
from torch import nn
from torch.nn.functional import silu

from nanoinfer.config import ModelConfig
from nanoinfer.input_metadata import InputMetadata
from nanoinfer.layers.linear import FusedLinear, Linear
from nanoinfer.layers.logits_processor import LogitsOutput, process_logits
from nanoinfer.layers.radix_attention import RadixAttention
from nanoinfer.layers.rms_norm import RMSNorm
from nanoinfer.layers.rotary_embedding import RotaryEmbedding, rotate

Rotation = tuple[torch.Tensor, torch.Tensor]


class Attention(nn.Module):
    """Fused q, k, v projection → optional norm per head → rotary → RadixAttention → output projection."""

    def __init__(self, config: ModelConfig, layer_id: int, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        parts = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        self.qkv_proj = FusedLinear(config.hidden_size, parts, config.qkv_bias, dtype, device)
        self.o_proj = Linear(q_size, config.hidden_size, config.o_bias, dtype, device)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps, dtype, device) if config.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps, dtype, device) if config.qk_norm else None
        self.attn = RadixAttention(
            layer_id, self.num_heads, self.num_kv_heads, self.head_dim, config.sliding_windows[layer_id]
        )

    def forward(self, x: torch.Tensor, rotation: Rotation, metadata: InputMetadata) -> torch.Tensor:
        """`x` [T, hidden] → [T, hidden]."""
        q, k, v = self.qkv_proj.split(x)
        q = q.view(-1, self.num_heads, self.head_dim)  # [T, H, D]
        k = k.view(-1, self.num_kv_heads, self.head_dim)  # [T, Hk, D]
        v = v.view(-1, self.num_kv_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        attended = self.attn.forward(rotate(q, rotation), rotate(k, rotation), v, metadata)
        return self.o_proj(attended.reshape(len(x), -1))


class MLP(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))`, gate and up in one product (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device):
        super().__init__()
        parts = {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size}
        self.gate_up_proj = FusedLinear(config.hidden_size, parts, config.mlp_bias, dtype, device)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, config.mlp_bias, dtype, device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [T, hidden] → [T, hidden]."""
        gate, up = self.gate_up_proj.split(x)
        return self.down_proj(silu(gate) * up)


class DecoderLayer(nn.Module):
    """Attention and MLP, each on a normed copy of the residual stream and added back to it."""

    def __init__(self, config: ModelConfig, layer_id: int, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.self_attn = Attention(config, layer_id, dtype, device)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.mlp = MLP(config, dtype, device)

    def forward(self, x: torch.Tensor, rotation: Rotation, metadata: InputMetadata) -> torch.Tensor:
        """`x` [T, hidden] → [T, hidden]."""
        x = x + self.self_attn(self.input_layernorm(x), rotation, metadata)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, layers, final norm: token ids to hidden states. Its parameter names are the checkpoints'."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device):
        super().__init__()
        table = torch.empty(config.vocab_size, config.hidden_size, dtype=dtype, device=device)
        self.embed_tokens = nn.Embedding.from_pretrained(table, freeze=True)
        self.layers = nn.ModuleList(DecoderLayer(config, i, dtype, device) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)

    def forward(self, input_ids: torch.Tensor, rotation: Rotation, metadata: InputMetadata) -> torch.Tensor:
        """`input_ids` [T] → [T, hidden]."""
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, rotation, metadata)
        return self.norm(x)


class LlamaForCausalLM(nn.Module):
    """The decoder with its language-model head (tied to the embedding where the config says so).

    `max_len`: positions to make rotary tables for. Parameters are uninitialised until `load_weights` fills them.
    """

    def __init__(self, config: ModelConfig, max_len: int, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.config = config
        self.model = Decoder(config, dtype, device)
        own = torch.device("meta") if config.tie_word_embeddings else device  # a tied head needs no memory of its own
        self.lm_head = Linear(config.hidden_size, config.vocab_size, False, dtype, own)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.rotary = RotaryEmbedding(config.head_dim, max_len, config.rope_theta, config.rope_scaling, dtype, device)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, input_metadata: InputMetadata) -> LogitsOutput:
        """`input_ids`, `positions` [T] int64 → logits of each request's last token. Writes K/V into the pool."""
        hidden = self.model(input_ids, self.rotary.rotation(positions), input_metadata)
        return process_logits(hidden, input_ids, self.lm_head, input_metadata)
