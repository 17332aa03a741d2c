"""AdapterRows: which adapter each token of a pass uses, and tokens with the same adapter side by side."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

TILE_ROWS = 6  # tokens of a tile, at most: what the C++ kernel computes side by side


class AdapterRows:
    """The adapters of a pass's `T` new tokens, for the linear layers, which add what `tables` has for them. A row is here
    what a token has in a layer's input `x` [T, in].

    An adapter is a number: its slot in all tables. −1 is none. The C++ kernel reads the rows of adapted tokens in tiles of
    up to TILE_ROWS with the same adapter:

    - `of_rows` [T] int32: each token's adapter.
    - `rows` [T] int32: the adapted tokens, sorted by adapter; what is behind them means nothing.
    - `plan` [1 + 3 T] int32: the number of tiles, and for each its adapter, where it begins in `rows`, and its length.

    `tables`: for each linear layer that has adapters at all, what they add: a LowRankTable, on the device. The tensors here
    are on the host.
    """

    def __init__(self, of_rows: np.ndarray, tables: Mapping[Any, Any]):
        self.tables = tables
        self._some: tuple[torch.Tensor, AdapterRows] | None = None
        self._room: torch.Tensor | None = None
        self.of_rows, self.rows = (torch.full((len(of_rows),), -1, dtype=torch.int32) for _ in range(2))
        self.plan = torch.zeros(1 + 3 * len(of_rows), dtype=torch.int32)
        self.fill(of_rows)

    def fill(self, of_rows: np.ndarray) -> None:
        """Take other adapters, in place, [T]."""
        if np.array_equal(of_rows, self.of_rows.numpy()):
            return
        self.of_rows.numpy()[:] = of_rows
        rows = np.argsort(of_rows, kind="stable")
        rows = rows[np.count_nonzero(of_rows < 0) :]
        self.rows.numpy()[: len(rows)] = rows
        adapters, starts, counts = np.unique(of_rows[rows], return_index=True, return_counts=True)
        tiles = [
            (adapter, first, min(TILE_ROWS, start + count - first))
            for adapter, start, count in zip(adapters.tolist(), starts.tolist(), counts.tolist(), strict=True)
            for first in range(start, start + count, TILE_ROWS)
        ]
        plan = self.plan.numpy()
        plan[0] = len(tiles)
        plan[1 : 1 + 3 * len(tiles)] = np.array(tiles, dtype=np.int32).reshape(-1)

    def of(self, rows: torch.Tensor) -> "AdapterRows":
        """Those of some of the tokens, [k], in their order. It keeps the last answer: several layers ask for the same."""
        if self._some is None or self._some[0] is not rows:
            self._some = rows, AdapterRows(self.of_rows.numpy()[rows.cpu().numpy()], self.tables)
        return self._some[1]

    def room(self, like: torch.Tensor, columns: int) -> torch.Tensor:
        """Memory for [T, `columns`] numbers like those of `like` [T, ...], for one layer at a time. For a long prompt it is
        large, and the system takes its time for every new page."""
        if self._room is None or self._room.shape != (len(like), columns) or self._room.dtype is not like.dtype:
            self._room = like.new_empty(len(like), columns)
        return self._room

    def groups(self) -> list[tuple[int, torch.Tensor]]:
        """Every adapter in the pass and its tokens, int64."""
        of_rows = self.of_rows
        return [(int(slot), (of_rows == slot).nonzero()[:, 0]) for slot in of_rows.unique() if slot >= 0]
