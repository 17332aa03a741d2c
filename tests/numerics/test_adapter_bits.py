"""Adapters: the same bits in any company, in captured graphs, and with sizes that are no multiples of anything."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer import LLM
from nanoinfer.model.adapter_rows import AdapterRows
from nanoinfer.model.layers import low_rank
from nanoinfer.model.loader import load_model
from tests.helpers.adapters import MIXED, PROMPTS, Name, alone, outputs, save_adapter, three_adapters
from tests.helpers.checkpoints import save_checkpoint
from tests.helpers.kernels import need_cpp

Checkpoint = Callable[..., Path]
CPP = {"kernels": "cpp", "attention_backend": "cpp"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "bfloat16"},
        {"capture": False},
        {"num_scheduler_steps": 3},
        {"chunked_prefill_size": 3},
        {"max_adapters_on_device": 1},
        {"quantization": "int8"},
        {"quantization": "int4", "dtype": "bfloat16"},
        {"kv_cache_dtype": "int8"},
        {"page_size": 4, "max_total_tokens": 64, "schedule_conservativeness": 0.001},
    ],
    ids=str,
)
def test_every_request_of_a_mixed_batch_equals_itself_alone(options: dict[str, Any], checkpoint: Checkpoint) -> None:
    need_cpp(options.get("dtype", "float32"))
    settings = {"max_total_tokens": 512, "max_context_len": 60, **CPP, **options}
    llm = LLM(checkpoint("llama"), adapters=three_adapters(checkpoint("llama")), **settings)
    together, again = outputs(llm), outputs(llm)
    for prompt, name, first, second in zip(PROMPTS, MIXED, together, again, strict=True):
        wanted = alone(llm, prompt, name)
        assert first.logprobs == wanted
        assert second.logprobs == wanted
    llm.engine.check_integrity()
    llm.shutdown()


def test_without_adapters_nothing_changes(checkpoint: Checkpoint) -> None:
    need_cpp("float32")
    path = checkpoint("llama")
    plain, loaded = (
        LLM(path, max_total_tokens=512, adapters=each, **CPP) for each in (None, three_adapters(checkpoint("llama")))
    )
    none: list[Name] = [None] * len(PROMPTS)
    assert [o.logprobs for o in outputs(plain, names=none)] == [o.logprobs for o in outputs(loaded, names=none)]
    calls = [
        [called.name for each in llm.engine.model_runner.captured.passes.values() for called, _ in each.program.calls]
        for llm in (plain, loaded)
        if llm.engine.model_runner.captured is not None
    ]
    assert calls[0] == calls[1]
    assert "low_rank" not in calls[0]
    assert loaded.engine.stats().adapter_fetches == 0


def test_captured_passes_are_captured_again_for_a_larger_rank(checkpoint: Checkpoint, tmp_path: Path) -> None:
    need_cpp("float32")
    network = load_model(checkpoint("llama"), kernels="torch").model
    llm = LLM(checkpoint("llama"), max_total_tokens=512, **CPP)
    for i, (rank, ends) in enumerate([(2, ["q_proj"]), (3, ["q_proj", "up_proj"]), (20, ["q_proj", "up_proj"])]):
        llm.load_adapter(f"a{i}", save_adapter(tmp_path / f"a{i}", network, i, rank, ends))
        names: list[Name] = [f"a{i}", f"a{max(0, i - 1)}", None]
        together = outputs(llm, PROMPTS[:3], names)
        assert [output.logprobs for output in together] == [
            alone(llm, prompt, name) for prompt, name in zip(PROMPTS, names, strict=False)
        ]


def test_a_larger_adapter_that_arrives_during_a_pass_makes_no_row_longer_than_its_room() -> None:
    """It comes from another thread, at any moment: here, as soon as the kernel's caller has looked at the size."""
    widths: list[tuple[int, ...]] = []
    strides: list[int] = []

    class Growing(low_rank.CppLowRank):
        most_ranks = property(lambda self: next(sizes), lambda self, value: None)  # type: ignore[assignment]

    class Input(torch.Tensor):
        def new_empty(self, *shape: int) -> torch.Tensor:  # type: ignore[override]
            widths.append(shape)
            return torch.empty(shape)

    sizes = itertools.count(8, 8)
    table = Growing(16, 16, 1, torch.float32, lambda *arguments: strides.append(arguments[-1]))
    rows = AdapterRows(np.zeros(3, dtype=np.int32), {})
    table.add(torch.zeros(3, 16).as_subclass(Input), torch.zeros(3, 16), rows)
    assert widths == [(3, strides[0])]


def test_sizes_that_are_no_multiples_of_anything_give_the_tokens_of_plain_torch(tmp_path: Path) -> None:
    need_cpp("float32")
    sizes = {
        "hidden_size": 40,
        "intermediate_size": 72,
        "num_attention_heads": 4,
        "head_dim": 16,
        "num_hidden_layers": 2,
    }
    path = save_checkpoint(tmp_path / "odd", "llama", **sizes)
    network = load_model(path, kernels="torch").model
    folders = {f"r{rank}": save_adapter(tmp_path / f"r{rank}", network, rank, rank) for rank in (1, 3, 20)}
    prompts, names = [[5, 6, 7], [8, 9]] * 4, ["r1", "r3", "r20", None] * 2
    by_torch, by_cpp = (
        [output.token_ids for output in outputs(llm, prompts, names)]
        for llm in (LLM(path, max_total_tokens=512, kernels=each, adapters=folders) for each in ("torch", "cpp"))
    )
    assert by_cpp == by_torch
