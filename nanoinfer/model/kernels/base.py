"""The interface between the model's layers and the kernels that compute their arithmetic."""

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch


class AddedToGates(NamedTuple):
    """What adapters add to the gates and ups of some tokens: `delta` [T, 2 * size], for those whose entry of `adapters` [T]
    int32, on the host, is not −1."""

    delta: torch.Tensor
    adapters: torch.Tensor


class Dispatched(NamedTuple):
    """T tokens on their way to `top_k` of E experts each, sorted by expert.

    `x` [T * top_k, size]: expert e has the rows `starts[e]` .. `starts[e + 1] - 1`; `starts` [E + 1] int32. Row
    `places[t, k]` is token t on its way to the k-th of its experts, whose output counts with `weights[t, k]`: `places`
    [T, top_k] int32, `weights` [T, top_k] float32.
    """

    x: torch.Tensor
    starts: torch.Tensor
    places: torch.Tensor
    weights: torch.Tensor


class Kernels(Protocol):
    """The operations of a decoder except attention, each on `T` tokens at a time.

    TorchKernels defines the results; every other implementation gives the same numbers up to rounding.
    """

    def pack(self, weight: torch.Tensor) -> Any:
        """Return `weight` [out, in] in the layout that `linear` reads fastest. Called once, after loading."""
        ...

    def linear(self, x: torch.Tensor, packed: Any, bias: torch.Tensor | None, out_features: int) -> torch.Tensor:
        """`x` [T, in] times the packed weight's transpose, plus `bias` [out] → [T, out]."""
        ...

    def pack_gated(self, weight: torch.Tensor) -> Any:
        """Return `weight` [2 * size, in], gate and up one after the other, in the layout that `gated_linear` reads."""
        ...

    def gated_linear(
        self,
        x: torch.Tensor,
        packed: Any,
        bias: torch.Tensor | None,
        size: int,
        activation: str,
        added: AddedToGates | None = None,
    ) -> torch.Tensor:
        """The operation `activation`, "silu_and_mul" or "gelu_tanh_and_mul", of `linear` and what is `added` to it.

        `x` [T, in] → [T, size]; the same bits as one after the other. `packed` is `pack_gated`'s, `bias` [2 * size].
        """
        ...

    def linear_argmax(
        self, x: torch.Tensor, packed: Any, bias: torch.Tensor | None, out_features: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The number of each row's largest output, int64 [T], and that output, float32 [T].

        Ties go to the first, and NaN counts as the largest.
        """
        ...

    def embed(self, table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Rows `ids` [T] int64 of `table` [V, size] → [T, size]. IndexError for an id outside the table."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """`x / rms(x) * weight` over the last dimension: [..., size] → the same shape."""
        ...

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`(rms_norm(residual + x), residual + x)`, all [T, size]. May change `residual` in place."""
        ...

    def norm_heads(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """`rms_norm` of each head of `x` [T, heads, D], `weight` [D] → the same shape. Changes `x` in place."""
        ...

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Turn each pair (i, i + D/2) of `x` [T, heads, D] by its token's angle → the same shape.

        `cos` and `sin` [max_len, D/2], `positions` [T] int64. May change `x` in place.
        """
        ...

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """`silu(gate) * up` of `x` = [gate, up] side by side: [T, 2 * size] → [T, size]."""
        ...

    def gelu_tanh_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """`gelu(gate) * up` of `x` = [gate, up] side by side, GELU by its tanh formula: [T, 2 * size] → [T, size]."""
        ...

    def dispatch(self, x: torch.Tensor, logits: torch.Tensor, top_k: int, normalized: bool) -> Dispatched:
        """Choose the experts of each token of `x` [T, size]: those of the `top_k` largest `logits` [T, E], the first of
        equals first. Their weights are the softmax of the logits; if `normalized`, divided by their sum."""
        ...

    def combine(
        self,
        y: torch.Tensor,
        dispatched: Dispatched,
        shared: torch.Tensor | None = None,
        shared_gate: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The weighted sums of what the experts made of `dispatched.x`, `y` [T * top_k, size] → [T, size].

        `shared` [T, size], for all tokens, is added times the sigmoid of `shared_gate` [T, 1].
        """
        ...

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        """`x * factor`, `x` [T, size]. May change `x` in place."""
        ...

    def softcap(self, x: torch.Tensor, cap: float) -> torch.Tensor:
        """`cap * tanh(x / cap)`, `x` [T, size]. May change `x` in place."""
        ...

    def draw(
        self, scores: torch.Tensor, temperatures: np.ndarray, numbers: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw a token from each row of `scores` [T, V] float32, which are not changed: int64 [T].

        A row's scores, less their maximum and divided by the row's entry of `temperatures` [T] float32, are exponents of
        weights. The token is the first up to which these add up to more than the row's entry of `numbers` [T] float64,
        in [0, 1), times their total; with a temperature of 0, the first of the likeliest ones. The totals, float64 [T],
        come second: finite, except where a score is NaN or +infinity, or where all are -infinity. There, the token means
        nothing.
        """
        ...
