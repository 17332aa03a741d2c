"""Which tensors share memory, element by element: an operator that writes in place cannot be right where they do."""

from collections.abc import Mapping

import torch


def refuse_shared_memory(written: Mapping[str, torch.Tensor], read: Mapping[str, torch.Tensor]) -> None:
    """ValueError when a tensor of `written` shares an element with itself, with another one, or with one of `read`.

    `written`: one dimension each. All of one element size, on one device. Tensors that merely lie in one storage, rows or
    columns of a buffer for instance, are fine, and those of `read` may share memory with one another.
    Costs a comparison of addresses per pair; only pairs whose address ranges meet are compared element by element.
    """
    spans = {name: _span(tensor) for name, tensor in {**written, **read}.items()}
    earlier: set[str] = set()  # has been compared with everything
    for name, tensor in written.items():
        earlier.add(name)
        begin, end = spans[name]
        if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            raise ValueError(f"{name}: stride 0, its rows share memory; must not be expanded, for it is written to")
        for other, (other_begin, other_end) in spans.items():
            if other in earlier or end <= other_begin or other_end <= begin:
                continue
            if _share_elements(tensor, written[other] if other in written else read[other]):
                raise ValueError(f"{name}: shares memory with {other}; must not, for {name} is written to")


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of the first byte, and of the byte after the last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _share_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether any element of `a` shares a byte with one of `b`, which has elements of the same size."""
    size, in_a, in_b = a.element_size(), _addresses(a), _addresses(b).sort().values
    # The first element of b that does not end before the element of a begins: does it begin before that one ends?
    nearest = torch.searchsorted(in_b, in_a - size + 1).clamp(max=len(in_b) - 1)
    return bool(((in_b[nearest] - in_a).abs() < size).any())


def _addresses(tensor: torch.Tensor) -> torch.Tensor:
    """The address of every element, int64 [elements], on the CPU."""
    offsets = torch.zeros(1, dtype=torch.int64, device="cpu")
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        offsets = (offsets[:, None] + torch.arange(size, device="cpu") * stride).flatten()
    return tensor.data_ptr() + offsets * tensor.element_size()
