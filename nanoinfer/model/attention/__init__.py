"""Attention backends: interchangeable implementations of attention over the TokenToKVPool."""

from nanoinfer.model.attention.base import AttentionBackend, AttentionLayer
from nanoinfer.model.attention.select import select_attention_backend
from nanoinfer.model.attention.torch_native import TorchNativeBackend

__all__ = ["AttentionBackend", "AttentionLayer", "TorchNativeBackend", "select_attention_backend"]
