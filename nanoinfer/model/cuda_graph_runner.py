"""Decode passes as CUDA graphs.

It is all there is of CUDA graphs here. CudaGraphRunner are what GraphRunner are on a CPU, with plain torch in place of the
kernels in C++. Three things differ. Rows are on the host, so the slots that a pass
reads are copied to the GPU. Plain torch attends over a rectangle, so its width belongs to what is recorded. And torch takes
slot −1 for the last one, so padding must be something else.

Like all passes of plain torch, they do not promise the same bits for other sizes and widths.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from nanoinfer.model.forward_batch import ForwardBatch, ForwardMode
from nanoinfer.model.graph_runner import GraphRunner
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.kernels.program import NotCapturableError
from nanoinfer.model.kernels.select import selection_of

SMALLEST_WIDTH = 128
WARM_UPS = 3  # as in torch's example
# The columns of a pass's lines: token, row, length of the sequence, slot of the new token, slots of the whole sequence.
TOKEN, ROW, LENGTH, SLOT, SEQUENCE = range(5)

Compute = Callable[[], Sequence[torch.Tensor]]
Record = Callable[[Compute], tuple[torch.cuda.CUDAGraph, Sequence[torch.Tensor]]]


def padded_size(num_requests: int) -> int:
    """The size of the graph that serves so many requests: a power of two up to 16, then a multiple of 16.

    These are nano-vllm's sizes. They are coarser than on a CPU: to a GPU, a few tokens more cost little time.
    """
    return 1 << (num_requests - 1).bit_length() if num_requests <= 16 else -(-num_requests // 16) * 16


class CudaGraph:
    """A decode pass of `size` requests with at most `width` tokens each: its input in a tensor `lines` on the GPU, and its
    graph.

    A request is one line of `lines`, int32 [size, 4 + width]. Rows of padding, and requests that have ended (slot −1), are
    copies of the first other line. They compute what it computes, and write the same K/V to the same slot once more, which
    changes nothing, whatever the storage of K/V. Their logits mean nothing.
    """

    def __init__(self, runner: Any, size: int, width: int, record: Record):
        self._runner, self._size, self._width, self._record = runner, size, width, record
        self._host = np.zeros((size, SEQUENCE + width), dtype=np.int32)
        self.lines = torch.zeros((size, SEQUENCE + width), dtype=torch.int32, device=runner.token_to_kv_pool.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self._outputs: Sequence[torch.Tensor] = ()  # of the graph

    def fill(self, batch: ForwardBatch) -> None:
        """Take a DECODE of 1 to `size` requests. One copy to the GPU, which ends before this returns. ValueError when no
        request has a slot: there is nothing to compute then."""
        inputs = (batch.input_ids, batch.req_pool_indices, batch.seq_lens, batch.out_cache_loc)
        fields = [tensor.cpu().numpy() for tensor in inputs]
        has_slot = np.flatnonzero(fields[SLOT] >= 0)
        if not len(has_slot):
            raise ValueError("out_cache_loc: −1 for every request, must be a slot for at least one")
        source = np.full(self._size, has_slot[0])
        source[has_slot] = has_slot
        tokens, rows, lens, slots = (field[source] for field in fields)
        lines, table = self._host, self._runner.req_to_token_pool.req_to_token.cpu().numpy()
        lines[:, TOKEN], lines[:, ROW], lines[:, LENGTH], lines[:, SLOT] = tokens, rows, lens, slots
        lines[:, SEQUENCE:] = table[rows, : self._width]
        lines[np.arange(self._size), SEQUENCE + lens - 1] = slots
        self.lines.copy_(torch.from_numpy(lines))

    def run(self) -> Sequence[torch.Tensor]:
        """Compute what `fill` took: only logits [size, V], padding included. The next run of any pass overwrites them.

        The first run records. NotCapturableError when it cannot; K/V of the new tokens may have been written then.
        """
        if self.graph is None:
            self.graph, self._outputs = self._record(self.compute)
        self.graph.replay()
        return self._outputs

    def compute(self) -> tuple[torch.Tensor]:
        """The whole pass, on the GPU alone: everything is made from `lines`, whose place and shape are fixed."""
        rows, lens, slots = (self.lines[:, column].contiguous() for column in (ROW, LENGTH, SLOT))
        starts = torch.arange(0, self._size * self._width, self._width, dtype=torch.int32, device=lens.device)
        batch = ForwardBatch(
            forward_mode=ForwardMode.DECODE,
            input_ids=self.lines[:, TOKEN].long(),
            req_pool_indices=rows,
            seq_lens=lens,
            out_cache_loc=slots,
        )
        metadata = InputMetadata(
            forward_mode=ForwardMode.DECODE,
            batch_size=self._size,
            total_num_tokens=self._size * self._width,
            max_seq_len=self._width,
            req_pool_indices=rows,
            start_loc=starts,
            seq_lens=lens,
            prefix_lens=None,
            positions=lens.long() - 1,
            req_to_token_pool=self._runner.req_to_token_pool,
            token_to_kv_pool=self._runner.token_to_kv_pool,
            out_cache_loc=slots,
            kv_indptr=starts,
            kv_indices=self.lines[:, SEQUENCE:].reshape(-1),
            batch=batch,
            attention_backend=self._runner.attention_backend,
        )
        return (self._runner.run(batch.input_ids, metadata).logits,)


class CudaGraphRunner(GraphRunner):
    """The captured graphs of one ModelRunner, by size and width. Only decode passes of one new token per request."""

    note = "CUDA graphs, for passes of one new token per request"
    takes_adapters = False  # plain torch looks at them on the host
    takes_ahead = False  # tokens are chosen on the host

    def __init__(self, runner: Any):
        super().__init__(runner)
        self._stream: torch.cuda.Stream | None = None  # of all graphs, as is the pool of memory
        self._pool: Any = None

    def record(self, compute: Compute) -> tuple[torch.cuda.CUDAGraph, Sequence[torch.Tensor]]:
        """What `compute` launches on the GPU as a graph, and the outputs that each replay fills. NotCapturableError when
        torch refuses: what is captured may not make the host wait for the GPU. Other threads may use a GPU meanwhile.

        A capture launches nothing. `compute` runs a few times before it, each with the same effect, because the first calls
        of a shape set up what later ones use. All graphs may share one pool of memory: they run one after the other, and
        none reads what another left.
        """
        try:
            device = self._runner.token_to_kv_pool.device
            side = self._stream = self._stream or torch.cuda.Stream(device)
            current = torch.cuda.current_stream(device)
            with torch.cuda.stream(current):  # a capture that fails does not go back to this stream by itself
                side.wait_stream(current)
                with torch.cuda.stream(side):
                    for _ in range(WARM_UPS):
                        compute()
                current.wait_stream(side)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self._pool, stream=side, capture_error_mode="thread_local"):
                    outputs = compute()
        except RuntimeError as error:  # as all of torch's are that come from CUDA
            reason = str(error).partition("\n")[0]
            raise NotCapturableError(f"no CUDA graph: {reason}") from error
        self._pool = graph.pool()
        return graph, outputs

    def try_out(self) -> None:
        """Find out `reason` now, by a pass of one token in a slot that is borrowed for it: padding needs a line to copy."""
        pool = self._runner.token_to_kv_pool
        if self.reason or (slots := pool.alloc(pool.page_size)) is None:
            return
        first, one = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int32)
        try:
            self.forward(
                ForwardBatch(
                    forward_mode=ForwardMode.DECODE,
                    input_ids=first,
                    req_pool_indices=first,
                    seq_lens=one,
                    out_cache_loc=slots[:1],
                )
            )
        finally:
            pool.free(slots)

    def _why_not(self) -> str:
        if (kernels := selection_of(getattr(self._runner.model, "kernels", self._runner.model))).name != "torch":
            return f"its kernels are {kernels.name}, and only torch's are captured as CUDA graphs"
        if (backend := selection_of(self._runner.attention_backend)).name != "torch_native":
            return f"its attention_backend is {backend.name}, and only torch_native is captured as CUDA graphs"
        return ""

    def _shape(self, batch: ForwardBatch) -> tuple[int, ...] | None:
        """Widths are powers of two, so that a growing sequence needs few graphs, and at most half of each line is idle."""
        # No wider than the rotary tables: else the network would look at the positions, on the host.
        rotary, most = getattr(self._runner.model, "rotary", None), self._runner.req_to_token_pool.max_context_len
        most = most if rotary is None else min(most, len(rotary.cos))
        longest = max(batch.seq_lens.tolist(), default=1)
        if longest > most:
            return None
        width = max(SMALLEST_WIDTH, 1 << (longest - 1).bit_length())
        return padded_size(max(1, len(batch.seq_lens))), min(width, most)

    def _new_pass(self, *shape: int, adapted: bool = False) -> CudaGraph:
        size, width = shape
        return CudaGraph(self._runner, size, width, self.record)


def select_graph_runner(capture: str | bool, runner: Any) -> GraphRunner | None:
    """The captured graphs that `capture` asks for: on CUDA, CUDA graphs. Errors as in `select`."""
    on_cuda = runner.token_to_kv_pool.device.type == "cuda"
    return (CudaGraphRunner if on_cuda else GraphRunner).select(capture, runner)
