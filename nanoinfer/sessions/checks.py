"""Checks what callers pass to sessions: sessions for a pass, rows of logits, and K/V, which any caller may have changed."""

from collections.abc import Sequence
from typing import Any

import torch

from nanoinfer.model.loader import LoadedModel


def check_sessions(sessions: Sequence[Any], model: LoadedModel) -> None:
    """ValueError unless these are different sessions of `model` that are prefilled, unfinished and have their K/V."""
    if not isinstance(sessions, Sequence) or isinstance(sessions, str):
        raise ValueError(f"sessions: must be a list of InferenceSessions, got {type(sessions).__name__}")
    for i, session in enumerate(sessions):
        if not hasattr(session, "kv_cache") or not hasattr(session, "engine"):
            raise ValueError(f"sessions[{i}]: must be an InferenceSession, got {type(session).__name__}")
        if session.engine.model is not model:
            raise ValueError(f"sessions[{i}]: belongs to another model")
        if session.finished or not session.prefilled:
            raise ValueError(f"sessions[{i}]: has {'finished' if session.finished else 'not been prefilled'}")
        check_kv_cache(f"sessions[{i}]", session.kv_cache, model, session.req.num_tokens)
        if not session.kv_cache:
            raise ValueError(f"sessions[{i}]: its K/V has been released")
    if len(set(map(id, sessions))) < len(sessions):
        raise ValueError("sessions: the same session is there twice")


def check_kv_cache(
    name: str, kv_cache: Sequence[tuple[torch.Tensor, torch.Tensor]], model: LoadedModel, num_tokens: int
) -> None:
    """ValueError unless `kv_cache` is empty or has K and V of every layer, [1, Hk, S, D] each, as the model computes them.
    S is `num_tokens`, or one less before the pass that computes the newest token."""
    config = model.config
    if not isinstance(kv_cache, Sequence) or len(kv_cache) not in (0, config.num_hidden_layers):
        got = len(kv_cache) if isinstance(kv_cache, Sequence) else type(kv_cache).__name__
        raise ValueError(f"{name}: kv_cache: {got}, must be a list of {config.num_hidden_layers} (K, V), one per layer")
    lengths = {num_tokens - 1, num_tokens}
    for layer, pair in enumerate(kv_cache):
        if not isinstance(pair, Sequence) or len(pair) != 2 or not all(isinstance(t, torch.Tensor) for t in pair):
            raise ValueError(f"{name}: kv_cache[{layer}]: must be a pair of tensors (K, V)")
        for letter, tensor in zip("KV", pair, strict=True):
            shape, rest = tuple(tensor.shape), (config.num_key_value_heads, config.head_dim)
            if len(shape) != 4 or shape[0] != 1 or (shape[1], shape[3]) != rest or shape[2] not in lengths:
                raise ValueError(
                    f"{name}: kv_cache[{layer}] {letter}: shape {list(shape)}, must be "
                    f"[1, {rest[0]}, {' or '.join(map(str, sorted(lengths)))}, {rest[1]}]"
                )
            lengths = {shape[2]}  # the same in every layer
            if tensor.dtype != model.dtype or tensor.device != model.device:
                raise ValueError(
                    f"{name}: kv_cache[{layer}] {letter}: {tensor.dtype} on {tensor.device}, must be the model's "
                    f"{model.dtype} on {model.device}"
                )


def check_last_logits(last_logits: torch.Tensor, vocab_size: int) -> None:
    """ValueError unless `last_logits` is one row of floating-point logits, [V] or [1, V]."""
    if not isinstance(last_logits, torch.Tensor):
        raise ValueError(f"last_logits: must be a tensor, got {type(last_logits).__name__}")
    if last_logits.shape not in ((vocab_size,), (1, vocab_size)):
        raise ValueError(f"last_logits: shape {list(last_logits.shape)}, must be [{vocab_size}] or [1, {vocab_size}]")
    if not last_logits.is_floating_point():
        raise ValueError(f"last_logits: dtype {last_logits.dtype}, must be floating point")
