"""TellingIndex: a BlockIndex that tells a StoreyBlocks which blocks come and go, if somebody wants to know."""

from collections.abc import Callable, Hashable

import numpy as np

from nanoinfer.cache.storeys.block_index import Block, BlockIndex
from nanoinfer.cache.storeys.storey_blocks import StoreyBlocks


class TellingIndex(BlockIndex):
    """`listener`: who is told; None: nobody, and then it costs nothing."""

    def __init__(self, size: int, block_size: int, leaving: Callable[[Block], object] = lambda _: None):
        self.listener: StoreyBlocks | None = None
        super().__init__(size, block_size, leaving)

    def tell(self, listener: StoreyBlocks) -> None:
        """Tell `listener` of all blocks that are held, and from now on which come and go."""
        self.listener = listener
        for block in self:
            tokens, extra_key = self.tokens_of(block)
            listener.store(tokens, extra_key, [(block, len(tokens) // self.block_size - 1)])

    def clear(self) -> None:
        """As in BlockIndex."""
        if self.listener is not None:
            self.listener.remove(self)
        super().clear()

    def add(self, tokens: np.ndarray, extra_key: Hashable, start: int) -> tuple[np.ndarray, np.ndarray]:
        """As in BlockIndex."""
        positions, slots = super().add(tokens, extra_key, start)
        if self.listener is not None and positions.size:
            path = self._path(tokens, extra_key)
            numbers = (positions[:: self.block_size] // self.block_size).tolist()
            self.listener.store(tokens, extra_key, [(path[number], number) for number in numbers])
        return positions, slots

    def _drop(self, block: Block) -> None:
        super()._drop(block)
        if self.listener is not None:
            self.listener.remove([block])
