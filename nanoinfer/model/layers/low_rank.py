"""LowRankTable: what adapters add to a linear layer. It is where LoRA (Hu et al., 2021) is computed.

    y = x W^T + bias + scale * (x A^T) B^T         A [rank, in], B [columns, rank]: two thin matrices for each projection

Merged into W, an adapter would cost nothing, but then all tokens would have the same. Here each token of a pass has its
own, or none: AdapterRows says which. It costs what the adapters in the pass read and compute, whatever else is loaded.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.functional import pad

from nanoinfer.model.adapter_rows import AdapterRows
from nanoinfer.model.kernels import Kernels
from nanoinfer.model.kernels.huge_pages import HugePages
from nanoinfer.model.layers.linear_weights import columns, cpp_function

MOST_PARTS = 3  # projections in one linear layer: q, k and v
RANKS, WORDS = 8, 16  # the C++ kernel reads A in multiples of so many rows and, in each, of so many words


@dataclass(frozen=True, eq=False)
class LowRankPart:
    """What an adapter adds to the outputs from `first` on of a linear layer: `a` [rank, in], `b` [columns, rank]."""

    a: torch.Tensor
    b: torch.Tensor
    scale: float
    first: int = 0


class LowRankTable(Protocol):
    """The adapters of one linear layer, each in a slot of its own. What is in them is of the kind that `pack` makes."""

    def pack(self, parts: Sequence[LowRankPart], memory: HugePages) -> Any:
        """Bring an adapter's parts into the form that is read, on the device; `memory` is for what the CPU reads. Changes
        nothing else; any thread may call it."""
        ...

    def put(self, slot: int, packed: Any) -> bool:
        """Put what `pack` returned into a slot. True if passes that were captured before cannot compute it."""
        ...

    def clear(self, slot: int) -> None:
        """Empty a slot: an adapter without parts for this layer, or none."""
        ...

    def shrink(self) -> bool:
        """Give back the room that only adapters needed that have left. True if captured graphs still take it."""
        ...

    def add(self, x: torch.Tensor, y: torch.Tensor, adapters: AdapterRows) -> torch.Tensor:
        """`y` [T, out] plus what the tokens' adapters make of `x` [T, in]. May change `y` in place."""
        ...

    def delta(self, x: torch.Tensor, adapters: AdapterRows) -> torch.Tensor:
        """Only what is added, [T, out]; for tokens without an adapter, it means nothing. The next layer's overwrites it."""
        ...


class TorchLowRank:
    """In plain torch, one adapter after another."""

    def __init__(self, in_features: int, out_features: int, slots: int, dtype: torch.dtype, device: torch.device):
        self.out_features, self._dtype, self._device = out_features, dtype, device
        self._slots: list[Sequence[LowRankPart]] = [()] * slots

    def pack(self, parts: Sequence[LowRankPart], memory: HugePages) -> Sequence[LowRankPart]:
        """The same parts in the model's dtype, on its device."""
        to = (self._device, self._dtype)
        return [LowRankPart(part.a.to(*to), part.b.to(*to), part.scale, part.first) for part in parts]

    def put(self, slot: int, packed: Sequence[LowRankPart]) -> bool:
        """As in LowRankTable."""
        self._slots[slot] = packed
        return False

    def clear(self, slot: int) -> None:
        """As in LowRankTable."""
        self._slots[slot] = ()

    def shrink(self) -> bool:
        """As in LowRankTable."""
        return False

    def add(self, x: torch.Tensor, y: torch.Tensor, adapters: AdapterRows) -> torch.Tensor:
        """As in LowRankTable."""
        for slot, tokens in adapters.groups():
            tokens = tokens.to(x.device)
            for part in self._slots[slot]:
                outputs = slice(part.first, part.first + len(part.b))
                y[tokens, outputs] += (x[tokens] @ part.a.T) @ part.b.T * part.scale
        return y

    def delta(self, x: torch.Tensor, adapters: AdapterRows) -> torch.Tensor:
        """As in LowRankTable; zeros for tokens without an adapter."""
        return self.add(x, x.new_zeros(len(x), self.out_features), adapters)


@dataclass(frozen=True, eq=False)
class _Packed:
    """An adapter of one layer as low_rank.cpp reads it: the words of its entry in the table, and what they point to."""

    entry: list[int]
    ranks: int
    tensors: list[torch.Tensor]


