"""GroupedWeights: linear weights in few bits, in which each group of 32 inputs has a scale, and may have a minimum.

    w = scale * q, q whole in -8..7 or -128..127          w = scale * q + minimum, q whole in 0..15
    y = float32 sum over groups of scale * (sum of x * q) (+ minimum * (sum of x)), plus bias, rounded to the model's type

Scales and minimums are in float16: 4 bits become 4.5 or 5, and 8 become 8.5. The C++ kernel writes x as whole numbers of up
to 23 bits, with a power of two for each group, and so adds up products exactly; see int4.cpp.
"""

import torch
from torch.nn.functional import pad

from nanoinfer.model.kernels import Kernels
from nanoinfer.model.kernels.select import Selection
from nanoinfer.model.layers.linear_weights import LinearWeights, columns, cpp_function, on_huge_pages

GROUP = 32
TILE_ROWS = 16  # what the C++ kernel pads activations to


class GroupedWeights(LinearWeights):
    """Exactly these weights of `bits` 4 or 8. `whole` [out, groups, 32], `scale` [out, groups] float16, `minimum` the same
    or None (8 bits have none); `in_features`: if the last group is not full; `bias`, `name`: as for DenseWeights.

    `packed` [blocks of columns, groups, words] int32 is what int4.cpp reads. Without that kernel, `whole` int8, `scale` and
    `minimum` are kept, and `selection` says why plain torch multiplies by them. ValueError if they are not finite.
    """

    def __init__(
        self,
        bits: int,
        whole: torch.Tensor,
        scale: torch.Tensor,
        minimum: torch.Tensor | None,
        bias: torch.Tensor | None,
        kernels: Kernels,
        name: str,
        in_features: int | None = None,
    ):
        if not (scale.isfinite().all() and (minimum is None or minimum.isfinite().all())):
            raise ValueError(f"{name}: its {bits}-bit weights have scales or minimums with inf or NaN, must be finite")
        self.out_features, self.in_features = len(whole), in_features or whole.shape[1] * GROUP
        self.bias = scale.new_zeros(self.out_features, dtype=torch.float32) if bias is None else bias.float()
        function = "int8_groups_linear" if bits == 8 else "int4_linear" if minimum is None else "int4_minimum_linear"
        self._linear, reason = cpp_function(function, kernels)
        self.selection = Selection(f"int{bits}", reason)
        if self._linear is None:
            self.whole, self.scale, self.minimum = whole.to(torch.int8), scale, minimum
        else:
            self.packed = on_huge_pages(pack(bits, whole, scale, minimum), kernels)
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


def pack(bits: int, whole: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor | None) -> torch.Tensor:
    """[out, groups, 32] and [out, groups] → [blocks, groups, (bits + 0.5 or 1) * columns] int32, as int4.cpp reads it.

    Numbers lose their sign. A word has four inputs of 8 bits, or eight of 4: 0 to 3 in the low halves of its bytes, 4 to 7
    in the high ones.
    """
    side, groups = columns(), whole.shape[1]
    more = -len(whole) % side
    unsigned = (whole.short() + (1 << (bits - 1)) if minimum is None else whole).to(torch.uint8)
    numbers = pad(unsigned, (0, 0, 0, 0, 0, more)).view(-1, side, groups, bits, GROUP // bits)
    bytes_ = numbers if bits == 8 else numbers[..., :4] | numbers[..., 4:] << 4
    words = [bytes_.contiguous().view(torch.int32)[..., 0].permute(0, 2, 3, 1).flatten(2)]
    for halves in (scale, minimum):
        if halves is not None:
            of_blocks = pad(halves, (0, 0, 0, more)).view(-1, side, groups).transpose(1, 2).contiguous().flatten()
            words.append(of_blocks.view(torch.int32).view(-1, groups, side // 2))
    return torch.cat(words, dim=2)
