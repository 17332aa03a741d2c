"""OneDNNKernels: like TorchKernels, but weights are packed for oneDNN's matrix products once, not at every call."""

from typing import Any

import torch

from nanoinfer.kernels.torch_native import TorchKernels

PACKED_FOR = 16  # oneDNN chooses the layout for this number of tokens: a decode batch


class OneDNNKernels(TorchKernels):
    """Reorders weights into oneDNN's blocked layout at load time, as Inductor does for linear layers on a CPU."""

    @staticmethod
    def why_not(dtype: torch.dtype, device: torch.device) -> str | None:
        """Why these kernels cannot be used, or None if they can."""
        if device.type != "cpu":
            return f"device {device}: oneDNN's packed weights are for the CPU"
        if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            return "this build of torch has no oneDNN"
        if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return "oneDNN does not support bfloat16 on this CPU"
        if dtype not in (torch.float32, torch.bfloat16):
            return "oneDNN supports float32 and bfloat16 only"
        return None

    def pack(self, weight: torch.Tensor) -> Any:
        """An opaque tensor in oneDNN's layout."""
        return torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR)

    def linear(self, x: torch.Tensor, packed: Any, bias: torch.Tensor | None, out_features: int) -> torch.Tensor:
        """One oneDNN product, bias included."""
        return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
