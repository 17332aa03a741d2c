"""Int8Weights: linear weights in 8 bits, one scale per output channel; activations in 8 bits, one scale per group of 128.

    each 64 inputs of x and w are turned by a Hadamard matrix H first: x · w = (H x) · (H w) / 64
    H x ≈ group_scale * q, H w / 64 ≈ column_scale * w8; q and w8 are whole numbers in -127..127, the scales max|·| / 127
    y = (float32 sum over groups of float32(sum of q * w8) * group_scale) * column_scale + bias, rounded to the model's type

Some channels of real activations are many times as large as all others, and would leave these few of the 8 bits. H spreads
each number over 64 (Ashkboos et al., QuaRot, 2024). A group's sum is exact, and the rest is done in one order. So the C++
kernel (int8.cpp) and the plain torch below give the same bits on every machine.
"""

import torch
from torch.nn.functional import pad

from nanoinfer.model.kernels import Kernels
from nanoinfer.model.kernels.select import Selection
from nanoinfer.model.layers.grouped_weights import GroupedWeights
from nanoinfer.model.layers.linear_weights import LinearWeights, columns, cpp_function, on_huge_pages
from nanoinfer.registry import QUANTIZATIONS

LARGEST = 127
TURNED, GROUP = 64, 128  # inputs that are turned together, and whose activations share a scale
TILE_ROWS = 16  # what the C++ kernel pads activations to


class Int8Weights(LinearWeights):
    """`weight` [out, in], `bias` [out] or None, `name`: as for DenseWeights.

    `packed` [blocks of columns, in / 4 + 2, columns] int32 is what int8.cpp reads. Without that kernel, `whole` [out, in up
    to 64s] int8, `scale` and `bias` [out] float32 are kept, and `selection` says why plain torch multiplies by them.
    ValueError for a weight with inf or NaN.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels, name: str):
        self.out_features, self.in_features = weight.shape
        whole, scale = quantize(turned(weight) / TURNED)
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
    ) -> GroupedWeights:
        """Weights that are in 8 bits already, and 32 inputs share a scale: exactly `scale * whole` (Q8_0 in GGUF).

        `whole` [out, groups, 32] int8, `scale` [out, groups] float16. Activations stay precise.
        ValueError for scales that are not finite.
        """
        return GroupedWeights(8, whole, scale, None, bias, kernels, name)

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [T, in] in the model's dtype → [T, out]."""
        if self._linear is None:
            return self._in_torch(x)
        assert x.shape[1] == self.in_features
        x, rows = x.contiguous(), len(x)
        y = x.new_empty(rows, self.out_features)
        tiles, groups = -(-rows // TILE_ROWS), -(-self.in_features // GROUP)
        room = torch.empty(tiles * TILE_ROWS * groups, GROUP + 8, dtype=torch.int8)
        pointers = (tensor.data_ptr() for tensor in (x, room, self.packed, y))
        self._linear(*pointers, rows, self.in_features, self.out_features)
        return y

    @property
    def one_product(self) -> bool:
        """See LinearWeights."""
        return self._linear is not None

    def _in_torch(self, x: torch.Tensor) -> torch.Tensor:
        numbers = turned(x)
        sums = numbers.new_zeros(len(x), self.out_features)
        for group, weights in zip(numbers.split(GROUP, dim=1), self.whole.float().split(GROUP, dim=1), strict=True):
            q, scale = quantize(group)
            sums += (q.float() @ weights.T) * scale[:, None]  # the sums of products are below 2^24, so they are exact
        return (sums * self.scale + self.bias).to(x.dtype)


def turned(rows: torch.Tensor) -> torch.Tensor:
    """[n, size] → float32 [n, size up to a multiple of 64]: each 64 of a row (or 0s) times the Hadamard matrix."""
    numbers = pad(rows.float(), (0, -rows.shape[1] % TURNED))
    step = 1
    while step < TURNED:  # each pair that is `step` apart becomes its sum and its difference
        first, second = numbers.unflatten(1, (-1, 2, step)).unbind(2)
        numbers = torch.stack((first + second, first - second), dim=2).flatten(1)
        step *= 2
    return numbers


def quantize(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, size] float32 → whole numbers [n, size] int8 and scales [n] float32. A row with inf or NaN gets the scale NaN;
    one with nothing above 1e-30 becomes 0."""
    most = rows.abs().amax(dim=1)
    largest = rows.new_full((), LARGEST)  # as a tensor: by a number, torch multiplies by 1 / it
    inverse = torch.where((most >= 1e-30) & most.isfinite(), largest / most, 0)
    whole = (rows.nan_to_num(0, 0, 0) * inverse[:, None]).round().to(torch.int8)
    return whole, torch.where(most.isfinite(), most / largest, torch.nan)


def pack(whole: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """[out, in], [out], [out] → [blocks, in / 4 + 2, columns] int32, in the order in which int8.cpp reads it."""
    side = columns()
    more = -len(whole) % side
    unsigned = pad(whole, (0, 0, 0, more)).to(torch.uint8) ^ 128  # adds 128 to each
    words = unsigned.view(-1, side, whole.shape[1] // 4, 4).transpose(1, 2).contiguous().view(torch.int32)[..., 0]
    after = (pad(numbers, (0, more)).view(torch.int32).view(-1, 1, side) for numbers in (scale, bias))
    return torch.cat((words, *after), dim=1)


QUANTIZATIONS["int8"] = Int8Weights
