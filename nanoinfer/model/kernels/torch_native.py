"""TorchKernels: plain torch, on any device. All other kernels are tested against it. OneDNNKernels: the same, but weights
are packed for oneDNN's matrix products once, not at every call."""

from typing import Any

import numpy as np
import torch
from torch.nn.functional import embedding, gelu, linear, silu

from nanoinfer.model.kernels.base import AddedToGates, Dispatched


class TorchKernels:
    """One torch operation after another, just like the formulas."""

    def pack(self, weight: torch.Tensor) -> Any:
        """Return the weight itself."""
        return weight

    def linear(self, x: torch.Tensor, packed: Any, bias: torch.Tensor | None, out_features: int) -> torch.Tensor:
        """`x @ weight.T + bias`."""
        return linear(x, packed, bias)

    def pack_gated(self, weight: torch.Tensor) -> Any:
        """The same layout as for any product."""
        return self.pack(weight)

    def gated_linear(
        self,
        x: torch.Tensor,
        packed: Any,
        bias: torch.Tensor | None,
        size: int,
        activation: str,
        added: AddedToGates | None = None,
    ) -> torch.Tensor:
        """The product of both, then the activation."""
        both = self.linear(x, packed, bias, 2 * size)
        if added is not None:
            adapted = (added.adapters >= 0).nonzero()[:, 0].to(x.device)
            both[adapted] += added.delta[adapted]
        result: torch.Tensor = getattr(self, activation)(both)
        return result

    def linear_argmax(
        self, x: torch.Tensor, packed: Any, bias: torch.Tensor | None, out_features: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The product, then its maximum."""
        largest, token_ids = self.linear(x, packed, bias, out_features).max(dim=-1)
        return token_ids, largest.float()

    def embed(self, table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """One row per token."""
        return embedding(ids, table)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """The mean square is in float32; the result is rounded before it is multiplied by the weight (as Hugging Face)."""
        x32 = x.float()
        x32 = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
        return weight * x32.to(x.dtype)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """First the sum, then its norm."""
        residual = residual + x
        return self.rms_norm(residual, weight, eps), residual

    def norm_heads(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Like `rms_norm`, but in place."""
        return x.copy_(self.rms_norm(x, weight, eps))

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotate points, whose coordinates are element i of a head's first half and element i of its second half."""
        c, s = cos[positions, None], sin[positions, None]  # [T, 1, D/2], the same for every head
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * c - second * s, second * c + first * s), dim=-1)

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """SiLU of the first half, times the second half."""
        gate, up = x.chunk(2, dim=-1)
        return silu(gate) * up

    def gelu_tanh_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """GELU of the first half, times the second half."""
        gate, up = x.chunk(2, dim=-1)
        return gelu(gate, approximate="tanh") * up

    def dispatch(self, x: torch.Tensor, logits: torch.Tensor, top_k: int, normalized: bool) -> Dispatched:
        """By two stable sorts: of each token's logits, and of all choices by expert."""
        chosen = logits.argsort(dim=-1, descending=True, stable=True)[:, :top_k]
        weights = logits.float().softmax(dim=-1).gather(1, chosen)
        if normalized:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        of_experts, order = chosen.flatten().sort(stable=True)
        starts = torch.searchsorted(of_experts, torch.arange(logits.shape[1] + 1, device=x.device)).int()
        places = order.argsort().int().view(chosen.shape)
        return Dispatched(x[order // top_k], starts, places, weights)

    def combine(
        self,
        y: torch.Tensor,
        dispatched: Dispatched,
        shared: torch.Tensor | None = None,
        shared_gate: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """In float32, rounded once."""
        total = (y[dispatched.places.long()].float() * dispatched.weights[:, :, None]).sum(dim=1)
        if shared is not None and shared_gate is not None:
            total += shared_gate.float().sigmoid() * shared
        return total.to(y.dtype)

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        """One product per element."""
        return x * factor

    def softcap(self, x: torch.Tensor, cap: float) -> torch.Tensor:
        """The bound is smooth: small values hardly change."""
        return torch.tanh(x / cap) * cap

    def draw(
        self, scores: torch.Tensor, temperatures: np.ndarray, numbers: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """By the cumulative distribution of all tokens. The maximum is subtracted before the division: a tiny temperature
        can then make -infinity of a score, but never NaN."""
        likeliest = np.flatnonzero(temperatures == 0)
        divisors = np.where(temperatures == 0, np.float32(1), temperatures)[:, None]
        if scores.device.type != "cpu":
            divisor, number = (torch.from_numpy(array).to(scores.device) for array in (divisors, numbers[:, None]))
            scaled = (scores - scores.amax(dim=-1, keepdim=True)) / divisor
            sums = scaled.double().exp().cumsum(dim=-1)
            total = sums[:, -1:]
            target = (number * total).minimum(total.nextafter(torch.zeros_like(total)))  # not past the last token
            token_ids, totals = torch.searchsorted(sums, target, right=True)[:, 0], total[:, 0]
            if len(likeliest):
                token_ids[likeliest] = scores[likeliest].argmax(dim=-1)
            return token_ids, totals
        rows = scores.numpy()  # on a CPU, numpy is faster for a few rows
        with np.errstate(over="ignore", invalid="ignore"):
            weights = np.exp((rows - rows.max(axis=-1, keepdims=True)) / divisors)
        cumulated = weights.cumsum(axis=-1, dtype=np.float64)
        masses = cumulated[:, -1]
        targets = np.minimum(numbers * masses, np.nextafter(masses, 0.0))
        tokens = np.array([row.searchsorted(target, "right") for row, target in zip(cumulated, targets, strict=True)])
        if len(likeliest):
            tokens[likeliest] = rows[likeliest].argmax(axis=-1)
        return torch.from_numpy(tokens.astype(np.int64)), torch.from_numpy(masses.copy())


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
