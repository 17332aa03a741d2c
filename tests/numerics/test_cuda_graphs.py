"""Decode passes as CUDA graphs, as far as they go without a GPU: their logic with a stand-in for torch.cuda on the CPU, and
with tensors that have no data, where nothing may need the host."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.memory_pool import ReqToTokenPool, TokenToKVPool
from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model import cuda_graph_runner
from nanoinfer.model.attention import select_attention_backend
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.cuda_graph_runner import WARM_UPS, CudaGraph, CudaGraphRunner, select_graph_runner
from nanoinfer.model.families import find_family
from nanoinfer.model.graph_runner import GraphRunner
from nanoinfer.model.kernels.program import NotCapturableError
from nanoinfer.model.kernels.select import select_kernels, selected
from nanoinfer.model.kernels.torch_native import TorchKernels
from nanoinfer.model.loader import load_model
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.registry import QUANTIZATIONS
from tests.helpers.checkpoints import FAMILIES
from tests.helpers.decoding import ROWS, SLOTS, WIDTH, Sequences
from tests.helpers.fake_cuda import FakeCuda, FakeGraph

Checkpoint = Callable[..., Path]

CPU, CUDA, META = map(torch.device, ("cpu", "cuda", "meta"))
PROMPTS = [[5, 9, 200, 31, 7, 7, 250, 11, 64], [7], list(range(100, 123))]
GREEDY = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)
PLAIN: dict[str, Any] = {"kernels": "torch", "attention_backend": "torch_native"}


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Widths of 8, 16, 32 and 64, so that short sequences need several."""
    monkeypatch.setattr(cuda_graph_runner, "SMALLEST_WIDTH", 8)


def make_runner(path: Path, device: torch.device = CPU) -> ModelRunner:
    loaded = load_model(path, device=device, kernels="torch")
    backend = select_attention_backend("torch_native", loaded.dtype, device)
    return ModelRunner(loaded.model, ReqToTokenPool(ROWS, WIDTH), loaded.new_kv_pool(SLOTS), backend)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


# --- graphs ----------------------------------------------------------------------------------------------------------


def runner_on(device: str, kernels: str = "torch", backend: str = "torch_native") -> SimpleNamespace:
    """As little of a ModelRunner as a pass needs that is never computed."""
    return SimpleNamespace(
        model=SimpleNamespace(kernels=selected(SimpleNamespace(recordable=kernels == "cpp"), kernels)),
        attention_backend=selected(SimpleNamespace(recordable=backend == "cpp"), backend),
        token_to_kv_pool=SimpleNamespace(device=SimpleNamespace(type=device)),
        req_to_token_pool=SimpleNamespace(max_context_len=64, req_to_token=torch.zeros(1, 64)),
    )


def test_a_function_is_warmed_up_on_a_side_stream_and_captured_on_it(cuda: FakeCuda):
    def compute() -> tuple[torch.Tensor]:
        cuda.events.append(("compute", cuda.stream_now.name))
        return (number + 1,)

    passes, number = CudaGraphRunner(runner_on("cuda")), torch.zeros(1)
    assert cuda.events == []  # an engine that never captures takes nothing from the GPU
    graph, outputs = passes.record(compute)
    warmed_up = [("side", "waits for", "main"), *[("compute", "side")] * WARM_UPS, ("main", "waits for", "side")]
    assert cuda.events == [*warmed_up, ("capture", None, "side"), ("compute", "side")]
    assert cuda.stream_now.name == "main"
    number.fill_(7)
    graph.replay()
    assert outputs[0].tolist() == [8]
    passes.record(compute)
    assert ("capture", "pool", "side") in cuda.events  # the pool of the first graph


def test_what_cannot_be_captured_is_said_and_leaves_the_stream_as_it_was(cuda: FakeCuda):
    passes, number = CudaGraphRunner(runner_on("cuda")), torch.ones(1)
    with pytest.raises(NotCapturableError, match=r"^no CUDA graph: CUDA error: \S+ not permitted .* capturing$"):
        passes.record(lambda: (number * number.item(),))
    assert cuda.stream_now.name == "main"
    assert len(passes.record(lambda: (number * 2,))[1]) == 1  # the next capture is not locked out


# --- which passes are recorded ---------------------------------------------------------------------------------------


def test_on_cuda_passes_are_captured_as_graphs_unless_one_asks_for_none(cuda: FakeCuda):
    on_cuda, on_cpu = select_graph_runner("auto", runner_on("cuda")), runner_on("cpu", "cpp", "cpp")
    assert type(on_cuda) is CudaGraphRunner
    assert on_cuda.reason == ""
    other = select_graph_runner("auto", runner_on("cuda", kernels="mine"))
    assert other.reason == "its kernels are mine, and only torch's are captured as CUDA graphs"
    assert select_graph_runner(False, runner_on("cuda")) is None
    assert type(select_graph_runner("auto", on_cpu)) is GraphRunner
    with pytest.raises(KernelsUnavailableError, match=r"^capture=True: passes on device='npu' are not recorded"):
        select_graph_runner(True, runner_on("npu"))
    for other in ({"kernels": "mine"}, {"backend": "mine"}):
        with pytest.raises(KernelsUnavailableError, match=r"^capture=True: its \w+ (is|are) mine, and only torch"):
            select_graph_runner(True, runner_on("cuda", **other))


