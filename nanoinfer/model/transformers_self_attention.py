"""Attention layers of transformers' networks that become ours: one product for q, k and v, and rotary tables.

A layer is replaced if a trial shows that ours has the same q, k and v, at the first and the last positions, and the same
output. So layers that clamp, scale by position, or do anything else on the way to attention stay as they are.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from nanoinfer.model.kernels import Kernels, TorchKernels
from nanoinfer.model.layers.linear import FusedLinear
from nanoinfer.model.transformers_attention import LAYER, AttentionCall, PooledAttention, now
from nanoinfer.model.transformers_layers import (
    FAILURES,
    WrappedLinear,
    WrappedNorm,
    adapters_of_pass,
    fill,
    is_all,
    replace_module,
    same,
    trial_rows,
)

Tables = tuple[torch.Tensor, torch.Tensor]  # cosines and sines [max_len, D/2]


class WrappedAttention(nn.Module):
    """q, k and v in one product → optional norm per head → rotary tables, if there are any → the pool → output."""

    def __init__(self, of: Any, output: str, tables: Tables | None):
        super().__init__()
        self.kernels: Kernels = TorchKernels()
        self.layer: PooledAttention = getattr(of, LAYER.format(0))
        self.head_dim, self.tables, self._output = self.layer.own[1], tables, output
        projections = {name: getattr(of, name) for name in ("q_proj", "k_proj", "v_proj")}
        parts = {name: projection.out_features for name, projection in projections.items()}
        q = of.q_proj
        self.qkv_proj = FusedLinear(q.in_features, parts, q.bias is not None, q.weight.dtype, torch.device("meta"))
        fill(self.qkv_proj, [*projections.values()])
        setattr(self, output, WrappedLinear(getattr(of, output)))
        self.q_norm, self.k_norm = getattr(of, "q_norm", None), getattr(of, "k_norm", None)

    def heads(self, qkv: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`qkv` [T, (H + 2 Hk) D] → q [T, H, D], k and v [T, Hk, D], as they are attended with."""
        num_heads, num_kv_heads = self.layer.num_heads, self.layer.own[0]
        heads = qkv.view(len(qkv), -1, self.head_dim)
        qk, v = heads[:, : num_heads + num_kv_heads], heads[:, num_heads + num_kv_heads :]
        if self.q_norm is not None and self.k_norm is not None:
            self.q_norm.norm_heads(qk[:, :num_heads])
            self.k_norm.norm_heads(qk[:, num_heads:])
        if self.tables is not None:
            qk = self.kernels.rotate(qk, *self.tables, positions)
        return qk[:, :num_heads], qk[:, num_heads:], v

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
        """`hidden_states` [1, T, hidden] → [1, T, hidden], and no weights."""
        assert now.metadata is not None
        qkv = self.qkv_proj(hidden_states[0], adapters_of_pass())
        attended = self.layer.forward(*self.heads(qkv, now.metadata.positions), now.metadata)
        return getattr(self, self._output)(attended.view(1, len(qkv), -1)), None


class NoRotation(nn.Module):
    """In place of a module that computes cosines and sines for attention layers, which all have tables now."""

    def forward(self, *_: Any, **__: Any) -> tuple[None, None]:
        """Nothing."""
        return None, None


class _Watched:
    """What the modules of a network are called with in a pass, and what they return."""

    def __init__(self, network: nn.Module, run: Callable[[], Any], wanted: Callable[[nn.Module], bool]):
        self.calls: dict[nn.Module, list[tuple[tuple[Any, ...], dict[str, Any], Any]]] = {}
        hooks = [m.register_forward_hook(self._note, with_kwargs=True) for m in network.modules() if wanted(m)]
        try:
            run()
        finally:
            for hook in hooks:
                hook.remove()

    def _note(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any], result: Any) -> None:
        self.calls.setdefault(module, []).append((args, options, result))


