"""A stand-in for torch.cuda: streams that are only names, and graphs that repeat torch's operations."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
OF_THE_HOST = (aten._local_scalar_dense.default, aten.nonzero.default, aten.lift_fresh.default)


class FakeGraph(TorchDispatchMode):
    """A CUDA graph, on any device: notes torch's operations while it is entered, and repeats them on the same tensors.

    As with a graph, Python does not run again, shapes and places stay as they are, and what needs the host is refused: to
    read numbers, to make a tensor of Python's, to copy from one device to another. On "meta", tensors have no data, and it
    refuses every operation that is not there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[Callable[[], Any], list[Any]]] = []
        self.devices: set[str] = set()
        self.replays = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, result))
        self.devices |= {leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)}
        if func in OF_THE_HOST or len(self.devices) > 1:
            raise RuntimeError(
                f"CUDA error: {func} not permitted when stream is capturing\nCUDA kernel errors might ..."
            )
        if not func.is_view:
            self.noted.append((lambda: func(*args, **(kwargs or {})), tree_leaves(result)))
        return result

    def replay(self) -> None:
        self.replays += 1
        with torch.no_grad():
            for operation, results in self.noted:
                for old, new in zip(results, tree_leaves(operation()), strict=True):
                    if old is not new:
                        old.copy_(new)

    def pool(self) -> str:
        return "pool"


class FakeCuda:
    """`torch.cuda`, as CudaGraphRunner uses it. `events`: what was asked of it. `stream_now`: the stream in use."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.events: list[tuple[str | None, ...]] = []
        self.stream_now = self._named("main")
        fakes = {
            "Stream": lambda device: self._named("side"),
            "current_stream": lambda device: self.stream_now,
            "stream": self._stream,
            "CUDAGraph": FakeGraph,
            "graph": self._graph,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    def _named(self, name: str) -> Any:
        return SimpleNamespace(name=name, wait_stream=lambda other: self.events.append((name, "waits for", other.name)))

    @contextmanager
    def _stream(self, stream: Any) -> Iterator[None]:
        before, self.stream_now = self.stream_now, stream
        try:
            yield
        finally:
            self.stream_now = before

    @contextmanager
    def _graph(self, graph: FakeGraph, pool: str | None, stream: Any, capture_error_mode: str) -> Iterator[None]:
        """Like torch's, it leaves the stream as it is when the capture has failed."""
        self.events.append(("capture", pool, stream.name))
        before, self.stream_now = self.stream_now, stream
        with graph:
            yield
        self.stream_now = before
