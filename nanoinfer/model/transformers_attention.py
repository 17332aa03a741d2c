"""The function that transformers asks to compute attention, and the probe that finds out what each layer asks for."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from nanoinfer.errors import UnsupportedModelError
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.layers.radix_attention import RadixAttention

POOLED, PROBE = "nanoinfer", "nanoinfer_probe"  # what transformers knows our functions as
LAYER = "pooled_{}"  # a module's attribute
# Arguments that do not change the answer. All others are refused if they are given, but those that `probe` reads.
WITHOUT_EFFECT = {"dropout", "position_ids", "use_cache", "cache_position", "output_attentions", "output_router_logits"}


class Now(threading.local):
    """What this thread does: in a pass, its `metadata`; in a probe, the `calls` so far."""

    metadata: InputMetadata | None = None
    calls: "list[AttentionCall] | None" = None
    turns: dict[nn.Module, int]  # which of its layers each module has called last
    output: Any = None  # what the decoder has returned, for the head


now = Now()


@dataclass
class AttentionCall:
    """What a layer has asked for in a probe: q [1, H, T, D], k [1, Hk, T, D] and v [1, Hk, T, Dv], and the options."""

    module: nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: Any
    options: dict[str, Any]

    @property
    def passed_on(self) -> torch.Tensor:
        """In place of the result, each token's own value, [1, T, H, Dv]: nothing goes from token to token."""
        shared = self.query.shape[1] // self.value.shape[1]
        return self.value.repeat_interleave(shared, dim=1).transpose(1, 2).contiguous()

    def window(self) -> int | None:
        """How many tokens a token sees, as the mask says; where there is none, as the layer itself says. transformers tells
        the window of some layers only to the mask. UnsupportedModelError for a mask that is not causal."""
        name = type(self.module).__name__
        if self.options.get("is_causal") is False or not getattr(self.module, "is_causal", True):
            raise UnsupportedModelError(f"{name}: attention that is not causal")
        if self.mask is None:
            return self.options.get("sliding_window")
        if not hasattr(self.mask, "sees"):
            raise UnsupportedModelError(f"{name}: a mask of its own")
        return self.mask.window(name)


class Mask(torch.Tensor):
    """In place of a mask, in a probe: what it is made from. `sees(query, key)` is transformers' function of indices;
    `local_size` the size of a window or chunk, None without one."""

    sees: Callable[[int, int], bool]
    local_size: int | None

    def __getitem__(self, index: Any) -> "Mask":
        return self

    def window(self, name: str) -> int | None:
        """The sliding window. Of attention in chunks None: contexts are no longer than the first chunk."""
        sees, size = self.sees, self.local_size
        if not sees(1, 1) or sees(0, 1):
            raise UnsupportedModelError(f"{name}: a mask that is not causal")
        if size is None:
            if not sees(1 << 20, 0):
                raise UnsupportedModelError(f"{name}: a mask that hides tokens")
            return None
        if sees(size, 1) and not sees(size, 0):
            return size
        if sees(size - 1, 0) and not sees(size, size - 1):
            return None
        raise UnsupportedModelError(f"{name}: a mask of {size} tokens that is neither a sliding window nor a chunk")


def probe_mask(*, mask_function: Any, local_size: int | None = None, **_: Any) -> Mask:
    """transformers' mask interface, for probes."""
    mask = torch.zeros(1, 1, 1, 1).as_subclass(Mask)
    mask.sees = lambda query, key: bool(mask_function(0, 0, torch.tensor(query), torch.tensor(key)))
    mask.local_size = local_size
    return mask


def probe_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface, for probes."""
    call = AttentionCall(module, query, key, value, attention_mask, options)
    assert now.calls is not None
    now.calls.append(call)
    return call.passed_on, None


def pooled_attention(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface, in passes: q, k and v [1, heads, T, size] of a flattened batch → [1, T, H, Dv]."""
    turn = now.turns[module] = now.turns.get(module, -1) + 1
    layer: PooledAttention = vars(module)[LAYER.format(turn)]
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    assert now.metadata is not None
    return layer.forward(q, k, v, now.metadata)[None], None


def register() -> None:
    """Make these functions known to transformers."""
    from transformers.masking_utils import AttentionMaskInterface  # it takes two seconds
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(PROBE, probe_attention)
    AttentionMaskInterface.register(PROBE, probe_mask)
    AttentionInterface.register(POOLED, pooled_attention)  # without masks: the backend makes its own


class PooledAttention(RadixAttention):
    """A layer of another shape than the pool's: K/V heads are repeated, and heads padded with zeros.

    `own`: key/value heads, size of their keys, and of their values, before that.
    """

    def __init__(self, own: tuple[int, int, int], *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.own = own

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, metadata: InputMetadata) -> torch.Tensor:
        """`q` [T, H, D], `k` [T, Hk, D], `v` [T, Hk, Dv] → [T, H, Dv]."""
        heads, key_size, value_size = self.own
        if heads != self.num_kv_heads:
            k, v = (x.repeat_interleave(self.num_kv_heads // heads, dim=1) for x in (k, v))
        q, k = (pad(x, (0, self.head_dim - key_size)) if key_size < self.head_dim else x for x in (q, k))
        if value_size < self.head_dim:
            v = pad(v, (0, self.head_dim - value_size))
        if any(x.stride()[1:] != (self.head_dim, 1) for x in (q, k, v)) or k.stride() != v.stride():
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        out = super().forward(q, k, v, metadata)
        return out if value_size == self.head_dim else out[..., :value_size].contiguous()


def pooled_layers(calls: Sequence[AttentionCall]) -> list[PooledAttention]:
    """Give each attention module of a probe its layers, one for each call, as attributes LAYER. Layers that use the K/V of
    another one have its number. UnsupportedModelError naming what our attention cannot do."""
    kv_heads = max((call.key.shape[1] for call in calls), default=0)
    size = max((max(call.key.shape[3], call.value.shape[3]) for call in calls), default=0)
    owners: dict[tuple[int, int], int] = {}
    layers: list[PooledAttention] = []
    for call in calls:
        name, options = (
            type(call.module).__name__,
            {key: value for key, value in call.options.items() if value is not None},
        )
        unknown = options.keys() - WITHOUT_EFFECT - {"scaling", "sliding_window", "softcap", "s_aux", "is_causal"}
        if unknown:
            raise UnsupportedModelError(f"{name}: attention with {', '.join(sorted(unknown))}")
        heads, own_heads = call.query.shape[1], call.key.shape[1]
        if kv_heads % own_heads or heads % kv_heads:
            raise UnsupportedModelError(f"{name}: {own_heads} key/value heads, where another layer has {kv_heads}")
        key_size, value_size = call.key.shape[3], call.value.shape[3]
        layer = PooledAttention(
            (own_heads, key_size, value_size),
            owners.setdefault((call.key.data_ptr(), call.value.data_ptr()), len(owners)),
            *(heads, kv_heads, size, call.window()),
            scale=options.get("scaling", key_size**-0.5),
            softcap=options.get("softcap"),
            sinks=options.get("s_aux"),
        )
        setattr(call.module, LAYER.format(sum(other.module is call.module for other in calls[: len(layers)])), layer)
        layers.append(layer)
    return layers