def adopt_attention(network: nn.Module, whole: Any, run: Callable[[], Any], max_len: int, dtype: torch.dtype) -> None:
    """Replace, in place, the attention layers of `network` that are like ours, with rotary tables for `max_len` positions.
    `run` makes a pass for a probe."""
    watched = _Watched(network, run, lambda m: LAYER.format(0) in vars(m) or "Rotary" in type(m).__name__)
    rotary = {m: calls for m, calls in watched.calls.items() if LAYER.format(0) not in vars(m)}
    positions = torch.tensor([0, 1, max_len // 2, max_len - 1])
    # By the cosines of the pass: tables for all positions, and what transformers has for the positions of a trial.
    made: dict[int, tuple[Tables, Tables] | None] = {}
    for module, calls in rotary.items():
        for call in calls:
            if isinstance(call[2], tuple) and len(call[2]) == 2:
                made[id(call[2][0])] = _tables(module, call, positions, max_len)
    new: dict[nn.Module, WrappedAttention] = {}
    for module, calls in watched.calls.items():
        if (
            module not in rotary
            and is_all(dtype, module)
            and (ours := _attention(module, calls, made, positions)) is not None
        ):
            new[module] = ours
    for name, module in list(network.named_modules()):
        if module in new:
            replace_module(network, whole, name, new[module])
        elif module in rotary and len(new) == len(watched.calls) - len(rotary):
            replace_module(network, whole, name, NoRotation())


def _tables(module: nn.Module, call: Any, positions: torch.Tensor, max_len: int) -> tuple[Tables, Tables] | None:
    """Tables for all positions, if `module` makes such as ours; and what it itself makes of `positions`."""

    def ask(places: torch.Tensor) -> Any:
        def put(x: Any) -> Any:
            return places[None].to(x.device) if isinstance(x, torch.Tensor) and x.dtype is torch.int64 else x

        return module(*map(put, call[0]), **{name: put(value) for name, value in call[1].items()})

    try:
        cos, sin = ask(torch.arange(max_len))
    except FAILURES:
        return None
    if not isinstance(cos, torch.Tensor) or cos.shape[:-1] != (1, max_len) or cos.is_complex():
        return None
    half = cos.shape[-1] // 2
    if not all(torch.equal(table[..., :half], table[..., half:]) for table in (cos, sin)):
        return None
    return (cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()), ask(positions)


def _attention(module: Any, calls: list[Any], made: Any, positions: torch.Tensor) -> WrappedAttention | None:
    linears = {name: child for name, child in module.named_children() if type(child) is nn.Linear}
    outputs = [name for name in linears if name not in ("q_proj", "k_proj", "v_proj")]
    if len(calls) != 1 or len(linears) != 4 or len(outputs) != 1 or LAYER.format(1) in vars(module):
        return None
    _, options, result = calls[0]
    layer: PooledAttention = getattr(module, LAYER.format(0))
    biases = {linears[name].bias is None for name in linears if name != outputs[0]}
    norms = [getattr(module, name, None) for name in ("q_norm", "k_norm")]
    if len(biases) > 1 or not isinstance(result, tuple) or len(result) != 2 or layer.own[1] != layer.own[2]:
        return None
    if any(norm is not None and not (type(norm) is WrappedNorm and len(norm.weight) == layer.own[1]) for norm in norms):
        return None
    turned = options.get("position_embeddings")
    rotation = (None, None) if turned is None else made.get(id(turned[0]))
    if rotation is None or (rotation[0] is not None and 2 * rotation[0][0].shape[1] != layer.own[1]):
        return None
    tables, theirs = rotation
    x = trial_rows(linears["q_proj"].in_features, linears["q_proj"].weight)
    given = {"hidden_states": x, "position_embeddings": theirs, "position_ids": positions[None]}
    now.calls = trial = list[AttentionCall]()
    try:
        out = module(**{**options, **{name: given[name] for name in options.keys() & given.keys()}})[0]
    except FAILURES:
        out = None
    finally:
        now.calls = None
    if out is None or len(trial) != 1:
        return None
    wanted = [tensor[0].transpose(0, 1) for tensor in (trial[0].query, trial[0].key, trial[0].value)]
    passed_on = trial[0].passed_on.reshape(1, len(x[0]), -1)
    if passed_on.shape[-1] != linears[outputs[0]].in_features or not same(linears[outputs[0]](passed_on), out):
        return None
    for each in dict.fromkeys((tables, None)):
        ours = WrappedAttention(module, outputs[0], each)
        assert ours.qkv_proj.weight is not None
        found = ours.heads(linear(x[0], ours.qkv_proj.weight, ours.qkv_proj.bias), positions)
        if all(map(same, found, wanted)):
            return ours
    return None
