"""Llama, and the dense decoder that all families use: most of them differ from Llama only in the fields of ModelConfig."""

from typing import Any, ClassVar

import torch
from torch import nn

from nanoinfer.model.adapter_rows import AdapterRows
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.kernels import Kernels, TorchKernels
from nanoinfer.model.layers.linear import Embedding, FusedLinear, GatedLinear, Linear, LMHead, quantization_of
from nanoinfer.model.layers.logits_processor import LogitsOutput, compute_logits, hidden_rows
from nanoinfer.model.layers.radix_attention import RadixAttention
from nanoinfer.model.layers.rms_norm import RMSNorm
from nanoinfer.model.rope import RotaryEmbedding

# Cosine and sine tables [max_len, D/2] and the positions [T] to look up in them.
Rotation = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Attention(nn.Module):
    """Fused q, k, v projection → optional norm per head → rotary → RadixAttention → output projection."""

    def __init__(self, config: ModelConfig, layer_id: int, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.kernels: Kernels = TorchKernels()
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        parts = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        self.qkv_proj = FusedLinear(config.hidden_size, parts, config.qkv_bias, dtype, device)
        self.o_proj = Linear(q_size, config.hidden_size, config.o_bias, dtype, device)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps, dtype, device) if config.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps, dtype, device) if config.qk_norm else None
        window, scale, softcap = config.sliding_windows[layer_id], config.attention_scale, config.attention_softcap
        self.attn = RadixAttention(layer_id, self.num_heads, self.num_kv_heads, self.head_dim, window, scale, softcap)

    def forward(
        self, x: torch.Tensor, rotation: Rotation, metadata: InputMetadata, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """`x` [T, hidden] → [T, hidden], or [len(rows), hidden] if only those `rows` are wanted."""
        heads = self.qkv_proj(x, metadata.adapters).view(len(x), -1, self.head_dim)  # [T, H + 2 Hk, D]
        qk, v = heads[:, : -self.num_kv_heads], heads[:, -self.num_kv_heads :]
        if self.q_norm is not None and self.k_norm is not None:
            self.q_norm.norm_heads(qk[:, : self.num_heads])
            self.k_norm.norm_heads(qk[:, self.num_heads :])
        qk = self.kernels.rotate(qk, *rotation)  # query and key heads turn the same way: one call for both
        q, k = qk[:, : self.num_heads], qk[:, self.num_heads :]
        attended = self.attn.forward(q, k, v, metadata).reshape(len(x), -1)
        return self.o_proj(attended if rows is None else attended[rows], metadata.adapters_of(rows))


class MLP(nn.Module):
    """`down(activation(gate(x)) * up(x))`, with gate and up in one product. With silu this is SwiGLU (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig, size: int, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.gate_up_proj = GatedLinear(config.hidden_size, size, config.activation, config.mlp_bias, dtype, device)
        self.down_proj = Linear(size, config.hidden_size, config.mlp_bias, dtype, device)

    def forward(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`x` [T, hidden] → [T, hidden]."""
        return self.down_proj(self.gate_up_proj(x, adapters), adapters)


class DecoderLayer(nn.Module):
    """Attention and MLP. Each reads a normed copy of the residual stream; the norm first adds the previous output to it."""

    def __init__(self, config: ModelConfig, layer_id: int, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.self_attn = Attention(config, layer_id, dtype, device)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.mlp = self.new_mlp(config, layer_id, dtype, device)

    def new_mlp(self, config: ModelConfig, layer_id: int, dtype: torch.dtype, device: torch.device) -> Any:
        """The MLP of this layer. A family may have another module that is called like it, in all layers or in some."""
        return MLP(config, config.intermediate_size, dtype, device)

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        rotation: Rotation,
        metadata: InputMetadata,
        rows: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the previous layer's output `x` [T, hidden], and the residual stream to which `x` has not been added yet
        (None: `x` is the stream itself). Return the same pair for this layer.

        `rows` [k]: once the K/V of all tokens is stored, continue with these tokens only.
        """
        x, residual = self.input_layernorm.add(x, residual)
        x = self.self_attn(x, rotation, metadata, rows)
        if rows is not None:
            residual = residual[rows]
        x, residual = self.post_attention_layernorm.add(x, residual)
        return self.mlp(x, metadata.adapters_of(rows)), residual


class Decoder(nn.Module):
    """Embedding, layers and final norm: from token ids to hidden states. Its parameter names are those of checkpoints."""

    def __init__(self, config: ModelConfig, layer_class: type[DecoderLayer], dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.kernels: Kernels = TorchKernels()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype, device)
        self.embedding_scale = torch.tensor(config.embedding_scale, dtype=dtype).item()  # rounded like the table
        self.layers = nn.ModuleList(layer_class(config, i, dtype, device) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)

    def forward(
        self, input_ids: torch.Tensor, rotation: Rotation, metadata: InputMetadata, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """`input_ids` [T] → [T, hidden]. With `rows` [k] → [k, hidden]: the last layer computes K/V for all tokens, but
        what comes after attention for these only."""
        x, residual = self.embed_tokens(input_ids), None
        if self.embedding_scale != 1.0:
            x = self.kernels.scale(x, self.embedding_scale)
        *layers, last = self.layers
        for layer in layers:
            x, residual = layer(x, residual, rotation, metadata)
        x, residual = last(x, residual, rotation, metadata, rows)
        return self.norm.add(x, residual)[0]


class LlamaForCausalLM(nn.Module):
    """The decoder with its language-model head (tied to the embedding if the config says so).

    It also defines what a family has (see families.py): the `model_type` of its configs, `read_config` to read them, and
    the `layer_class` of its decoder. `max_len`: how many positions get rotary tables. Parameters are uninitialised until
    `load_weights` fills them.
    """

    model_type: ClassVar[str] = "llama"
    layer_class: ClassVar[type[DecoderLayer]] = DecoderLayer
    can_be_split: ClassVar[bool] = True  # over several processes

    def __init__(self, config: ModelConfig, max_len: int, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.config = config
        self.model = Decoder(config, self.layer_class, dtype, device)
        head_device = torch.device("meta") if config.tie_word_embeddings else device  # a tied head needs no memory
        self.lm_head = LMHead(config, dtype, head_device)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.rotary = RotaryEmbedding(config.head_dim, max_len, config.rope_theta, config.rope_scaling, dtype, device)
        # Counted now, because `use_kernels` packs some of them, and they are no longer parameters then.
        self.num_parameters = sum(parameter.numel() for parameter in self.parameters())

    @classmethod
    def read_config(cls, hf: Any) -> ModelConfig:
        """Read a `transformers.LlamaConfig`. UnsupportedModelError naming what the family does not support."""
        bias = bool(hf.attention_bias)
        return ModelConfig.of_decoder(hf, qkv_bias=bias, o_bias=bias, mlp_bias=bool(hf.mlp_bias))

    @classmethod
    def checkpoint_name(cls, name: str) -> str:
        """What checkpoints call the parameter that has `name` here. A family with other names overrides this method."""
        return name

    def use_kernels(self, kernels: Kernels, quantization: str | None = None) -> None:
        """Compute with `kernels` from now on, and pack the linear weights for them, as the kind `quantization` (see
        linear_weights.py). Call it once, after the weights are loaded."""
        self.kernels = kernels
        for name, module in self.named_modules():
            if isinstance(module, Linear):
                module.pack(kernels, quantization, name)
            if isinstance(module, RMSNorm):
                module.use_kernels(kernels, self.config.norm_offset)
            elif hasattr(module, "kernels"):
                module.kernels = kernels
        self.quantization = quantization_of(self)

    def rotation(self, positions: torch.Tensor) -> Any:
        """What the layers take as `rotation`. A family with several tables overrides this method."""
        return self.rotary.cos, self.rotary.sin, positions

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, input_metadata: InputMetadata) -> LogitsOutput:
        """`input_ids` and `positions` [T] int64 → logits of the `logit_rows`. Writes K/V into the pool.

        ValueError, before anything is written, when a position is outside the rotary tables.
        """
        limit = len(self.rotary.cos)
        if input_metadata.max_seq_len > limit and int(positions.max()) >= limit:  # with a mask, positions are free
            raise ValueError(f"seq_lens: the longest is {input_metadata.max_seq_len}, must not exceed max_len={limit}")
        rotation = self.rotation(positions)
        hidden = self.model(input_ids, rotation, input_metadata, hidden_rows(input_metadata))
        return compute_logits(hidden, input_ids, self.lm_head, input_metadata)
