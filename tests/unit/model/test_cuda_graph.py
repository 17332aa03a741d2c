"""CUDA graphs: what torch is asked for and in which order, and which passes are captured where. No GPU is needed."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.kernels.cuda_graph import WARM_UPS, GraphRecorder
from nanoinfer.kernels.program import NotCapturableError
from nanoinfer.kernels.selection import selected
from nanoinfer.model.captured_passes import CapturedPasses
from nanoinfer.model.cuda_passes import CudaPasses, padded_size, select_captured_passes

CUDA = torch.device("cuda")


class Torch:
    """`torch.cuda` as a recorder uses it. `events` is what happened; `compute` adds the stream that it runs on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.events: list[Any] = []
        self.stream_now, self.capturing, self.fails_in_capture = "main", False, False
        fakes = {
            "Stream": lambda device: Stream("side", self.events),
            "graph_pool_handle": lambda: "pool",
            "current_stream": lambda device: Stream(self.stream_now, self.events),
            "stream": self.stream,
            "CUDAGraph": lambda: SimpleNamespace(replay=lambda: self.events.append(("replay", self.stream_now))),
            "graph": self.graph,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    @contextmanager
    def stream(self, stream: "Stream") -> Iterator[None]:
        before, self.stream_now = self.stream_now, stream.name
        try:
            yield
        finally:
            self.stream_now = before

    @contextmanager
    def graph(self, graph: Any, pool: str, stream: "Stream") -> Iterator[None]:
        """Like torch's, it leaves the stream as it is when the capture has failed."""
        self.events.append(("capture", pool, stream.name))
        before, self.stream_now, self.capturing = self.stream_now, stream.name, True
        try:
            yield
        finally:
            self.capturing = False
            if self.fails_in_capture:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
            self.stream_now = before

    def compute(self) -> tuple[torch.Tensor]:
        self.events.append(("compute", self.stream_now))
        if self.capturing and self.fails_in_capture:
            raise RuntimeError(
                "CUDA error: operation not permitted when stream is capturing\nCUDA kernel errors might ..."
            )
        return (torch.ones(1),)


class Stream(SimpleNamespace):
    def __init__(self, name: str, events: list[Any]):
        super().__init__(name=name, wait_stream=lambda other: events.append((name, "waits for", other.name)))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Torch:
    return Torch(monkeypatch)


def test_a_function_is_warmed_up_on_a_side_stream_captured_on_it_and_replayed(cuda: Torch) -> None:
    recorder = GraphRecorder(CUDA)
    assert cuda.events == []  # an engine that never captures takes nothing from the GPU
    graph = recorder.record(cuda.compute)
    assert cuda.events == [
        ("side", "waits for", "main"),
        *[("compute", "side")] * WARM_UPS,
        ("main", "waits for", "side"),
        ("capture", "pool", "side"),
        ("compute", "side"),
        ("replay", "main"),
    ]
    graph.replay()
    assert cuda.events[-2:] == [("replay", "main")] * 2
    assert graph.outputs[0].tolist() == [1]


def test_graphs_of_one_recorder_share_stream_and_memory(cuda: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    pools = iter(["first", "second"])
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    recorder = GraphRecorder(CUDA)
    recorder.record(cuda.compute)
    recorder.record(cuda.compute)
    GraphRecorder(CUDA).record(cuda.compute)
    captures = [event for event in cuda.events if event[0] == "capture"]
    assert captures == [("capture", "first", "side")] * 2 + [("capture", "second", "side")]


def test_what_cannot_be_captured_is_said_and_leaves_the_stream_as_it_was(cuda: Torch) -> None:
    cuda.fails_in_capture = True
    recorder = GraphRecorder(CUDA)
    with pytest.raises(NotCapturableError, match=r"^no CUDA graph: CUDA error: operation failed due to .* capture$"):
        recorder.record(cuda.compute)
    assert cuda.stream_now == "main"
    cuda.fails_in_capture = False
    assert recorder.record(cuda.compute).outputs[0].tolist() == [1]  # the next capture is not locked out


def test_an_error_in_a_warm_up_is_told_too(cuda: Torch) -> None:
    def compute() -> tuple[torch.Tensor]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    with pytest.raises(NotCapturableError, match="no CUDA graph: CUDA out of memory"):
        GraphRecorder(CUDA).record(compute)
    assert ("capture", "pool", "side") not in cuda.events


def test_sizes_are_far_apart() -> None:
    assert [padded_size(n) for n in (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 100)] == [
        1,
        2,
        4,
        4,
        8,
        8,
        16,
        16,
        32,
        32,
        48,
        112,
    ]


# --- which passes are captured ---------------------------------------------------------------------------------------


def runner_on(device: str, kernels: str = "torch", backend: str = "torch_native") -> SimpleNamespace:
    return SimpleNamespace(
        model=SimpleNamespace(kernels=selected(SimpleNamespace(recordable=kernels == "cpp"), kernels)),
        attention_backend=selected(SimpleNamespace(recordable=backend == "cpp"), backend),
        token_to_kv_pool=SimpleNamespace(device=SimpleNamespace(type=device)),
        req_to_token_pool=SimpleNamespace(max_context_len=64, req_to_token=torch.zeros(1, 64)),
    )


def test_the_device_decides_how_passes_are_captured() -> None:
    on_cuda = select_captured_passes("auto", runner_on("cuda"))
    assert type(on_cuda) is CudaPasses
    assert on_cuda.reason == "CUDA graphs have not been run on a GPU yet: capture=True tries them"
    assert on_cuda.note == "CUDA graphs, for passes of one new token per request"
    on_cpu = select_captured_passes("auto", runner_on("cpu", "cpp", "cpp"))
    assert type(on_cpu) is CapturedPasses
    assert (on_cpu.reason, on_cpu.note) == ("", "")
    assert select_captured_passes(False, runner_on("cuda")) is None


@pytest.mark.parametrize(
    ("runner", "reason"),
    [
        (runner_on("npu"), "passes on device='npu' are not recorded"),
        (runner_on("cuda", kernels="mine"), "its kernels are mine, and only torch's are captured as CUDA graphs"),
        (runner_on("cuda", backend="mine"), "its attention_backend is mine, and only torch_native is captured"),
    ],
)
def test_where_they_are_not_captured_it_is_said_why(runner: SimpleNamespace, reason: str) -> None:
    passes = select_captured_passes("auto", runner)
    assert passes is not None
    assert passes.reason.startswith(reason)
    lens = torch.ones(1, dtype=torch.int32)
    assert passes.forward(lens, lens, lens, lens) is None
    with pytest.raises(KernelsUnavailableError, match=f"^capture=True: {reason}"):
        select_captured_passes(True, runner)


def test_several_new_tokens_and_longer_sequences_than_a_row_run_as_before() -> None:
    passes = CudaPasses(runner_on("cuda"))
    one, long = torch.ones(1, dtype=torch.int32), torch.full((1,), 65, dtype=torch.int32)
    assert passes.forward(one, one, one, one, num_new=2) is None
    assert passes.forward(one, one, long, one) is None
    assert (passes.reason, passes.passes) == ("", {})