class CppLowRank:
    """By the C++ kernel, all tokens at once. A token gets the same bits whatever tokens are beside it."""

    WORDS = 3 + 6 * MOST_PARTS  # of 8 bytes, in an entry of the table: a `LowRank` of low_rank.cpp

    def __init__(self, in_features: int, out_features: int, slots: int, dtype: torch.dtype, function: Any):
        self.in_features, self.out_features, self._dtype, self._function = in_features, out_features, dtype, function
        self._step = 4 // dtype.itemsize  # elements in a word
        self.table = np.zeros((slots, self.WORDS), dtype=np.int64)  # it never moves: captured graphs point to it
        self.most_ranks = RANKS  # of an adapter here
        self._packed: list[_Packed | None] = [None] * slots

    def pack(self, parts: Sequence[LowRankPart], memory: HugePages) -> _Packed:
        """All A below each other, each filled up with zeros to whole words of ranks; B as `linear` packs its weights."""
        side, step, dtype = columns(), self._step, self._dtype
        below = torch.cat([pad(part.a.to(dtype), (0, 0, 0, -len(part.a) % step)) for part in parts])
        ranks = len(below)
        below = memory.copy(pad(below, (0, -self.in_features % (WORDS * step), 0, -ranks % RANKS)))
        entry, tensors, rank = [below.data_ptr(), len(below), len(parts)], [below], 0
        for part in parts:
            b = pad(part.b.to(dtype), (0, -part.b.shape[1] % step, 0, -len(part.b) % side))
            tensors.append(memory.copy(b.view(-1, side, b.shape[1] // step, step).transpose(1, 2)))
            (scale,) = struct.unpack("=q", struct.pack("=d", part.scale))
            entry += [tensors[-1].data_ptr(), part.first, len(part.b), rank, b.shape[1], scale]
            rank += b.shape[1]
        return _Packed(entry + [0] * (self.WORDS - len(entry)), len(below), tensors)

    def put(self, slot: int, packed: _Packed) -> bool:
        """As in LowRankTable. A captured graph has room for the ranks of adapters that were here when it was captured."""
        self._packed[slot], grown = packed, packed.ranks > self.most_ranks
        self.most_ranks = max(self.most_ranks, packed.ranks)
        self.table[slot] = packed.entry
        return grown

    def clear(self, slot: int) -> None:
        """As in LowRankTable."""
        self.table[slot], self._packed[slot] = 0, None

    def shrink(self) -> bool:
        """As in LowRankTable: the room in a pass for ranks, of which those that are here need less."""
        before, self.most_ranks = self.most_ranks, max([RANKS, *(packed.ranks for packed in self._packed if packed)])
        return self.most_ranks < before

    def add(self, x: torch.Tensor, y: torch.Tensor, adapters: AdapterRows) -> torch.Tensor:
        """As in LowRankTable."""
        self._call(x, y.data_ptr(), y, adapters)
        return y

    def delta(self, x: torch.Tensor, adapters: AdapterRows) -> torch.Tensor:
        """As in LowRankTable."""
        to = adapters.room(x, self.out_features)
        self._call(x, 0, to, adapters)
        return to

    def _call(self, x: torch.Tensor, start: int, to: torch.Tensor, adapters: AdapterRows) -> None:
        x = x.contiguous()
        assert x.shape[1] == self.in_features
        assert to.is_contiguous()
        most_ranks = self.most_ranks  # read once: another thread may put a larger adapter into its slot meanwhile
        hidden = x.new_empty(len(x), most_ranks)
        plan = (self.table.ctypes.data, adapters.plan.data_ptr(), adapters.rows.data_ptr())
        self._function(
            x.data_ptr(), start, to.data_ptr(), hidden.data_ptr(), *plan, self.in_features, to.shape[1], most_ranks
        )


def make_low_rank(linear: Any, kernels: Kernels, slots: int, dtype: torch.dtype, device: torch.device) -> LowRankTable:
    """Room for `slots` adapters of `linear`, a Linear, for the kernels that compute its products."""
    function, _ = cpp_function("low_rank", kernels)
    sizes = (linear.in_features, linear.out_features, slots, dtype)
    return TorchLowRank(*sizes, device) if function is None else CppLowRank(*sizes, function)
