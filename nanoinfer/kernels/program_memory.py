"""Where a program's activations lie: in one piece of memory, in which they take turns."""

import ctypes
import struct
from bisect import bisect_right
from collections.abc import Sequence

import torch

from nanoinfer.kernels.functions import Call

WORD = 8  # bytes
LINE = 64  # bytes of a cache line: no two buffers share one


def share_memory(
    calls: list[Call], buffers: list[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> tuple[ctypes.Array[ctypes.c_char], torch.Tensor]:
    """The words of all calls, with buffers moved into one piece of memory where they share places if they are never in use
    at the same time. So a deep network needs no more than its widest layer.

    A buffer is in use from the first call that has a pointer into it to the last. `outputs` stay where they are.
    """
    fixed = {output.untyped_storage().data_ptr() for output in outputs}
    spans = {storage.data_ptr(): storage.nbytes() for storage in (buffer.untyped_storage() for buffer in buffers)}
    starts = sorted(spans.keys() - fixed)
    words = ctypes.create_string_buffer(b"".join(words for _, words in calls))
    moves = []  # of every pointer into a buffer: where its word is, and where the buffer starts
    lifetimes: dict[int, tuple[int, int]] = {}  # of every buffer: the first call that uses it, and the last
    place = 0
    for number, (called, _) in enumerate(calls):
        for kind in called.arguments:
            (word,) = struct.unpack_from("=q", words, place)
            nearest = starts[max(0, bisect_right(starts, word) - 1)] if starts else 0
            if kind == "P" and nearest <= word < nearest + spans.get(nearest, 0):
                moves.append((place, nearest))
                lifetimes[nearest] = lifetimes.get(nearest, (number, number))[0], number
            place += WORD
    offsets, size = _places(lifetimes, spans)
    memory = torch.empty(size + LINE, dtype=torch.uint8)
    base = -(-memory.data_ptr() // LINE) * LINE
    for place, start in moves:
        (word,) = struct.unpack_from("=q", words, place)
        struct.pack_into("=q", words, place, base + offsets[start] + word - start)
    return words, memory


def _places(lifetimes: dict[int, tuple[int, int]], spans: dict[int, int]) -> tuple[dict[int, int], int]:
    """Where each buffer goes, as an offset, and how much memory that takes: each in turn at the lowest place that no buffer
    alive at the same time covers."""
    offsets: dict[int, int] = {}
    total = 0
    for start, (first, last) in sorted(lifetimes.items(), key=lambda item: item[1]):
        alive = sorted(
            (offsets[placed], spans[placed])
            for placed in offsets
            if lifetimes[placed][1] >= first and lifetimes[placed][0] <= last
        )
        offset = 0
        for taken, length in alive:
            if offset + spans[start] <= taken:
                break
            offset = max(offset, -(-(taken + length) // LINE) * LINE)
        offsets[start] = offset
        total = max(total, offset + spans[start])
    return offsets, total
