"""Attention backends: interchangeable ways to attend over the TokenToKVPool."""

from nanoinfer.attention.base import AttentionBackend
from nanoinfer.attention.cpp import CppAttention
from nanoinfer.attention.select import ATTENTION_BACKENDS, select_attention_backend
from nanoinfer.attention.torch_native import TorchNativeBackend

__all__ = [
    "ATTENTION_BACKENDS",
    "AttentionBackend",
    "CppAttention",
    "TorchNativeBackend",
    "select_attention_backend",
]
