"""CudaGraph: what a function launches on a GPU, captured once and replayed by one call. Not yet run on a GPU.

It is to a GPU what Program is to a CPU, and torch does the recording: while a stream is captured, nothing that is launched
on it runs, but it is noted with its arguments (torch's notes on CUDA semantics, "CUDA Graphs").
"""

import threading
from collections.abc import Callable, Sequence

import torch

from nanoinfer.kernels.program import NotCapturableError

WARM_UPS = 3  # as in torch's example
_capturing = threading.Lock()  # only one capture may be under way in a process


class CudaGraph:
    """`replay` launches everything again, on the current stream. `outputs`: what the captured function returned; a replay
    fills them again, and so may the replay of any other graph of the same recorder."""

    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: Sequence[torch.Tensor]):
        self._graph, self.outputs = graph, outputs

    def replay(self) -> None:
        """Launch it again. The outputs are ready for whatever is launched on this stream afterwards."""
        self._graph.replay()


class GraphRecorder:
    """Captures functions as graphs that share one pool of memory for all that they allocate.

    They may share it because they run one after the other, and none reads what another left. Torch allocates what a graph
    needs from what earlier graphs of the pool let go, and takes more if that is too small. So the pool is smallest when the
    largest graph comes first. But a graph is captured when it is first needed, because each takes time and most are never
    needed; sizes far apart keep the difference small.

    Limits that torch sets: other threads may not compute on a GPU during a capture, and the captured function may not make
    the host wait for the GPU (`item`, `tolist`, `nonzero`, a copy between the two).
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._stream: torch.cuda.Stream | None = None  # made when the first graph is

    def record(self, compute: Callable[[], Sequence[torch.Tensor]]) -> CudaGraph:
        """Capture `compute`, and replay it once, so that its outputs are computed. NotCapturableError when torch refuses.

        It is called several times, each of which must have the same effect: a few times on the same side stream before the
        capture, because the first calls of a shape set up what later ones use (a library's handles and workspaces).
        """
        try:
            with _capturing:
                return self._capture(compute)
        except RuntimeError as error:  # which all of torch's errors are that come from CUDA
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise NotCapturableError(f"no CUDA graph: {reason}") from error

    def _capture(self, compute: Callable[[], Sequence[torch.Tensor]]) -> CudaGraph:
        if self._stream is None:
            self._stream, self._pool = torch.cuda.Stream(self._device), torch.cuda.graph_pool_handle()
        side, current = self._stream, torch.cuda.current_stream(self._device)
        with torch.cuda.stream(current):  # a capture that fails does not go back to this stream by itself
            side.wait_stream(current)
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    compute()
            current.wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=side):
                outputs = compute()
            graph.replay()
        return CudaGraph(graph, outputs)
