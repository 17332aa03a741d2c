"""Int4Weights: linear weights in 4 bits, each group of 32 inputs with a scale and a minimum; activations stay precise.

    w ≈ scale * q + minimum, q whole in 0..15
    y = float32 sum over groups of scale * (sum of x * q) + minimum * (sum of x), plus bias, rounded to the model's type

5 bits per weight: 32 times 4, and 16 for each of scale and minimum, which are in float16. (Weights that come in groups may
have no minimum: w = scale * q, q whole in -8..7.) The C++ kernel writes x as whole numbers of 15 bits (float32: 23), with a
power of two for each group, and so adds up products exactly; see int4.cpp. The head gets 8 bits, because errors in logits
cost most.
"""

import torch
from torch.nn.functional import pad

from nanoinfer.model.kernels import Kernels
from nanoinfer.model.kernels.select import Selection
from nanoinfer.model.layers.int8_weights import Int8Weights
from nanoinfer.model.layers.linear_weights import LinearWeights, columns, cpp_function, on_huge_pages
from nanoinfer.registry import QUANTIZATIONS

GROUP = 32
STEPS = (15, 14, 13)  # from a group's smallest weight to its largest
PART = 4096  # groups quantized at a time: they stay in the processor's cache
TILE_ROWS = 16  # what the C++ kernel pads activations to


class Int4Weights(LinearWeights):
    """`weight` [out, in], `bias` [out] or None, `name`: as for DenseWeights.

    `packed` [blocks of columns, groups, words] int32 is what int4.cpp reads. Without that kernel, `whole` [out, groups, 32]
    int8, `scale` and `minimum` (or None) [out, groups] are kept, and `selection` says why plain torch multiplies by them.
    ValueError for a weight with NaN or anything from 3e4 on, which may not fit into float16.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels, name: str):
        if not weight.abs().amax() < 3e4:
            raise ValueError(f"quantization='int4': {name}.weight has NaN or too large numbers, must be below 3e4")
        self._keep(*quantize(weight), bias, kernels, weight.shape[1])

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
        if not (scale.isfinite().all() and (minimum is None or minimum.isfinite().all())):
            raise ValueError(f"{name}: its 4-bit weights have scales or minimums with inf or NaN, must be finite")
        self = cls.__new__(cls)
        self._keep(whole, scale, minimum, bias, kernels, whole.shape[1] * GROUP)
        return self

    def _keep(
        self,
        whole: torch.Tensor,
        scale: torch.Tensor,
        minimum: torch.Tensor | None,
        bias: torch.Tensor | None,
        kernels: Kernels,
        in_features: int,
    ) -> None:
        self.out_features, self.in_features = len(whole), in_features
        self.bias = scale.new_zeros(self.out_features, dtype=torch.float32) if bias is None else bias.float()
        self._linear, reason = cpp_function("int4_linear" if minimum is None else "int4_minimum_linear", kernels)
        self.selection = Selection("int4", reason)
        if self._linear is None:
            self.whole, self.scale, self.minimum = whole.to(torch.int8), scale, minimum
        else:
            self.packed = on_huge_pages(pack(whole, scale, minimum), kernels)
            self.bias = pad(self.bias, (0, -self.out_features % columns()))

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [T, in] in the model's dtype → [T, out]."""
        if self._linear is None:
            minimum = 0 if self.minimum is None else self.minimum.float()[..., None]
            weight = (self.whole * self.scale.float()[..., None] + minimum).flatten(1)[:, : self.in_features]
            return (x.float() @ weight.T + self.bias).to(x.dtype)
        assert x.shape[1] == self.in_features
        x, rows = x.contiguous(), len(x)
        y = x.new_empty(rows, self.out_features)
        room = torch.empty(
            -(-rows // TILE_ROWS) * TILE_ROWS, -(-self.in_features // GROUP) * GROUP, dtype=torch.float32
        )
        pointers = (tensor.data_ptr() for tensor in (x, room, self.packed, self.bias, y))
        self._linear(*pointers, rows, self.in_features, self.out_features)
        return y

    @property
    def one_product(self) -> bool:
        """See LinearWeights."""
        return self._linear is not None


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


def pack(whole: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor | None) -> torch.Tensor:
    """[out, groups, 32] and [out, groups] → [blocks, groups, 4.5 or 5 columns] int32, in the order in which int4.cpp reads.

    A word has eight inputs, without a sign: 0 to 3 in the low halves of its bytes, 4 to 7 in the high ones.
    """
    side, groups = columns(), whole.shape[1]
    more = -len(whole) % side
    unsigned = (whole + 8 if minimum is None else whole).to(torch.uint8)
    eights = pad(unsigned, (0, 0, 0, 0, 0, more)).view(-1, side, groups, GROUP // 8, 8)
    bytes_ = eights[..., :4] | eights[..., 4:] << 4
    words = [bytes_.view(torch.int32)[..., 0].permute(0, 2, 3, 1).flatten(2)]
    for halves in (scale, minimum):
        if halves is not None:
            of_blocks = pad(halves, (0, 0, 0, more)).view(-1, side, groups).transpose(1, 2).contiguous().flatten()
            words.append(of_blocks.view(torch.int32).view(-1, groups, side // 2))
    return torch.cat(words, dim=2)


def four_bits(weight: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels, name: str) -> LinearWeights:
    """The kind `int4`: Int4Weights, but Int8Weights for the head."""
    return (Int8Weights if name == "lm_head" else Int4Weights)(weight, bias, kernels, name)


QUANTIZATIONS["int4"] = four_bits
