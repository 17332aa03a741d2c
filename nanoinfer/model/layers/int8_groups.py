"""Int8Groups: linear weights that are in 8 bits already, with a scale per output channel and group of 32 inputs (GGUF's
Q8_0); activations stay precise.

    w = scale * q, q whole in -128..127
    y = float32 sum over groups of scale * (sum over the group of x * q) + bias, rounded to the model's dtype

The C++ kernel is that of weights in 4 bits (int4.cpp).
"""

import torch
from torch.nn.functional import pad

from nanoinfer.model.kernels import Kernels
from nanoinfer.model.kernels.select import Selection
from nanoinfer.model.layers.linear_weights import LinearWeights, columns, cpp_function, on_huge_pages

TILE_ROWS = 16  # what the C++ kernel pads activations to


class Int8Groups(LinearWeights):
    """`whole` [out, groups, 32] int8, `scale` [out, groups] float16, `bias` [out] or None.

    `packed` [blocks of columns, groups, words] int32 is what int4.cpp reads. Without that kernel, `whole` and `scale` are
    kept, and `selection` says why plain torch multiplies by them. ValueError for scales that are not finite.
    """

    def __init__(
        self, whole: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels, name: str
    ):
        if not scale.isfinite().all():
            raise ValueError(f"{name}: its 8-bit weights have scales with inf or NaN, must be finite")
        self.out_features, self.in_features = len(whole), whole[0].numel()
        self.bias = scale.new_zeros(len(whole), dtype=torch.float32) if bias is None else bias.float()
        self._linear, reason = cpp_function("int8_groups_linear", kernels)
        self.selection = Selection("int8", reason)
        if self._linear is None:
            self.whole, self.scale = whole, scale
        else:
            self.packed = on_huge_pages(pack(whole, scale), kernels)
            self.bias = pad(self.bias, (0, -self.out_features % columns()))

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [T, in] in the model's dtype → [T, out]."""
        if self._linear is None:
            weight = (self.whole * self.scale.float()[..., None]).flatten(1)
            return (x.float() @ weight.T + self.bias).to(x.dtype)
        x, rows = x.contiguous(), len(x)
        y = x.new_empty(rows, self.out_features)
        room = torch.empty(-(-rows // TILE_ROWS) * TILE_ROWS, self.in_features, dtype=torch.float32)
        pointers = (tensor.data_ptr() for tensor in (x, room, self.packed, self.bias, y))
        self._linear(*pointers, rows, self.in_features, self.out_features)
        return y


def pack(whole: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """[out, groups, 32] and [out, groups] → [blocks, groups, 8.5 columns] int32, in the order in which int4.cpp reads.

    A word has four inputs, 128 added to each.
    """
    side, groups = columns(), whole.shape[1]
    more = -len(whole) % side
    unsigned = pad(whole, (0, 0, 0, 0, 0, more)).view(torch.uint8) ^ 128  # adds 128
    words = unsigned.view(-1, side, groups, 8, 4).view(torch.int32)[..., 0].permute(0, 2, 3, 1).flatten(2)
    scales = pad(scale, (0, 0, 0, more)).view(-1, side, groups).transpose(1, 2).contiguous().flatten()
    return torch.cat((words, scales.view(torch.int32).view(-1, groups, side // 2)), dim=2)
