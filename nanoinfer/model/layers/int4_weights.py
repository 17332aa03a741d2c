"""Int4Weights: linear weights in 4 bits, one scale per output channel and group of 32 inputs; activations stay precise.

    w ≈ scale * q, q whole in -8..7          or, with a minimum for each group: w ≈ scale * q + minimum, q whole in 0..15
    y = float32 sum over groups of scale * (sum over the group of x * q) (+ minimum * (sum of x)) + bias, rounded to the
        model's dtype

4.5 bits per weight: 32 times 4, and 16 for the scale, in float16; with minimums, 5 bits. The C++ kernel writes x as
whole numbers of 15 bits (float32: 23), with a power of two for each group, and so adds up products exactly; see int4.cpp.
"""

import torch
from torch.nn.functional import pad

from nanoinfer.model.kernels import Kernels
from nanoinfer.model.kernels.select import Selection
from nanoinfer.model.layers.linear_weights import LinearWeights, columns, cpp_function, on_huge_pages
from nanoinfer.registry import QUANTIZATIONS

GROUP = 32
STEPS = (6, 6.5, 7, 7.5, 8, 8.5, 9)  # from 0 to a group's largest weight; what is then beyond -8..7 is clamped
PART = 4096  # groups quantized at a time: they stay in the processor's cache
TILE_ROWS = 16  # what the C++ kernel pads activations to


class Int4Weights(LinearWeights):
    """`weight` [out, in], `bias` [out] or None, `name`: as for DenseWeights.

    `packed` [blocks of columns, groups, words] int32 is what int4.cpp reads. Without that kernel, `whole` [out, groups, 32]
    int8, `scale` and `minimum` (or None) [out, groups] are kept, and `selection` says why plain torch multiplies by them.
    ValueError for a weight with NaN or anything from 1e5 on, which float16 could not scale.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels, name: str):
        if not weight.abs().amax() < 1e5:
            raise ValueError(f"quantization='int4': {name}.weight has NaN or too large numbers, must be below 1e5")
        self._keep(*quantize(weight), None, bias, kernels, weight.shape[1])

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


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[out, in] → whole numbers [out, groups, 32] int8 and scales [out, groups] float16; missing inputs are 0.

    Each of STEPS gives whole numbers q = round(group * steps / -largest), clamped to -8..7. The scale that fits them best
    is (group · q) / q², which leaves the squared error group² - (group · q)² / q². The best of these scales is rounded to
    float16, and the group is rounded once more, with that scale.
    """
    groups = pad(weight, (0, -weight.shape[1] % GROUP)).view(-1, GROUP)
    parts = [_quantize_part(part.float()) for part in groups.split(PART)]
    whole, scale = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    return whole.view(len(weight), -1, GROUP), scale.view(len(weight), -1)


def _quantize_part(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    largest = groups.gather(1, groups.abs().argmax(dim=1, keepdim=True))
    scale, explained = torch.ones_like(largest), torch.zeros_like(largest)
    for steps in STEPS:
        q = (groups * torch.where(largest == 0, 0, -steps / largest)).round_().clamp_(-8, 7)
        product = (groups * q).sum(dim=1, keepdim=True)
        fit = product / q.square_().sum(dim=1, keepdim=True).clamp_(min=1)
        better = fit * product > explained
        explained, scale = torch.where(better, fit * product, explained), torch.where(better, fit, scale)
    scale = scale.half()
    inverse = torch.where(scale == 0, 0, 1 / scale.float())
    return (groups * inverse).round_().clamp_(-8, 7).to(torch.int8), scale


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


QUANTIZATIONS["int4"] = Int4Weights
