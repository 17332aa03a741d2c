"""Captured graphs: the same bits as the decode passes they were recorded from, for any batch, on memory of their own."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer.cache.memory_pool import ReqToTokenPool
from nanoinfer.model.attention import select_attention_backend
from nanoinfer.model.graph_runner import CapturedGraph, GraphRunner
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.kernels.program import NotCapturableError, Program
from nanoinfer.model.llama import DecoderLayer
from nanoinfer.model.loader import load_model
from nanoinfer.model.model_runner import ModelRunner
from tests.helpers.checkpoints import FAMILIES
from tests.helpers.decoding import ROWS, SLOTS, WIDTH, Sequences
from tests.helpers.kernels import CPU, DTYPES, need_cpp
from tests.helpers.waiting import Worker

Checkpoint = Callable[..., Path]


@pytest.fixture(autouse=True)
def _kernels() -> None:
    need_cpp("float32")


def make_runner(path: Path, dtype: torch.dtype = torch.float32) -> ModelRunner:
    loaded = load_model(path, dtype)
    backend = select_attention_backend("cpp", dtype, CPU)
    return ModelRunner(loaded.model, ReqToTokenPool(ROWS, WIDTH), loaded.new_kv_pool(SLOTS), backend)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_bits_are_those_of_the_pass_it_was_recorded_from(family: str, dtype: torch.dtype, checkpoint: Checkpoint):
    need_cpp(dtype)
    runner = make_runner(checkpoint(family), dtype)
    passes = GraphRunner(runner)
    for seed in range(3):  # the first one records
        some = Sequences(runner, 5, seed=seed)
        assert torch.equal(some.captured(passes), some.eager())
    assert len(passes.passes) == 1


def test_a_batch_is_filled_up_with_padding_that_stores_nothing(checkpoint: Checkpoint):
    runner = make_runner(checkpoint("llama"))
    passes = GraphRunner(runner)
    Sequences(runner, 20, seed=1).captured(passes)
    some = Sequences(runner, 17, seed=2)
    expected = some.eager()
    pool = runner.token_to_kv_pool
    before = [pool.get_key_buffer(layer).clone() for layer in range(3)]
    assert torch.equal(some.captured(passes), expected)
    assert list(passes.passes) == [(20, False)]
    assert all(torch.equal(pool.get_key_buffer(layer), before[layer]) for layer in range(3))
    metadata = passes.passes[20, False].metadata
    assert metadata.out_cache_loc[17:].tolist() == [-1] * 3
    assert metadata.positions[17:].tolist() == metadata.seq_lens[17:].tolist() == [0] * 3
    assert passes.passes[20, False].input_ids[17:].tolist() == [0] * 3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("count", "likeliest"), [(1, True), (3, True), (3, False), (17, False)])
def test_a_multi_step_run_chooses_the_tokens_of_passes_one_by_one(
    count: int, likeliest: bool, dtype: torch.dtype, checkpoint: Checkpoint
) -> None:
    """Some greedy, some drawn; each request stops at its own count, and what is behind stays as it was."""
    need_cpp(dtype)
    steps, rng = 4, np.random.default_rng(count)
    counts = rng.integers(1, steps + 1, count)
    counts[0] = steps
    temperatures = np.zeros(count, np.float32) if likeliest else rng.choice([0.0, 0.7, 1.5], count).astype(np.float32)
    numbers = rng.random((steps, count))
    runner = make_runner(checkpoint("llama"), dtype)
    passes, table = GraphRunner(runner), runner.req_to_token_pool.req_to_token
    some = Sequences(runner, count)
    free = np.setdiff1d(np.arange(SLOTS), table.numpy())[: steps * count].astype(np.int32).reshape(count, steps)
    for row, length, slots in zip(some.rows.tolist(), some.lens.tolist(), free, strict=True):
        table[row, length : length + steps] = torch.from_numpy(slots)
    batch = some.batch(only_likeliest=likeliest, size_varies=True)
    assert passes.run_multi_step(batch, counts, temperatures, numbers) is None, "nothing is captured yet"

    kernels, wanted, ids, lens, slots = runner.model.kernels, [], some.ids, some.lens, some.slots
    for step in range(steps):
        found = passes.forward(replace(batch, input_ids=ids, seq_lens=lens, out_cache_loc=slots))
        if found.likeliest is not None:
            tokens = found.likeliest.token_ids.clone()
        else:
            tokens = kernels.draw(found.logits.float(), temperatures, numbers[step])[0]
        wanted.append(tokens)
        ids, lens, slots = tokens, lens + 1, torch.from_numpy(free[:, step].copy())
    pool = runner.token_to_kv_pool
    kept = [pool.get_key_buffer(layer).clone() for layer in range(3)]
    beyond = [slot for i in range(count) for slot in free[i, counts[i] - 1 :]]
    for layer in range(3):
        pool.get_key_buffer(layer)[free.reshape(-1)] = 7.0

    got = passes.run_multi_step(batch, counts, temperatures, numbers)
    assert got.shape == (steps, count)
    for i in range(count):
        assert got[: counts[i], i].tolist() == [int(tokens[i]) for tokens in wanted[: counts[i]]]
    for layer in range(3):
        after = pool.get_key_buffer(layer)
        within = np.setdiff1d(free, beyond)
        assert torch.equal(after[within], kept[layer][within])
        assert (after[beyond] == 7.0).all(), "the last token has no K/V yet"


def test_another_model_in_the_runner_is_noticed(checkpoint: Checkpoint):
    runner, other = make_runner(checkpoint("llama")), make_runner(checkpoint("qwen3", head_dim=16))
    passes = GraphRunner(runner)
    some = Sequences(runner, 2)
    some.captured(passes)
    runner.model = other.model
    assert torch.equal(some.captured(passes), some.eager())
    runner.model = lambda *args: other.model(*args)
    assert passes.forward(some.batch()) is None
    assert "its kernels are function" in passes.reason


def test_other_weights_in_a_layer_are_noticed_and_the_earlier_ones_are_not_read_any_more(checkpoint: Checkpoint):
    runner, other = make_runner(checkpoint("llama")), make_runner(checkpoint("llama", seed=1))
    passes = GraphRunner(runner)
    some = Sequences(runner, 2)
    before = some.captured(passes)
    runner.model.model.layers[1].mlp.down_proj.weights = other.model.model.layers[1].mlp.down_proj.weights
    after = some.captured(passes)
    assert torch.equal(after, some.eager())
    assert not torch.equal(after, before)


def test_forward_hooks_are_called_in_every_pass_while_there_are_any(checkpoint: Checkpoint):
    runner = make_runner(checkpoint("llama"))
    passes, called = GraphRunner(runner), []
    some = Sequences(runner, 2)
    some.captured(passes)
    hook = runner.model.model.norm.register_forward_pre_hook(lambda *_: called.append(1))
    assert passes.forward(some.batch()) is None
    hook.remove()
    some.captured(passes)
    assert not passes.reason


def test_a_layer_that_reads_the_batch_is_not_recorded_because_a_replay_would_not_see_the_next_one(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_runner(checkpoint("llama"))
    passes, some = GraphRunner(runner), Sequences(runner, 2)
    forward = DecoderLayer.forward

    def reading(self: DecoderLayer, x: Any, residual: Any, rotation: Any, metadata: InputMetadata, *rest: Any) -> Any:
        assert metadata.batch.only_likeliest is False
        return forward(self, x, residual, rotation, metadata, *rest)

    monkeypatch.setattr(DecoderLayer, "forward", reading)
    assert passes.forward(some.batch()) is None
    assert passes.reason == "a layer reads batch.only_likeliest, which no buffer of a recorded pass has"
    some.eager()


def test_a_pool_for_another_model_is_refused_before_anything_is_written(checkpoint: Checkpoint):
    """The kernels would write beyond its buffers."""
    runner, other = make_runner(checkpoint("llama")), make_runner(checkpoint("qwen3", head_dim=32))
    runner.model = other.model
    with pytest.raises(ValueError, match=r"token_to_kv_pool: \[2, 16\] numbers per slot, must be \[2, 32\]"):
        runner.forward_extend(torch.tensor([5]), [0], [1], [0], [0])
    assert not runner.token_to_kv_pool.get_key_buffer(0).any()


# --- programs --------------------------------------------------------------------------------------------------------


def test_a_program_allocates_nothing_and_buffers_share_their_memory(checkpoint: Checkpoint):
    runner = make_runner(checkpoint("llama", num_hidden_layers=12))
    some = Sequences(runner, 4)
    captured = CapturedGraph(runner, 4)
    captured.fill(some.batch())
    assert torch.equal(captured.run()[0], some.eager())
    program = captured.program
    of_a_layer = (
        4 * 4 * (64 * 4 + 128 + 2 * 96 + 96)
    )  # four rows of float32: x, q, k, v, attended, gate, up, product ...
    assert program.num_bytes < 2 * of_a_layer
    assert torch.equal(captured.run()[0], some.eager())


def test_every_call_is_labelled_with_its_module_and_timed_on_demand(checkpoint: Checkpoint):
    runner = make_runner(checkpoint("llama"))
    some = Sequences(runner, 1)
    captured = CapturedGraph(runner, 1)
    captured.fill(some.batch())
    captured.run()
    program = captured.program
    program.measure()
    captured.run()
    seconds = program.seconds()
    assert all(spent > 0 for _, _, spent in seconds)
    assert [(name, label) for name, label, _ in seconds if "layers.1." in label] == [
        ("linear", "model.layers.1.self_attn.qkv_proj"),
        ("rotate", "model.layers.1.self_attn"),
        ("store_rows", "model.layers.1.self_attn"),
        ("attention", "model.layers.1.self_attn"),
        ("linear", "model.layers.1.self_attn.o_proj"),
        ("linear_silu_and_mul", "model.layers.1.mlp.gate_up_proj"),
        ("linear", "model.layers.1.mlp.down_proj"),
    ]
    assert seconds[-1][:2] == ("linear", "lm_head")
    program.measure(False)
    captured.run()


def test_what_torch_computes_cannot_be_recorded():
    x = torch.ones(2, 3)
    with pytest.raises(NotCapturableError, match="torch computes mul"):
        Program.record(lambda: (x * 2,))
    with pytest.raises(NotCapturableError, match="torch computes _local_scalar_dense"):
        Program.record(lambda: (x[0, 0].item(), x)[1:])
    for name, take in (
        ("numpy", lambda: x.numpy()),
        ("tolist", lambda: x.tolist()),
        ("__array__", lambda: np.asarray(x)),
    ):
        with pytest.raises(NotCapturableError, match=f"{name} takes numbers out of torch"):
            Program.record(lambda take=take: (take(), x)[1:])


def test_a_recording_sees_only_its_own_thread(checkpoint: Checkpoint):
    runner, other = make_runner(checkpoint("llama")), make_runner(checkpoint("llama"))
    some, others = Sequences(runner, 2), Sequences(other, 2)
    expected = some.eager()
    computed = []

    def compute() -> tuple[torch.Tensor, ...]:
        computed.append(Worker(others.eager).result())
        return (runner.run(captured.input_ids, captured.metadata).logits,)

    captured = CapturedGraph(runner, 2)
    captured._compute = compute
    captured.fill(some.batch())
    captured.run()
    assert torch.equal(computed[0], others.eager())
    alone = CapturedGraph(runner, 2)
    alone.fill(some.batch())
    alone.run()
    assert len(captured.program.calls) == len(alone.program.calls)
    assert captured.program.labels == alone.program.labels
    assert torch.equal(captured.run()[0], expected)
