"""Finds tensors that share memory, element by element. An operator that writes in place goes wrong if they do."""

from collections.abc import Mapping

import torch


def refuse_shared_memory(written: Mapping[str, torch.Tensor], read: Mapping[str, torch.Tensor]) -> None:
    """ValueError when a tensor of `written` shares an element with itself, with another one, or with one of `read`.

    Tensors in `written` have one dimension. All tensors have the same element size and are on one device. They may be in
    one storage, for example as rows or columns of a buffer, and those in `read` may share memory with one another.
    Each pair costs a comparison of addresses; only pairs whose address ranges meet are compared element by element.
    """
    spans = {name: _span(tensor) for name, tensor in {**written, **read}.items()}
    earlier: set[str] = set()  # names that have been compared with everything
    for name, tensor in written.items():
        earlier.add(name)
        begin, end = spans[name]
        if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            raise ValueError(
                f"{name}: stride 0, so its rows share memory; must not be expanded, because it is written to"
            )
        for other, (other_begin, other_end) in spans.items():
            if other in earlier or end <= other_begin or other_end <= begin:
                continue
            if _share_elements(tensor, written[other] if other in written else read[other]):
                raise ValueError(f"{name}: shares memory with {other}; must not, because {name} is written to")


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of the first byte and of the byte after the last one."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _share_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True when any element of `a` shares a byte with one of `b`, whose elements have the same size."""
    size, in_a, in_b = a.element_size(), _addresses(a), _addresses(b).sort().values
    # Take the first element of b that does not end before the element of a begins. Does it begin before that one ends?
    nearest = torch.searchsorted(in_b, in_a - size + 1).clamp(max=len(in_b) - 1)
    return bool(((in_b[nearest] - in_a).abs() < size).any())


def _addresses(tensor: torch.Tensor) -> torch.Tensor:
    """The address of every element, int64 [elements], on the CPU."""
    offsets = torch.zeros(1, dtype=torch.int64, device="cpu")
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        offsets = (offsets[:, None] + torch.arange(size, device="cpu") * stride).flatten()
    return tensor.data_ptr() + offsets * tensor.element_size()
