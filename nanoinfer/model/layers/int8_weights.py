"""Int8Weights: linear weights in 8 bits, one scale per output channel; activations in 8 bits, one scale per token.

    x ≈ row_scale * q, w ≈ column_scale * w8; q and w8 are whole numbers in -127..127, the scales max|x| / 127, max|w| / 127
    y = float32(sum of q * w8) * (column_scale * row_scale) + bias, rounded to the model's dtype

The sums are exact, so neither their order nor the instructions that make them matter: the C++ kernel (int8.cpp) and the
plain torch below give the same bits on every machine. Symmetric scales per channel and token: Yao et al., ZeroQuant (2022).
"""

import torch
from torch.nn.functional import pad

from nanoinfer.model.kernels import Kernels
from nanoinfer.model.kernels.select import Selection
from nanoinfer.model.layers.linear_weights import LinearWeights, columns, cpp_function, on_huge_pages
from nanoinfer.registry import QUANTIZATIONS

LARGEST = 127
MOST_INPUTS = (2**31 - 1) // LARGEST**2  # sums of more products might not fit in 32 bits
EXACT_IN_FLOAT32 = 2**24 // LARGEST**2  # so many products of two such numbers add up without rounding
TILE_INPUTS, TILE_ROWS = 64, 16  # what the C++ kernel pads activations to


class Int8Weights(LinearWeights):
    """`weight` [out, in], `bias` [out] or None, `name`: as for DenseWeights.

    `packed` [groups, in / 4 + 3, columns] int32 is what int8.cpp reads. Without that kernel, `whole` [out, in] int8,
    `scale` [out] and `bias` [out] float32 are kept, and `selection` says why plain torch multiplies by them.
    ValueError for more inputs than MOST_INPUTS, and for a weight with inf or NaN.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels, name: str):
        self.out_features, self.in_features = weight.shape
        if self.in_features > MOST_INPUTS:
            raise ValueError(
                f"quantization='int8': {name} has {self.in_features} inputs, must be at most {MOST_INPUTS}"
            )
        whole, scale = quantize(weight)
        if not scale.isfinite().all():
            raise ValueError(f"quantization='int8': {name}.weight has inf or NaN, must be finite")
        bias = torch.zeros_like(scale) if bias is None else bias.float()
        self._linear, reason = cpp_function("int8_linear", kernels)
        self.selection = Selection("int8", reason)
        if self._linear is None:
            self.whole, self.scale, self.bias = whole, scale, bias
        else:
            self.packed = on_huge_pages(pack(whole, scale, bias), kernels)

    @classmethod
    def from_groups(
        cls, whole: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels, name: str
    ) -> "Int8Weights":
        """Weights that are in 8 bits already, and 32 inputs share a scale: `scale * whole` (Q8_0 in GGUF).

        `whole` [out, groups, 32] int8, `scale` [out, groups] float16. Activations stay precise; plain torch multiplies.
        ValueError for scales that are not finite.
        """
        if not scale.isfinite().all():
            raise ValueError(f"{name}: its 8-bit weights have scales with inf or NaN, must be finite")
        self = cls.__new__(cls)
        self.out_features, self.in_features = len(whole), whole[0].numel()
        self._linear, self.selection = None, Selection("int8", "plain torch, since each group has its scale")
        self.whole, self.scale = whole, scale
        self.bias = scale.new_zeros(len(whole), dtype=torch.float32) if bias is None else bias.float()
        return self

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [T, in] in the model's dtype → [T, out]."""
        if self._linear is None and self.scale.ndim == 2:
            weight = (self.whole * self.scale.float()[..., None]).flatten(1)
            return (x.float() @ weight.T + self.bias).to(x.dtype)
        if self._linear is None:
            return self._in_torch(x)
        assert x.shape[1] == self.in_features
        x, rows = x.contiguous(), len(x)
        y = x.new_empty(rows, self.out_features)
        tiles = -(-rows // TILE_ROWS) * -(-self.in_features // TILE_INPUTS)
        q = torch.empty(tiles * TILE_ROWS * TILE_INPUTS, dtype=torch.uint8)
        scales = torch.empty(rows, dtype=torch.float32)
        pointers = (tensor.data_ptr() for tensor in (x, q, scales, self.packed, y))
        self._linear(*pointers, rows, self.in_features, self.out_features)
        return y

    @property
    def one_product(self) -> bool:
        """See LinearWeights."""
        return self._linear is not None

    def _in_torch(self, x: torch.Tensor) -> torch.Tensor:
        q, row_scale = quantize(x)
        return finish(exact_sums(q, self.whole), row_scale, self.scale, self.bias, x.dtype)


def quantize(rows: torch.Tensor, most: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, size] → whole numbers [n, size] int8 and scales [n] float32. A row with inf or NaN gets the scale NaN; a row with
    nothing above 1e-30 becomes 0. `most`: the largest magnitude in each whole row, if these are only parts of rows."""
    rows = rows.float()
    most = rows.abs().amax(dim=1) if most is None else most
    largest = rows.new_full((), LARGEST)  # as a tensor: by a number, torch multiplies by 1 / it
    inverse = torch.where((most >= 1e-30) & most.isfinite(), largest / most, 0)
    whole = (rows.nan_to_num(0, 0, 0) * inverse[:, None]).round().to(torch.int8)
    return whole, torch.where(most.isfinite(), most / largest, torch.nan)


def exact_sums(q: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """The sums of products of `q` [n, in] and `whole` [out, in], both int8: int32 [n, out]."""
    sums = torch.zeros(len(q), len(whole), dtype=torch.int32, device=q.device)
    for first in range(0, q.shape[1], EXACT_IN_FLOAT32):
        part = slice(first, first + EXACT_IN_FLOAT32)
        sums += (q[:, part].float() @ whole[:, part].float().T).int()
    return sums


def finish(
    sums: torch.Tensor, row_scale: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """What `exact_sums` [n, out] stand for, in `dtype`: scaled by `row_scale` [n] and `scale` [out], plus `bias` [out]."""
    return (sums.float() * (scale * row_scale[:, None]) + bias).to(dtype)


def pack(whole: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """[out, in], [out], [out] → [groups, in / 4 + 3, columns] int32, in the order in which int8.cpp reads it."""
    side = columns()
    out_features, in_features = whole.shape
    more = -out_features % side
    whole = pad(whole, (0, -in_features % TILE_INPUTS, 0, more))
    words = whole.view(-1, side, whole.shape[1] // 4, 4).transpose(1, 2).contiguous().view(torch.int32)[..., 0]
    offset = 128 * whole.sum(dim=1, dtype=torch.int32)
    after = [pad(scale, (0, more)).view(torch.int32), offset, pad(bias, (0, more)).view(torch.int32)]
    return torch.cat((words, *(numbers.view(-1, 1, side) for numbers in after)), dim=1)


QUANTIZATIONS["int8"] = Int8Weights
