"""Checks that the tensors of a K/V cache share no memory. Otherwise writing to one of them would change another."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

Span = tuple[int, int]  # (stride in elements, size) of one dimension, or of several that are evenly spaced together


def check_memory(tensors: Sequence[torch.Tensor]) -> None:
    """ValueError when two elements of `tensors` share memory. These are K and V of every layer in turn, all of one shape
    and dtype.

    Views of one block of memory are fine even if they interleave, such as K and V in [num_blocks, 2, P, Hk, D]. For these,
    strides are compared, and the order of tokens, heads and elements in a block may differ. For contiguous tensors it is
    enough to compare where they begin.
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
    """The smallest set of dimensions that says where all elements are, shortest stride first.

    Dimensions whose elements are evenly spaced together count as one. So a block with heads before tokens is equal to a
    block with tokens before heads.
    """
    spans: list[Span] = []
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if spans and step == spans[-1][0] * spans[-1][1]:
            spans[-1] = (spans[-1][0], spans[-1][1] * size)
        elif size > 1:
            spans.append((step, size))
    return tuple(spans)


def _check_strides(name: str, tensor: torch.Tensor) -> None:
    """ValueError unless a step along any dimension is longer than everything that dimensions with shorter strides span."""
    span = 1
    for step, size in _spans(tensor):
        if step < span:
            raise ValueError(
                f"{name}: strides {list(tensor.stride())} of shape {list(tensor.shape)} put several elements in one place "
                "(like those of an expanded tensor)"
            )
        span += step * (size - 1)


def _overlapping_views(tensors: Sequence[torch.Tensor], starts: np.ndarray) -> Iterator[tuple[int, int]]:
    """Pairs of tensors that have an element in common.

    Two tensors with different `_spans` count as such a pair if one begins inside the other.
    """
    itemsize = tensors[0].itemsize
    spans = [_spans(tensor) for tensor in tensors]
    extents = np.array([1 + sum(step * (size - 1) for step, size in dimensions) for dimensions in spans]) * itemsize
    first, second = np.triu_indices(len(tensors), k=1)
    apart = starts[second] - starts[first]
    fine = set()  # distances already checked, with the strides: regular layouts have only a few
    for k in np.flatnonzero((apart < extents[first]) & (-apart < extents[second])).tolist():
        a, b, distance = int(first[k]), int(second[k]), abs(int(apart[k]))
        if (distance, spans[a]) in fine and spans[a] == spans[b]:
            continue
        if spans[a] != spans[b] or distance % itemsize or _meet(distance // itemsize, spans[a]):
            yield a, b
        else:
            fine.add((distance, spans[a]))


def _meet(distance: int, spans: tuple[Span, ...]) -> bool:
    """True when two views with these spans, `distance` elements apart, have an element in common.

    They do if the distance is a sum of n steps along each dimension, −size < n < size. All shorter strides together span
    less than one step of a longer one, so only the two n next to the quotient are possible.
    """
    if not spans:
        return distance == 0
    step, size = spans[-1]
    n = distance // step
    return any(abs(k) < size and _meet(distance - k * step, spans[:-1]) for k in (n, n + 1))
