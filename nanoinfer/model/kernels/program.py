"""Program: the kernel calls of a pass, recorded once and replayed without Python.

It is to the CPU what a CUDA graph is to a GPU: the functions, pointers and sizes are fixed, and only what is in the memory
that the pointers name changes from one run to the next.
"""

import ctypes
import struct
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from nanoinfer.model.kernels.functions import Call, function, record_calls

WORD = 8  # bytes
LINE = 64  # bytes of a cache line: no two buffers share one
_ALLOCATIONS = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")


class NotCapturableError(Exception):
    """Something computes outside the kernels. A program would leave it out, so there can be no program."""


class _Watch(TorchDispatchMode):
    """Sees every operation of torch: keeps what is allocated, lets views pass, has sums computed by a kernel (in networks
    that are not ours, torch adds to the residual stream), and refuses all else that computes."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers: list[torch.Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch asks. It would otherwise import its compiler, for more than a second, to tell it to leave this class alone;
        but nobody compiles what is recorded."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name == "add" and not kwargs and (total := self._sum(*args)) is not None:
            return total
        if name not in _ALLOCATIONS and not func.is_view:
            raise NotCapturableError(f"torch computes {name}")
        result = func(*args, **(kwargs or {}))
        if name in _ALLOCATIONS:
            self.buffers.append(result)
        return result

    def _sum(self, a: Any, b: Any) -> torch.Tensor | None:
        """`a + b`, to the same bits as torch's; None unless both are such tensors."""
        tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape and a.ndim > 0
        known = tensors and a.dtype is b.dtype and a.dtype in (torch.float32, torch.bfloat16)
        if not known or not a.is_contiguous() or not b.is_contiguous():
            return None
        total = torch.empty_like(a)
        self.buffers.append(total)
        size = a.shape[-1]
        function("add", a.dtype)(a.data_ptr(), b.data_ptr(), total.data_ptr(), a.numel() // size, size)
        return total


class _Refuse(TorchFunctionMode):
    """Refuses what would take numbers out of torch, where nothing could see what is done with them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := getattr(func, "__name__", "")) in ("numpy", "tolist", "__array__", "__dlpack__"):
            raise NotCapturableError(f"{name} takes numbers out of torch")
        return func(*args, **(kwargs or {}))


class Program:
    """A list of kernel calls. `replay` makes them again by one call into C++.

    `outputs`: the tensors that the recorded function returned; every replay fills them again. `labels`: the module in which
    each call was made (`model.layers.0.mlp.down_proj`).
    """

    def __init__(self, calls: list[Call], buffers: list[torch.Tensor], outputs: Sequence[torch.Tensor]):
        self.calls, self.outputs = calls, outputs
        self.labels = [""] * len(calls)
        self._words, self._memory = share_memory(calls, buffers, outputs)
        start = ctypes.addressof(self._words)
        table = []
        for called, words in calls:
            table += [called.address, start]
            start += len(words)
        self._table = (ctypes.c_int64 * max(1, len(table)))(*table)
        self._times: ctypes.Array[ctypes.c_int64] | None = None
        self._replay = function("replay")

    @classmethod
    def record(cls, compute: Callable[[], Sequence[torch.Tensor]], network: nn.Module | None = None) -> "Program":
        """Run `compute` and keep its kernel calls. NotCapturableError when it computes anything else.

        It returns its results. It may allocate tensors and take views of them. Tensors that it reads must stay in place.
        `network`: the module to whose parts the `labels` refer.
        """
        labels: list[str] = []
        with _Refuse(), _Watch() as watch, record_calls() as calls, _names(network, calls, labels):
            outputs = compute()
        program = cls(calls, watch.buffers, outputs)
        program.labels = labels
        return program

    def replay(self) -> None:
        """Make the calls again."""
        times = 0 if self._times is None else ctypes.addressof(self._times)
        self._replay(ctypes.addressof(self._table), len(self.calls), times)

    def replay_ahead(
        self,
        rows: Sequence[torch.Tensor],
        counts: np.ndarray,
        temperatures: np.ndarray,
        numbers: np.ndarray,
    ) -> np.ndarray:
        """Make the calls `max(counts)` times. After each time, choose every request's next token and move the requests
        on, which changes `rows` in place. Returns the tokens, int64 [steps, B]; request `i` has `counts[i]` of them, or up
        to an entry of −1, which says that its logits held NaN or infinity.

        `rows`: the buffers of a captured graph of B requests with one new token each: input ids and positions int64,
        sequence lengths and slots int32, all [B], where each request's slots begin, int32 [B], in the last one, a table.
        `counts` int64 [B], at least 1. `temperatures` float32 [B] and `numbers` float64 [steps, B]: as in Kernels.draw.
        The outputs are logits [B, V], or of each request the likeliest token and its logit.
        """
        steps, size = numbers.shape
        assert [buffer.dtype for buffer in rows] == [torch.int64] * 2 + [torch.int32] * 4
        assert counts.dtype == np.int64
        assert temperatures.dtype == np.float32
        assert numbers.dtype == np.float64
        assert len(counts) == len(temperatures) == len(rows[0]) == size
        chosen = np.empty((steps, size), dtype=np.int64)
        first, only_likeliest = self.outputs[0], len(self.outputs) > 1
        assert first.is_contiguous()
        assert not only_likeliest or self.outputs[1].dtype == torch.float32
        pointers = (ctypes.c_int64 * len(rows))(*(buffer.data_ptr() for buffer in rows))
        function("run_multi_step", torch.float32 if only_likeliest else first.dtype)(
            ctypes.addressof(self._table),
            len(self.calls),
            ctypes.addressof(pointers),
            first.data_ptr() if only_likeliest else 0,
            self.outputs[-1].data_ptr(),
            temperatures.ctypes.data,
            numbers.ctypes.data,
            counts.ctypes.data,
            chosen.ctypes.data,
            steps,
            size,
            0 if only_likeliest else first.shape[1],
        )
        return chosen

    def measure(self, on: bool = True) -> None:
        """Add up the time of each call from now on, or stop doing so. It costs nothing while it is off."""
        self._times = (ctypes.c_int64 * max(1, len(self.calls)))() if on else None

    def seconds(self) -> list[tuple[str, str, float]]:
        """Of each call, in order: its function, its label, and the seconds it has taken since `measure`."""
        assert self._times is not None, "not measured"
        timed = zip(self.calls, self.labels, self._times, strict=False)
        return [(called.name, label, ns / 1e9) for (called, _), label, ns in timed]

    @property
    def num_bytes(self) -> int:
        """How much memory its activations take."""
        return self._memory.numel()


@contextmanager
def _names(network: nn.Module | None, calls: list[Call], labels: list[str]) -> Iterator[None]:
    """Fill `labels` with the name of the innermost module in which each of `calls` is made."""
    names = {} if network is None else {module: name for name, module in network.named_modules()}
    inside, thread = [""], threading.get_ident()

    def label() -> None:
        labels.extend([inside[-1]] * (len(calls) - len(labels)))

    def enter(module: nn.Module, *_: Any) -> None:
        if threading.get_ident() == thread:  # hooks are called in every thread
            label()
            inside.append(names.get(module, inside[-1]))

    def leave(*_: Any) -> None:
        if threading.get_ident() == thread:
            label()
            inside.pop()

    hooks = (register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True))
    try:
        yield
        label()
    finally:
        for hook in hooks:
            hook.remove()


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
