"""The interface between the model's attention layers and the backend that computes attention over the pool."""

from typing import Any, Protocol

import torch
from torch import nn

from nanoinfer.cache.kv_storage import Int8KVStorage, KVStorage
from nanoinfer.model.input_metadata import InputMetadata

# What a layer or a pass may need besides paged causal attention. A backend lists in `features` what it supports.
SOFTCAP = "softcap"  # a layer's `softcap`
MASK = "mask"  # `attention_mask`; sliding windows then go by `positions`, which may differ from the tokens' indices
ENCODED_KV = "encoded K/V (kv_cache_dtype)"  # K/V that only `token_to_kv_pool.read` can decode
INT8_KV = "K/V in int8 (kv_cache_dtype)"  # Int8KVStorage's; a backend with ENCODED_KV can do that, too
SINKS = "sinks"  # a layer's `sinks`
UNSTORED = "unstored"  # new tokens with slot −1, whose K/V is only in `token_to_kv_pool.new`


class AttentionLayer:
    """One attention layer as a backend sees it. `sliding_window`: how many tokens a token sees, itself included; None for
    all. `scale` multiplies the scores (by default 1 / √D); then `softcap · tanh(scores / softcap)` bounds them.
    `sinks` [H]: a score of each head that takes part in its softmax, but has no value (gpt-oss)."""

    def __init__(
        self,
        layer_id: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        sliding_window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ):
        self.layer_id, self.num_heads, self.num_kv_heads, self.head_dim = layer_id, num_heads, num_kv_heads, head_dim
        self.sliding_window, self.softcap, self.sinks = sliding_window, softcap, sinks
        self.scale = head_dim**-0.5 if scale is None else scale


class AttentionBackend(Protocol):
    """Attends over K/V in the TokenToKVPool. The K/V of the new tokens is already there when `forward_*` is called.

    A backend may have a method `store(k, v, layer, metadata)` that writes K/V [T, Hk, D] into slots `out_cache_loc`. It may
    have a set `features`: those of SOFTCAP, SINKS, MASK, ENCODED_KV, INT8_KV and UNSTORED that it supports. A backend
    without it supports none of them, and is never asked to.
    """

    def init_forward(self, metadata: InputMetadata) -> None:
        """Called once per pass, before the first layer, to put what all layers share into `metadata.attention_plan`."""

    def forward_extend(self, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> torch.Tensor:
        """`q` [T, H, D] → [T, H, D]: each new token attends to its request's tokens up to and including itself."""
        ...

    def forward_decode(self, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> torch.Tensor:
        """`q` [B, H, D] → [B, H, D]: the newest token of each request attends to all tokens of that request."""
        ...


def missing_features(backend: Any, wanted: set[str]) -> set[str]:
    """The features among `wanted` that `backend` does not support."""
    features = set(getattr(backend, "features", ()))
    return wanted - features - ({INT8_KV} if ENCODED_KV in features else set())


def wanted_features(network: nn.Module, kv_storage: KVStorage | None = None) -> set[str]:
    """The features that every pass needs, because of the attention layers of `network` and the storage of its pool."""
    values = (value for module in network.modules() for value in vars(module).values())
    layers = [value for value in values if isinstance(value, AttentionLayer)]
    wanted = {SOFTCAP for layer in layers if layer.softcap is not None}
    wanted |= {SINKS for layer in layers if layer.sinks is not None}
    if kv_storage is None or kv_storage.has_plain_buffers:
        return wanted
    return wanted | {INT8_KV if type(kv_storage) is Int8KVStorage else ENCODED_KV}
