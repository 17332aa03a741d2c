"""GraphRunner: decode passes that were recorded once per batch size, and are replayed without Python between layers.

A recorded pass always reads the same memory and computes the same number of tokens. So it has buffers of its own for what
changes from pass to pass, and batches of other sizes are filled up with padding. It is nano-vllm's
`capture_cudagraph`, for a CPU. For a GPU, see cuda_graph_runner.py.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model.adapter_rows import AdapterRows
from nanoinfer.model.forward_batch import ForwardBatch, ForwardMode
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.kernels.program import NotCapturableError, Program
from nanoinfer.model.kernels.select import selection_of
from nanoinfer.model.layers.experts import called_modules
from nanoinfer.model.layers.linear import Linear
from nanoinfer.model.layers.logits_processor import Likeliest, LogitsOutput


def padded_size(num_requests: int) -> int:
    """The size of the pass that serves so many requests: exact up to 16, then whole fours, and whole sixteens from 64 on.

    With more sizes, less padding is computed; with fewer, fewer passes are recorded.
    """
    step = 1 if num_requests <= 16 else 4 if num_requests <= 64 else 16
    return -(-num_requests // step) * step


def coarse_size(num_tokens: int) -> int:
    """The size of the pass that serves so many tokens where their number keeps changing, as it does with drafts: a power
    of two, or one and a quarter, a half or three quarters of it. Recording a pass takes as long as ten passes."""
    step = max((1 << (num_tokens - 1).bit_length()) // 8, 1)
    return -(-num_tokens // step) * step


class _NotRecorded:
    """What a layer finds in place of the pass's ForwardBatch: a program would only ever see that of the first pass."""

    def __getattr__(self, name: str) -> Any:
        raise NotCapturableError(f"a layer reads batch.{name}, which no buffer of a recorded pass has")