# --- on the CPU ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_kv_are_those_of_the_pass_without_capture(family: str, checkpoint: Checkpoint, cuda: FakeCuda):
    runner = make_runner(checkpoint(family))
    passes = CudaGraphRunner(runner)
    for seed in range(3):  # other rows, lengths and slots each time; the first one records
        some = Sequences(runner, 5, seed)
        before = some.kv()
        logits = some.captured(passes)
        stored = some.kv()
        for buffer, old in zip(some.kv(), before, strict=True):
            others = np.setdiff1d(np.arange(SLOTS), some.slots.numpy())  # padding has written nowhere else
            assert torch.equal(buffer[others], old[others])
        torch.testing.assert_close(logits, some.eager())
        torch.testing.assert_close(stored, some.kv())
    assert list(passes.passes) == [(8, 32)]
    assert passes.passes[8, 32].graph.replays == 3


def test_passes_are_by_size_and_width(checkpoint: Checkpoint, cuda: FakeCuda):
    runner = make_runner(checkpoint("llama"))
    passes = CudaGraphRunner(runner)
    for count, longest in [(1, 3), (1, 8), (2, 9), (3, 16), (4, 17), (17, 33), (20, 40), (1, 7)]:
        some = Sequences(runner, count, longest=longest)
        torch.testing.assert_close(some.captured(passes), some.eager())
    assert list(passes.passes) == [(1, 8), (2, 16), (4, 16), (4, 32), (32, 64)]


@pytest.mark.cpu
def test_the_width_ends_where_the_networks_positions_end(checkpoint: Checkpoint, cuda: FakeCuda):
    loaded = load_model(checkpoint("llama"), kernels="torch", max_context_len=50)
    backend = select_attention_backend("torch_native", loaded.dtype, CPU)
    runner = ModelRunner(loaded.model, ReqToTokenPool(ROWS, WIDTH), loaded.new_kv_pool(SLOTS), backend)
    passes = CudaGraphRunner(runner)
    some = Sequences(runner, 1, longest=50)
    torch.testing.assert_close(some.captured(passes), some.eager())
    assert list(passes.passes) == [(1, 50)]
    some.lens[0] = 51
    assert passes.forward(some.batch()) is None


def test_what_is_left_over_in_rows_is_never_read(checkpoint: Checkpoint, cuda: FakeCuda):
    runner = make_runner(checkpoint("llama"))
    passes = CudaGraphRunner(runner)
    some = Sequences(runner, 3)
    expected = some.captured(passes)
    table = runner.req_to_token_pool.req_to_token
    for row, length in zip(some.rows.tolist(), some.lens.tolist(), strict=True):
        table[row, length - 1 :] = SLOTS - 1  # the new token's slot is in `out_cache_loc`
    runner.token_to_kv_pool.get_key_buffer(0)[SLOTS - 1] = torch.nan
    assert torch.equal(some.captured(passes), expected)


def test_a_request_that_has_ended_stores_nothing(checkpoint: Checkpoint, cuda: FakeCuda):
    """Its slot is −1, which torch takes for the last one."""
    runner = make_runner(checkpoint("llama"))
    passes = CudaGraphRunner(runner)
    some = Sequences(runner, 3)
    expected, before = some.captured(passes), some.kv()
    for ended in ([0], [1], [0, 2]):
        going = [i for i in range(3) if i not in ended]
        ids, slots = some.ids.clone(), some.slots.clone()
        ids[ended], slots[ended] = 299, -1
        output = passes.forward(some.batch(input_ids=ids, out_cache_loc=slots))
        assert torch.equal(output.logits[going], expected[going])
        assert all(map(torch.equal, some.kv(), before))
    assert list(passes.passes) == [(4, 32)]


def test_capture_true_tries_a_pass_in_a_slot_that_it_gives_back(
    checkpoint: Checkpoint, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
):
    runner = make_runner(checkpoint("llama"))
    passes = CudaGraphRunner.select(True, runner)
    assert list(passes.passes) == [(1, 8)]
    assert runner.token_to_kv_pool.available_size() == SLOTS
    run = runner.run
    monkeypatch.setattr(runner, "run", lambda ids, metadata: (ids.max().item(), run(ids, metadata))[1])
    with pytest.raises(KernelsUnavailableError, match=r"capture=True: no CUDA graph: CUDA error: .* not permitted"):
        CudaGraphRunner.select(True, runner)
    assert runner.token_to_kv_pool.available_size() == SLOTS
    passes, some = CudaGraphRunner(runner), Sequences(runner, 2)
    assert passes.forward(some.batch()) is None  # it runs as before, then
    assert passes.reason.startswith("no CUDA graph: ")
    assert passes.passes == {}


