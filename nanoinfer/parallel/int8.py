"""RowSplitInt8Weights: the weights of int8_weights.py for a layer whose inputs are split over ranks.

Weights and activations get the scales that they would have in one process: those of the largest magnitude over all ranks.
Then every rank has a part of the same whole numbers, and the sums of its products are whole numbers, too. They are added up
exactly, so the result has the bits of a single process.
"""

import torch

from nanoinfer.kernels import Kernels
from nanoinfer.kernels.select import Selection
from nanoinfer.model.layers.int8_weights import MOST_INPUTS, exact_sums, finish, quantize
from nanoinfer.parallel.communicator import Communicator


class RowSplitInt8Weights:
    """`weight` [out, this rank's inputs]; the rest, and the errors, as for Int8Weights. Plain torch multiplies."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        kernels: Kernels,
        name: str,
        communicator: Communicator,
    ):
        self._communicator = communicator
        self.whole, self.scale = quantize(weight, self._largest_of_all(weight))
        if not self.scale.isfinite().all():
            raise ValueError(f"quantization='int8': {name}.weight has inf or NaN, must be finite")
        inputs = int(communicator.all_reduce(torch.tensor([weight.shape[1]], dtype=torch.int32)))
        if inputs > MOST_INPUTS:
            raise ValueError(f"quantization='int8': {name} has {inputs} inputs, must be at most {MOST_INPUTS}")
        self.bias = torch.zeros_like(self.scale) if bias is None else bias.float()
        self.selection = Selection("int8", "")

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [T, this rank's inputs] → [T, out], complete, the same in all ranks."""
        q, row_scale = quantize(x, self._largest_of_all(x))
        sums = self._communicator.all_reduce(exact_sums(q, self.whole))
        return finish(sums, row_scale, self.scale, self.bias, x.dtype)

    def _largest_of_all(self, rows: torch.Tensor) -> torch.Tensor:
        """The largest magnitude in each row of which all ranks have parts, float32 [n]. NaN counts as the largest."""
        return self._communicator.all_reduce_max(rows.float().abs().amax(dim=1))
