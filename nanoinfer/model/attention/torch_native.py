"""TorchNativeBackend: paged attention in plain torch. Every other backend is tested against it."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

from nanoinfer.model.attention.base import ENCODED_KV, SINKS, SOFTCAP, AttentionLayer
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.input_metadata import InputMetadata


@dataclass
class ExtendPlan:
    """For each request: where its new tokens are in the batch, its slots and, per window, which tokens the new ones see."""

    spans: list[tuple[int, int]]
    slots: list[torch.Tensor]  # [S] each
    masks: dict[int | None, list[torch.Tensor | None]]  # window → per request bool [new, S]; None: plain causal


@dataclass
class DecodePlan:
    """All requests as one rectangle, as wide as the longest sequence. Padding repeats a valid slot, and is masked."""

    slots: torch.Tensor  # [B, max_seq_len]
    distance: torch.Tensor  # [B, max_seq_len]: how far back each token is; negative for padding
    masks: dict[int | None, torch.Tensor]  # window → bool [B, 1, 1, max_seq_len]


def attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, layer: AttentionLayer
) -> torch.Tensor:
    """softmax(scores + mask) · V for `q` [B, H, new, D] and `keys`, `values` [B, Hk, S, D] → [B, H, new, D].

    `mask`: as in torch's scaled_dot_product_attention. None means causal, with new = S. A token that sees nothing gets
    zeros.
    """
    if layer.softcap is None and layer.sinks is None:
        return sdpa(q, keys, values, attn_mask=mask, is_causal=mask is None, scale=layer.scale, enable_gqa=True)
    keys, values = (kv.repeat_interleave(q.shape[1] // kv.shape[1], dim=1) for kv in (keys, values))
    scores = q @ keys.transpose(2, 3) * layer.scale
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    if mask is None:
        mask = torch.ones_like(scores[0, 0], dtype=torch.bool).tril()
    scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
    if layer.sinks is None:
        weights = scores.float().softmax(-1).masked_fill(scores == -torch.inf, 0)
    else:  # DECODE gives the heads that share a key head as new tokens, so sinks go by head, whatever the shape
        sinks = layer.sinks.float().view(1, keys.shape[1], -1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores.float(), sinks), dim=-1).softmax(-1)[..., :-1]
    return weights.to(values.dtype) @ values


class TorchNativeBackend:
    """EXTEND computes one request after another; DECODE is one batched product over gathered, padded K/V."""

    features = frozenset({SOFTCAP, SINKS, ENCODED_KV})
    attend = staticmethod(attend)

    def init_forward(self, metadata: InputMetadata) -> None:
        """Look up the slots once for all layers. Each window's masks are added by the first layer that needs them."""
        if metadata.forward_mode is ForwardMode.DECODE:
            positions = torch.arange(metadata.max_seq_len, device=metadata.seq_lens.device)
            distance = metadata.seq_lens[:, None] - 1 - positions
            index = (metadata.start_loc[:, None] + positions).where(distance >= 0, metadata.start_loc[:, None])
            metadata.attention_plan = DecodePlan(metadata.kv_indices[index], distance, {})
            return
        qo, kv = metadata.qo_indptr.tolist(), metadata.kv_indptr.tolist()
        metadata.attention_plan = ExtendPlan(
            spans=list(pairwise(qo)),
            slots=[metadata.kv_indices[start:end] for start, end in pairwise(kv)],
            masks={},
        )

    def forward_extend(self, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> torch.Tensor:
        """Causal attention for one request at a time: its new tokens attend to its prefix and to each other."""
        plan: ExtendPlan = metadata.attention_plan
        window = layer.sliding_window
        if window not in plan.masks:
            plan.masks[window] = [
                _extend_mask(end - start, len(slots), window, q.device)
                for (start, end), slots in zip(plan.spans, plan.slots, strict=True)
            ]
        out = torch.empty_like(q)
        for (start, end), slots, mask in zip(plan.spans, plan.slots, plan.masks[window], strict=True):
            keys, values = metadata.token_to_kv_pool.read(layer.layer_id, slots)  # [S, Hk, D]
            attended = self.attend(
                q[start:end].transpose(0, 1)[None],  # [1, H, new, D]
                keys.transpose(0, 1)[None],  # [1, Hk, S, D]
                values.transpose(0, 1)[None],
                mask,
                layer,
            )
            out[start:end] = attended[0].transpose(0, 1)
        return out

    def forward_decode(self, q: torch.Tensor, layer: AttentionLayer, metadata: InputMetadata) -> torch.Tensor:
        """The H / Hk query heads that share a key head are passed as query positions, so K and V are never repeated."""
        plan: DecodePlan = metadata.attention_plan
        window = layer.sliding_window
        if window not in plan.masks:
            seen = plan.distance >= 0
            if window is not None:
                seen &= plan.distance < window
            plan.masks[window] = seen[:, None, None]
        keys, values = metadata.token_to_kv_pool.read(layer.layer_id, plan.slots)  # [B, S, Hk, D]
        batch, heads, dim = q.shape
        grouped = q.view(batch, layer.num_kv_heads, heads // layer.num_kv_heads, dim)  # [B, Hk, H / Hk, D]
        attended = self.attend(grouped, keys.transpose(1, 2), values.transpose(1, 2), plan.masks[window], layer)
        return attended.reshape(batch, heads, dim)


def _extend_mask(new: int, total: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """Bool [new, total], True = see: the last `new` of `total` tokens see all tokens up to themselves, or `window` of them.

    None when torch's own causal mask is the same, because that is faster.
    """
    if new == total and (window is None or total <= window):
        return None
    query = torch.arange(total - new, total, device=device)[:, None]
    key = torch.arange(total, device=device)
    seen = key <= query
    return seen if window is None else seen & (query - key < window)


# Without cuDNN's, which torch takes first: for each new length it makes a plan, in 60 milliseconds on an H100, and with
# every token sequences have a new length.
ATTENTIONS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class TorchCudaBackend(TorchNativeBackend):
    """As it is fast on an NVIDIA GPU: only the choice among torch's implementations of attention differs."""

    @staticmethod
    def attend(
        q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, layer: AttentionLayer
    ) -> torch.Tensor:
        """As `attend`. K/V is repeated where new tokens have a mask: torch's fast attention with masks wants a key head
        for each query head."""
        if layer.softcap is not None or layer.sinks is not None:
            return attend(q, keys, values, mask, layer)
        shared = q.shape[1] // keys.shape[1]
        if shared > 1 and mask is not None:
            keys, values, shared = *(kv.repeat_interleave(shared, dim=1) for kv in (keys, values)), 1
        with sdpa_kernel(ATTENTIONS):
            return sdpa(
                q, keys, values, attn_mask=mask, is_causal=mask is None, scale=layer.scale, enable_gqa=shared > 1
            )
