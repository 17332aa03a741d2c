"""CUDA without a GPU: fake tensors on one, a check that a function leaves the host out, and a stand-in for CUDA graphs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode  # of torch; there is no public name for it
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Inside, tensors have a shape, a dtype and a device, which may be "cuda", but no data."""
    with FakeTensorMode(), _Operators():
        yield


class OnTheGPU(TorchDispatchMode):
    """Inside, every operation must have all its tensors on a GPU, so nothing is copied from the host or read by it.

    With fake tensors, what depends on data fails by itself: `item`, `tolist`, `nonzero`, an index that is a mask.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, result)):
            assert not isinstance(value, torch.Tensor) or value.device.type == "cuda", (
                f"{func} has a tensor on the host"
            )
        self.count += 1
        return result


class _Operators(TorchFunctionMode):
    """Calls operators directly where Python's methods first ask for a device's guard, which a torch without CUDA lacks."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _BY_OPERATOR.get(func, func)(*args, **(kwargs or {}))


def _get(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    view, indices = _view(tensor, index)
    return aten.index.Tensor(view, indices) if indices else view


def _set(tensor: torch.Tensor, index: Any, value: torch.Tensor) -> None:
    view, indices = _view(tensor, index)
    if indices:
        aten.index_put_(view, indices, value)
    else:
        aten.copy_(view, value)


def _to(tensor: torch.Tensor, wanted: Any) -> torch.Tensor:
    """`tensor` on another device or in another dtype."""
    device, dtype = tensor.device, tensor.dtype
    if isinstance(wanted, torch.dtype):
        dtype = wanted
    else:
        device = torch.device(wanted)
    is_there = (device.type, dtype) == (tensor.device.type, tensor.dtype)
    return tensor if is_there else aten._to_copy.default(tensor, dtype=dtype, device=device)


def _view(tensor: torch.Tensor, index: Any) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """`tensor` with the slices, integers and None of `index` applied, and its tensors by dimension."""
    indices: dict[int, torch.Tensor] = {}
    dim = 0
    for part in index if isinstance(index, tuple) else (index,):
        if part is None:
            tensor = aten.unsqueeze(tensor, dim)
        elif isinstance(part, slice):
            tensor = aten.slice.Tensor(tensor, dim, part.start, part.stop, part.step or 1)
        elif isinstance(part, torch.Tensor):
            indices[dim] = part
        else:
            tensor = aten.select.int(tensor, dim, int(part))
            continue
        dim += 1
    return tensor, [indices.get(i) for i in range(max(indices) + 1)] if indices else []


_BY_OPERATOR: dict[Any, Callable[..., Any]] = {
    torch.Tensor.__getitem__: _get,
    torch.Tensor.__setitem__: _set,
    torch.Tensor.__int__: lambda tensor: aten._local_scalar_dense(tensor),
    torch.Tensor.contiguous: lambda tensor: tensor if tensor.is_contiguous() else tensor.clone(),
    torch.Tensor.copy_: lambda tensor, value: aten.copy_(tensor, value),
    torch.Tensor.to: lambda tensor, wanted: _to(tensor, wanted),
}


class ReplayedOperations:
    """Stands in for a CUDA graph, on any device: notes torch's operations and repeats them on the same tensors.

    As with a graph, Python does not run again, shapes and places stay as they are, and what was on the host is forgotten.
    """

    def __init__(self, compute: Callable[[], Sequence[torch.Tensor]]):
        self.replays = 0
        with _Noting() as noting:
            self.outputs = compute()
        self._noted = noting.noted

    def replay(self) -> None:
        self.replays += 1
        with torch.no_grad():
            for func, args, kwargs, results in self._noted:
                for old, new in zip(results, tree_leaves(func(*args, **kwargs)), strict=True):
                    if old is not new:
                        old.copy_(new)


class _Noting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (aten._local_scalar_dense.default, aten.nonzero.default):
            raise RuntimeError(f"{func}: not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.noted.append((func, args, kwargs or {}, tree_leaves(result)))
        return result
