"""For error messages: finds the first slot that may not be freed or handed to a radix tree, and says why."""

import numpy as np

from nanoinfer.cache.indices import Indices


def first_wrong(
    slots: np.ndarray, others: Indices, is_free: np.ndarray, in_tree: np.ndarray, page_size: int
) -> tuple[int, int, str] | None:
    """The first wrong slot among `slots` (int64): its index, the slot, and what is wrong with it. None when all are fine.

    `others`: further slots from the same call; no slot may be in both. `is_free`, `in_tree`: bool, one mark per page of
    the pool. It looks at the whole pool.
    """
    size, ordered = is_free.size * page_size, np.sort(slots)
    starts, ends = ordered[np.diff(ordered, prepend=-2) != 1], ordered[np.diff(ordered, append=-2) != 1]
    in_page = (slots[::page_size, None] // page_size * page_size + np.arange(page_size)).ravel()[: slots.size]
    for offenders, why in (
        (slots[(slots < 0) | (slots >= size)], f"outside 0..{size - 1}"),
        (slots[np.isin(slots // page_size, np.flatnonzero(is_free))], "already free"),
        (ordered[1:][ordered[1:] == ordered[:-1]], "given twice"),
        (slots[np.isin(slots, others)], "given twice"),
        (starts[starts % page_size != 0], f"not the start of a page of {page_size}"),
        (ends[(ends + 1) % page_size != 0], f"not the end of a page of {page_size}"),
        (slots[np.isin(slots // page_size, np.flatnonzero(in_tree))], "in a radix tree already"),
        (slots[slots != in_page], f"not in its place in a page of {page_size}"),
    ):
        if offenders.size:
            return int(np.flatnonzero(slots == offenders[0])[-1]), int(offenders[0]), why
    return None
