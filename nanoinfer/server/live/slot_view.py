"""The map of slots in a frame: who owns each slot, in a bounded number of cells."""

from collections.abc import Iterable, Mapping

import numpy as np

from nanoinfer.cache.indices import consecutive_runs
from nanoinfer.cache.memory_pool import TokenToKVPool
from nanoinfer.cache.tree_node import TreeNode

FREE, TREE, LOCKED, OTHER, FIRST_REQUEST = range(5)  # what a cell shows; a request: FIRST_REQUEST + its number
LINE = 64  # cells that travel together when one of them changes
LEAST_SHOWN = 512  # slots of a pool that is hardly used


class SlotView:
    """Shows the lowest slots of a pool, as many as have ever been in use, rounded up to a power of two.

    If these are more than `most_cells`, a cell stands for several slots and shows the owner that most of them have.
    """

    def __init__(self, pool: TokenToKVPool, most_cells: int):
        self._pool, self._most = pool, most_cells
        self._used = 0

    def state(self, locked: Iterable[TreeNode], owned: Mapping[int, np.ndarray], others: Iterable[np.ndarray]) -> dict:
        """`shown` slots in cells of `group` slots, and `lines`: for each LINE cells [length, code, length, code, ...].

        `locked`: the locked nodes of the tree. `owned`: number of a request → the slots that it owns. `others`: those of
        requests that are not in the frame.
        """
        is_taken = np.ones(self._pool.size, dtype=bool)
        is_taken[self._pool.free_slots().numpy()] = False
        taken = np.flatnonzero(is_taken)
        self._used = max(self._used, int(taken[-1]) + 1 if taken.size else 0)
        shown = min(max(LEAST_SHOWN, 1 << max(self._used - 1, 0).bit_length()), self._pool.size)
        numbers = list(owned)
        codes = np.where(is_taken, TREE, FREE)
        for node in locked:
            codes[node.value] = LOCKED
        for slots in others:
            codes[slots] = OTHER
        for place, slots in enumerate(owned.values()):
            codes[slots] = FIRST_REQUEST + place
        group = -(-shown // self._most)
        cells = _most_frequent(codes[:shown], group, FIRST_REQUEST + len(numbers))
        names = np.array([*range(FIRST_REQUEST), *(FIRST_REQUEST + number for number in numbers)])
        cells = names[cells]
        lines = {str(i): _lengths(cells[start : start + LINE]) for i, start in enumerate(range(0, len(cells), LINE))}
        return {"shown": shown, "group": group, "lines": lines}


def runs_of(slots: np.ndarray, most: int) -> list[int]:
    """Slots in order as [start, length, start, length, ...], at most `most` runs of neighbours."""
    runs = consecutive_runs(slots)[:most]
    return [number for start, end in runs for number in (start, end - start)]


def _most_frequent(codes: np.ndarray, group: int, num_codes: int) -> np.ndarray:
    """The most frequent of every `group` codes, the lowest such code."""
    if group == 1:
        return codes
    padded = np.pad(codes, (0, -len(codes) % group), mode="edge")
    cells = len(padded) // group
    places = padded + np.repeat(np.arange(cells), group) * num_codes
    return np.bincount(places, minlength=cells * num_codes).reshape(cells, num_codes).argmax(axis=1)


def _lengths(cells: np.ndarray) -> list[int]:
    starts = np.concatenate(([0], np.flatnonzero(np.diff(cells)) + 1))
    lengths = np.diff(np.concatenate((starts, [len(cells)])))
    return np.stack((lengths, cells[starts]), axis=1).ravel().tolist()
