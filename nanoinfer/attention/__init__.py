"""Attention backends: interchangeable ways to attend over the TokenToKVPool."""

from collections.abc import Callable

from nanoinfer.attention.base import AttentionBackend
from nanoinfer.attention.torch_native import TorchNativeBackend

ATTENTION_BACKENDS: dict[str, Callable[[], AttentionBackend]] = {"torch_native": TorchNativeBackend}

__all__ = ["ATTENTION_BACKENDS", "AttentionBackend", "TorchNativeBackend"]
