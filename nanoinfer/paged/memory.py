"""Whether the tensors of a K/V cache share memory: what is written to one of them would then change another."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

Span = tuple[int, int]  # (stride in elements, size) of one dimension, or of several that are evenly spaced together


def check_memory(tensors: Sequence[torch.Tensor]) -> None:
    """ValueError when two elements of `tensors` share memory: K and V of every layer in turn, all of one shape and dtype.

    Views of one block of memory are fine, also such as interleave: K and V of [num_blocks, 2, P, Hk, D], say. Then strides
    are compared, and the order of tokens, heads and elements in a block may differ; for contiguous tensors their beginnings
    are enough.
    """
    starts = np.array([tensor.data_ptr() for tensor in tensors])
    if all(tensor.is_contiguous() for tensor in tensors):
        order = np.argsort(starts, kind="stable")
        near = np.flatnonzero(np.diff(starts[order]) < tensors[0].nbytes)
        pairs = [(int(order[k]), int(order[k + 1])) for k in near]
    else:
        for i, tensor in enumerate(tensors):
            _check_strides(_name(i), tensor)
        pairs = list(_overlapping_views(tensors, starts))
    for a, b in sorted(tuple(sorted(pair)) for pair in pairs)[:1]:
        how = "is the same memory as" if starts[a] == starts[b] else "overlaps the memory of"
        raise ValueError(f"{_name(b)}: {how} {_name(a)}")


def _name(i: int) -> str:
    return f"kv_cache[{i // 2}] {'KV'[i % 2]}"


def _spans(tensor: torch.Tensor) -> tuple[Span, ...]:
    """The dimensions, shortest stride first, as few as say where all elements are.

    Dimensions whose elements are evenly spaced together are one, so that a block in which heads come before tokens is
    equal to one in which tokens come before heads.
    """
    spans: list[Span] = []
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if spans and step == spans[-1][0] * spans[-1][1]:
            spans[-1] = (spans[-1][0], spans[-1][1] * size)
        elif size > 1:
            spans.append((step, size))
    return tuple(spans)


def _check_strides(name: str, tensor: torch.Tensor) -> None:
    """ValueError unless a step along any dimension leads past all that the dimensions of shorter strides span."""
    span = 1
    for step, size in _spans(tensor):
        if step < span:
            raise ValueError(
                f"{name}: strides {list(tensor.stride())} of shape {list(tensor.shape)} put several elements in one place "
                "(as an expanded tensor's do)"
            )
        span += step * (size - 1)


def _overlapping_views(tensors: Sequence[torch.Tensor], starts: np.ndarray) -> Iterator[tuple[int, int]]:
    """Pairs of tensors with an element in common.

    Two that are spaced differently, as `_spans` says, count as such where one begins in the other.
    """
    itemsize = tensors[0].itemsize
    spans = [_spans(tensor) for tensor in tensors]
    extents = np.array([1 + sum(step * (size - 1) for step, size in each) for each in spans]) * itemsize
    first, second = np.triu_indices(len(tensors), k=1)
    apart = starts[second] - starts[first]
    fine = set()  # distances that have been looked at, with the strides: regular layouts have few
    for k in np.flatnonzero((apart < extents[first]) & (-apart < extents[second])).tolist():
        a, b, distance = int(first[k]), int(second[k]), abs(int(apart[k]))
        if (distance, spans[a]) in fine and spans[a] == spans[b]:
            continue
        if spans[a] != spans[b] or distance % itemsize or _meet(distance // itemsize, spans[a]):
            yield a, b
        else:
            fine.add((distance, spans[a]))


def _meet(distance: int, spans: tuple[Span, ...]) -> bool:
    """Whether two views of these spans, so many elements apart, have one in common.

    They have if the distance is a sum of n steps along each dimension, −size < n < size. The shorter strides together span
    less than one step of a longer one, so only the two n around the quotient come into question.
    """
    if not spans:
        return distance == 0
    step, size = spans[-1]
    n = distance // step
    return any(abs(k) < size and _meet(distance - k * step, spans[:-1]) for k in (n, n + 1))
