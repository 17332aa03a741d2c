"""TorchCudaBackend: `torch_native` as it is fast on an NVIDIA GPU."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from nanoinfer.model.attention.base import AttentionLayer
from nanoinfer.model.attention.torch_native import TorchNativeBackend, attend

# Without cuDNN's, which torch takes first: for each new length it makes a plan, in 60 milliseconds on an H100, and with
# every token sequences have a new length.
ATTENTIONS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class TorchCudaBackend(TorchNativeBackend):
    """The same passes; only the choice among torch's implementations of attention differs."""

    @staticmethod
    def attend(
        q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, layer: AttentionLayer
    ) -> torch.Tensor:
        """As `attend`. K/V is repeated where new tokens have a mask: torch's fast attention with masks wants a key head
        for each query head."""
        if layer.softcap is not None:
            return attend(q, keys, values, mask, layer)
        shared = q.shape[1] // keys.shape[1]
        if shared > 1 and mask is not None:
            keys, values, shared = *(kv.repeat_interleave(shared, dim=1) for kv in (keys, values)), 1
        with sdpa_kernel(ATTENTIONS):
            return scaled_dot_product_attention(
                q, keys, values, attn_mask=mask, is_causal=mask is None, scale=layer.scale, enable_gqa=shared > 1
            )