@pytest.mark.cpu
@pytest.mark.parametrize(("family", "page_size"), [*zip(FAMILIES, (1, 4) * 3, strict=True), ("llama", 4)])
def test_an_engine_has_the_same_tokens_with_and_without(
    family: str, page_size: int, checkpoint: Checkpoint, cuda: FakeCuda
):
    captured, eager = (LLM(checkpoint(family), max_total_tokens=200, page_size=page_size, **PLAIN) for _ in range(2))
    passes = captured.engine.model_runner.captured = CudaGraphRunner(captured.engine.model_runner)
    expected = [out.token_ids for out in eager.generate(PROMPTS, GREEDY, use_tqdm=False)]
    for _ in range(2):
        assert [out.token_ids for out in captured.generate(PROMPTS, GREEDY, use_tqdm=False)] == expected
    assert set(passes.passes) == {(4, 32), (4, 64)}  # 24 and more tokens, later 33 and more
    assert sum(one.graph.replays for one in passes.passes.values()) == 2 * 11
    assert captured.engine.stats().capture == "yes (CUDA graphs, for passes of one new token per request)"
    assert eager.engine.stats().capture.startswith("no (its kernels are torch")


# --- with tensors that have no data ----------------------------------------------------------------------------------


def meta_pass(path: Path, dtype: torch.dtype) -> CudaGraph:
    """A pass of 4 requests. Its host-side buffers are never filled."""
    config = ModelConfig.from_pretrained(path)
    network = find_family(config.architecture)(config, 256, dtype, META)
    network.use_kernels(select_kernels("torch", dtype, META))
    shape = (config.num_key_value_heads, config.head_dim, config.num_hidden_layers)
    pool = TokenToKVPool(SLOTS, dtype, *shape, META)
    backend = select_attention_backend("torch_native", dtype, META)
    return CudaGraphRunner(ModelRunner(network, ReqToTokenPool(ROWS, 256), pool, backend))._new_pass(4, 256)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_whole_pass_needs_nothing_from_the_host(family: str, dtype: torch.dtype, checkpoint: Checkpoint):
    one = meta_pass(checkpoint(family), dtype)
    with FakeGraph() as graph:
        (logits,) = one.compute()
    assert (logits.device.type, logits.dtype, tuple(logits.shape)) == ("meta", dtype, (4, 320))
    assert graph.devices == {"meta"}
    assert len(graph.noted) > 50


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantized_products_need_nothing_from_the_host(quantization: str):
    weights = QUANTIZATIONS[quantization](torch.randn(48, 64), None, TorchKernels(), "some.layer")
    for name, value in vars(weights).items():
        if isinstance(value, torch.Tensor):
            setattr(weights, name, value.to(META))
    x = torch.empty(3, 64, device=META)
    with FakeGraph():
        assert weights.multiply(x).shape == (3, 48)


# --- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("family", FAMILIES)
def test_on_a_gpu_graphs_compute_what_passes_without_capture_do(family: str, checkpoint: Checkpoint):
    runner = make_runner(checkpoint(family), CUDA)
    passes = CudaGraphRunner(runner)
    for count, longest, seed in [(5, 30, 0), (3, 16, 1), (5, 30, 2), (6, 20, 3), (3, 12, 4), (1, 40, 5)]:
        some = Sequences(runner, count, seed, longest)
        before, logits = some.kv(), some.captured(passes)
        others = np.setdiff1d(np.arange(SLOTS), some.slots.numpy())
        assert all(torch.equal(buffer[others], old[others]) for buffer, old in zip(some.kv(), before, strict=True))
        torch.testing.assert_close(logits, some.eager(), rtol=1e-3, atol=1e-3)
        some.slots[0] = -1 if count > 1 else some.slots[0]
        again = some.captured(passes)
        torch.testing.assert_close(again[1:], logits[1:], rtol=1e-3, atol=1e-3)
    assert set(passes.passes) == {(8, 32), (4, 16), (1, 64)}


@pytest.mark.cuda
def test_on_a_gpu_an_engine_has_the_same_tokens_with_and_without() -> None:
    prompts = ["Once upon a time", "The dog", "One day, a girl named Lily went to the", "Tom"] * 2
    params = SamplingParams(max_new_tokens=48, temperature=0, ignore_eos=True)
    texts = []
    for capture in (True, False):
        llm = LLM("story", dtype="float32", device="cuda", capture=capture)
        texts.append([out.text for out in llm.generate(prompts, params, use_tqdm=False)])
        assert llm.engine.stats().capture.startswith("yes (CUDA graphs" if capture else "no (capture=False")
    assert texts[0] == texts[1]