class CapturedGraph:
    """A DECODE of `size` requests: its buffers and its program.

    `fill` and `run` are all that a caller needs. Padding is as `advance_step` leaves it: token 0, position 0, slot −1. It
    has no K/V, and the kernels skip it where they can.
    """

    def __init__(self, runner: Any, size: int, only_likeliest: bool = False, adapted: bool = False):
        table = runner.req_to_token_pool.req_to_token
        self._width = table.shape[1]
        self.input_ids = torch.zeros(size, dtype=torch.int64)
        self.metadata = InputMetadata(
            forward_mode=ForwardMode.DECODE,
            batch_size=size,
            total_num_tokens=size,
            max_seq_len=0,  # unknown; the engine has checked that sequences fit
            req_pool_indices=torch.zeros(size, dtype=torch.int32),
            start_loc=torch.zeros(size, dtype=torch.int32),
            seq_lens=torch.zeros(size, dtype=torch.int32),
            prefix_lens=None,
            positions=torch.zeros(size, dtype=torch.int64),
            req_to_token_pool=runner.req_to_token_pool,
            token_to_kv_pool=runner.token_to_kv_pool,
            out_cache_loc=torch.full((size,), -1, dtype=torch.int32),
            qo_indptr=torch.arange(size + 1, dtype=torch.int32),
            kv_indptr=torch.zeros(size, dtype=torch.int32),
            kv_indices=table.view(-1),  # a request's slots are its row: nothing is copied
            batch=cast(ForwardBatch, _NotRecorded()),
            only_likeliest=only_likeliest,
            adapters=AdapterRows(np.full(size, -1), runner.adapters.tables) if adapted else None,
            attention_backend=runner.attention_backend,
        )
        names = ("positions", "seq_lens", "out_cache_loc", "kv_indptr")
        self._ids, self._positions, self._seq_lens, self._slots, self._starts = (
            tensor.numpy() for tensor in (self.input_ids, *(getattr(self.metadata, name) for name in names))
        )
        self._network = runner.model if isinstance(runner.model, nn.Module) else None
        self._run = runner.run
        self.program: Program | None = None

    def fill(self, batch: ForwardBatch) -> None:
        """Take a DECODE of at most `size` requests."""
        lens = batch.seq_lens.numpy()  # numpy's assignments take a tenth of torch's time
        count = len(lens)
        self._ids[:count] = batch.input_ids.numpy()
        self._slots[:count] = batch.out_cache_loc.numpy()
        self._seq_lens[:count] = lens
        self._starts[:count] = batch.req_pool_indices.numpy() * self._width
        self._positions[:count] = lens - 1
        if count < len(self._ids):
            self._ids[count:], self._slots[count:], self._positions[count:] = 0, -1, 0
            self._seq_lens[count:], self._starts[count:] = 0, 0
        if batch.adapter_slots is not None:
            assert self.metadata.adapters is not None, "captured without adapters"
            self.metadata.adapters.fill(np.pad(batch.adapter_slots, (0, len(self._ids) - count), constant_values=-1))

    def run(self) -> Sequence[torch.Tensor]:
        """Compute what `fill` took: logits [size, V], padding included, or the two tensors of their Likeliest, if no more
        is wanted and the head can find them by itself. The next run overwrites them.

        The first run records. NotCapturableError when it cannot; K/V of the new tokens may have been written then.
        """
        if self.program is None:
            self.program = Program.record(self._compute, self._network)
        else:
            self.program.replay()
        return self.program.outputs

    def run_multi_step(self, counts: np.ndarray, temperatures: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Compute what `fill` took and then, from one pass to the next, each request's next tokens, `counts[i]` of them:
        int64 [max(counts), B]. Arguments as in Program.replay_ahead, for the B requests that were taken. Only after the
        first `run`."""
        assert self.program is not None
        padding = len(self._ids) - len(counts)
        if padding:
            counts, temperatures = np.pad(counts, (0, padding)), np.pad(temperatures, (0, padding))
            numbers = np.pad(numbers, ((0, 0), (0, padding)))
        of_pass = self.metadata
        table = of_pass.req_to_token_pool.req_to_token
        buffers = (
            self.input_ids,
            of_pass.positions,
            of_pass.seq_lens,
            of_pass.out_cache_loc,
            of_pass.kv_indptr,
            table,
        )
        return self.program.replay_ahead(buffers, counts, temperatures, numbers)[:, : len(counts) - padding]

    def _compute(self) -> tuple[torch.Tensor, ...]:
        output = self._run(self.input_ids, self.metadata)
        return output.likeliest or (output.logits,)


class _Source:
    """What passes are recorded from. They point into its memory, so it is kept, and looked at before every pass."""

    def __init__(self, runner: Any):
        self._runner, self._model, self._backend = runner, runner.model, runner.attention_backend
        modules = list(called_modules(self._model)) if isinstance(self._model, nn.Module) else []
        self._weights = [(module, module.weights) for module in modules if isinstance(module, Linear)]
        self._parameters = [parameter for module in modules for parameter in module.parameters(recurse=False)]
        self._hooks = [hooks for module in modules for hooks in (module._forward_pre_hooks, module._forward_hooks)]
        # What this process had counted when nothing was exchanged or hooked. After a pass, all that Python reads comes from
        # memory, so hundreds of modules are looked at only if a count has changed.
        self._num_assigned = self._num_hooks = -1

    def exchanged(self) -> bool:
        """Whether the runner has another network or attention now, or a Linear has other weights."""
        if self._runner.model is not self._model or self._runner.attention_backend is not self._backend:
            return True
        if self._num_assigned == (now := Linear.num_assigned):
            return False
        if any(linear.weights is not weights for linear, weights in self._weights):
            return True
        self._num_assigned = now
        return False

    def hooked(self) -> bool:
        """Whether a module has forward hooks, which no replay would call."""
        if self._num_hooks == (now := RemovableHandle.next_id):
            return False
        if any(self._hooks):
            return True
        self._num_hooks = now
        return False


class GraphRunner:
    """The captured graphs of one ModelRunner, by size. `reason`: why passes are not captured; "" if they are. `note`: what
    there is to say if they are."""

    note = ""
    takes_adapters = takes_ahead = True

    def __init__(self, runner: Any):
        self._runner = runner
        self._start_over()

    def _start_over(self) -> None:
        self._source = _Source(self._runner)
        self.reason = getattr(self._runner, "unrecordable", "") or self._why_not()
        self.passes: dict[tuple[int, ...], Any] = {}
        self.adapted_passes: dict[tuple[int, ...], Any] = {}  # of batches in which a request has an adapter
        self._tables_version = 0  # of the adapters' tables that these were captured with

    @classmethod
    def select(cls, capture: str | bool, runner: Any) -> "GraphRunner | None":
        """Those that `capture` asks for: None for False. With True, KernelsUnavailableError says why it is impossible."""
        if capture is False:
            return None
        captured = cls(runner)
        if capture is True:
            captured.try_out()
            if captured.reason:
                raise KernelsUnavailableError(f"capture=True: {captured.reason}")
        return captured

    def try_out(self) -> None:
        """Find out `reason` now, by a pass of padding alone, which stores nothing."""
        nothing = torch.empty(0, dtype=torch.int32)
        self.forward(
            ForwardBatch(
                forward_mode=ForwardMode.DECODE,
                input_ids=nothing,
                req_pool_indices=nothing,
                seq_lens=nothing,
                out_cache_loc=nothing,
            )
        )

    def forward(self, batch: ForwardBatch) -> LogitsOutput | None:
        """Compute a DECODE: logits [B, V], or with `only_likeliest` perhaps their Likeliest alone. None if it cannot be
        captured, or while modules have forward hooks. The next replay overwrites the result."""
        if self._source.exchanged():
            self._start_over()
        shape = None if self.reason or self._source.hooked() else self._shape(batch)
        adapted = batch.adapter_slots is not None
        if shape is None or (adapted and not self.takes_adapters):
            return None
        passes = self._with_adapters() if adapted else self.passes
        captured = passes.get(shape)
        if captured is None:
            captured = passes[shape] = self._new_pass(*shape, adapted=adapted)
        captured.fill(batch)
        try:
            outputs: Sequence[torch.Tensor] = captured.run()
        except NotCapturableError as error:
            self.passes.clear()
            self.adapted_passes.clear()
            self.reason = str(error)
            return None
        likeliest = Likeliest(*outputs) if len(outputs) > 1 else None
        return LogitsOutput(outputs[-1], likeliest=likeliest).first(len(batch.seq_lens))  # without padding

    def run_multi_step(
        self, batch: ForwardBatch, counts: np.ndarray, temperatures: np.ndarray, numbers: np.ndarray
    ) -> np.ndarray | None:
        """`CapturedGraph.run_multi_step` of a DECODE without adapters; None if it is not captured yet, or cannot be."""
        if not self.takes_ahead or self._source.exchanged() or self.reason or self._source.hooked():
            return None
        shape = self._shape(batch)
        captured = None if shape is None else self.passes.get(shape)
        if captured is None or captured.program is None:
            return None
        captured.fill(batch)
        return captured.run_multi_step(counts, temperatures, numbers)

    def _why_not(self) -> str:
        """Why nothing can be recorded, as far as one can tell before the first pass."""
        if (device := self._runner.token_to_kv_pool.device.type) != "cpu":
            return f"passes on device={device!r} are not recorded"
        kernels, backend = getattr(self._runner.model, "kernels", self._runner.model), self._runner.attention_backend
        if not getattr(kernels, "recordable", False):
            return f"its kernels are {selection_of(kernels).name}, and only those in C++ are recorded"
        if not getattr(backend, "recordable", False):
            return f"its attention_backend is {selection_of(backend).name}, and only the one in C++ is recorded"
        if self._runner.req_to_token_pool.req_to_token.numel() > np.iinfo(np.int32).max:
            return "the table of rows has more entries than the kernels can count"
        return ""

    def _with_adapters(self) -> dict[tuple[int, ...], Any]:
        """`adapted_passes`. All have to be captured again if more layers have adapters now, or larger ones."""
        if self._tables_version != self._runner.adapters.version:
            self.adapted_passes.clear()
            self._tables_version = self._runner.adapters.version
        return self.adapted_passes

    def _shape(self, batch: ForwardBatch) -> tuple[int, ...] | None:
        """Which of `passes` serves this batch; None if none can."""
        size = (coarse_size if batch.size_varies else padded_size)(len(batch.seq_lens))
        return max(1, size), batch.only_likeliest

    def _new_pass(self, *shape: int, adapted: bool = False) -> Any:
        size, only_likeliest = shape
        return CapturedGraph(self._runner, size, bool(only_likeliest), adapted)
