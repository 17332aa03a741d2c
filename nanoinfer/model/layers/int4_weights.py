"""Int4Weights: linear weights in 4 bits, each group of 32 inputs with a scale and a minimum; activations stay precise.

    w ≈ scale * q + minimum, q whole in 0..15

5 bits per weight; GroupedWeights say how they multiply. The head gets 8 bits, because errors in logits cost most.
"""

import torch
from torch.nn.functional import pad

from nanoinfer.model.kernels import Kernels
from nanoinfer.model.layers.grouped_weights import GROUP, GroupedWeights
from nanoinfer.model.layers.int8_weights import Int8Weights
from nanoinfer.model.layers.linear_weights import LinearWeights
from nanoinfer.registry import QUANTIZATIONS

STEPS = (15, 14, 13)  # from a group's smallest weight to its largest
PART = 4096  # groups quantized at a time: they stay in the processor's cache


class Int4Weights(GroupedWeights):
    """`weight` [out, in], `bias` [out] or None, `name`: as for DenseWeights.

    ValueError for a weight with NaN or anything from 3e4 on, which may not fit into float16.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels, name: str):
        if not weight.abs().amax() < 3e4:
            raise ValueError(f"quantization='int4': {name}.weight has NaN or too large numbers, must be below 3e4")
        super().__init__(4, *quantize(weight), bias, kernels, name, weight.shape[1])

    @classmethod
    def from_groups(
        cls,
        whole: torch.Tensor,
        scale: torch.Tensor,
        minimum: torch.Tensor | None,
        bias: torch.Tensor | None,
        kernels: Kernels,
        name: str,
    ) -> "Int4Weights":
        """Weights that are in 4 bits already: exactly `scale * whole` (GGUF's Q4_0), or `scale * whole + minimum` (Q4_1).

        `whole` [out, groups, 32], -8..7 or, with minimums, 0..15; `scale` and `minimum` [out, groups] float16.
        ValueError for scales or minimums that are not finite.
        """
        self = cls.__new__(cls)
        GroupedWeights.__init__(self, 4, whole, scale, minimum, bias, kernels, name)
        return self


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[out, in] → whole numbers [out, groups, 32] int8, scales and minimums [out, groups] float16; missing inputs are 0.

    Each of STEPS gives a scale and whole numbers. The line that fits these best, by least squares, gives the next scale and
    minimum, and these the next whole numbers, twice. Of the results in float16, the one with the smallest error is taken.
    """
    groups = pad(weight, (0, -weight.shape[1] % GROUP)).view(-1, GROUP)
    parts = [_quantize_part(part.float()) for part in groups.split(PART)]
    whole, scale, minimum = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    return whole.view(len(weight), -1, GROUP), scale.view(len(weight), -1), minimum.view(len(weight), -1)


def _quantize_part(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    low, high = groups.aminmax(dim=1, keepdim=True)
    mean = groups.mean(dim=1, keepdim=True)
    best: tuple[torch.Tensor, ...] = (groups, low, low)
    least = torch.full_like(low, torch.inf)
    for steps in STEPS:
        scale = (high - low) / steps
        minimum = (low + high) / 2 - 7.5 * scale
        for _ in range(2):
            q = _nearest(groups, scale, minimum)
            middle = q.mean(dim=1, keepdim=True)
            spread = (q - middle).square_().sum(dim=1, keepdim=True)
            fit = ((q - middle) * (groups - mean)).sum(dim=1, keepdim=True) / spread
            scale = torch.where(spread > 0, fit, scale)
            minimum = mean - scale * middle
        scale, minimum = scale.half(), minimum.half()
        q = _nearest(groups, scale.float(), minimum.float())
        error = (q * scale + minimum - groups).square_().sum(dim=1, keepdim=True)
        best = tuple(torch.where(error < least, new, old) for new, old in zip((q, scale, minimum), best, strict=True))
        least = torch.minimum(error, least)
    return best[0].to(torch.int8), best[1].half(), best[2].half()


def _nearest(groups: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> torch.Tensor:
    return ((groups - minimum) / scale).nan_to_num_(0).round_().clamp_(0, 15)


def four_bits(weight: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels, name: str) -> LinearWeights:
    """The kind `int4`: Int4Weights, but Int8Weights for the head."""
    return (Int8Weights if name == "lm_head" else Int4Weights)(weight, bias, kernels, name)


QUANTIZATIONS["int4"] = four_bits
