"""What cannot be split, and what cannot be done with a split model."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nanoinfer import LLM
from nanoinfer.ascend import GeneratorTorch
from nanoinfer.errors import UnsupportedModelError
from nanoinfer.model.llama import LlamaForCausalLM
from nanoinfer.model.parallel.ranks import StartedRanks
from nanoinfer.registry import ATTENTION_BACKENDS, KV_STORAGES, MODEL_FAMILIES, QUANTIZATIONS
from nanoinfer.sessions.inference import InferenceEngine
from tests.helpers.checkpoints import edited
from tests.helpers.split_models import PROMPTS, SIX_HEADS, WHOLE, Checkpoint, of, split_llm


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused is refused before a process is started."""

    def start(*arguments: object) -> None:
        raise AssertionError("a process is started")

    monkeypatch.setattr(StartedRanks, "__init__", start)


@pytest.mark.parametrize(
    ("size", "changes", "why"),
    [
        (0, {}, ""),
        (3, {}, "4 query heads"),
        (8, {}, "4 query heads"),
        (2, SIX_HEADS, "3 key/value heads"),
        (4, {"intermediate_size": 3}, "intermediate_size=3"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused_before_anything_starts(
    size: int, changes: dict[str, Any], why: str, checkpoint: Checkpoint
) -> None:
    with pytest.raises(ValueError, match=f"^tensor_parallel_size={size}.*{why}"):
        LLM(checkpoint("llama", **changes), tensor_parallel_size=size)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"capture": True}, "capture=True"),
        ({"model_impl": "transformers"}, "model_impl='transformers'"),
        ({"quantization": "mine"}, "quantization='mine'"),
        ({"kv_cache_dtype": "mine"}, "kv_cache_dtype='mine'"),
        ({"attention_backend": "mine"}, "attention_backend='mine'"),
        ({"quantization": "int3"}, "quantization='int3'"),
        ({"kernels": "fast"}, "kernels='fast'"),
        ({"device": "cpu:0"}, "device='cpu:0'"),
    ],
)
def test_what_cannot_be_combined_is_refused_before_anything_starts(
    options: dict[str, Any], why: str, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for registry in (QUANTIZATIONS, KV_STORAGES, ATTENTION_BACKENDS):
        monkeypatch.setitem(registry, "mine", OwnHead)
    with pytest.raises(ValueError, match=f"^{why}"):
        LLM(checkpoint("llama"), tensor_parallel_size=2, **options)


class OwnHead(LlamaForCausalLM):
    """A family whose head does something that ranks cannot do by themselves."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.lm_head = type("Head", (type(self.lm_head),), {})(self.config, torch.float32, torch.device("cpu"))


def test_a_family_from_outside_is_refused_and_so_is_a_head_of_its_own(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODEL_FAMILIES, "OwnHead", OwnHead)
    path = edited(checkpoint("llama"), tmp_path / "own", architectures=["OwnHead"])
    with pytest.raises(ValueError, match="architecture OwnHead"):
        LLM(path, tensor_parallel_size=2)
    monkeypatch.setattr(OwnHead, "__module__", "nanoinfer.model.own")
    with pytest.raises(UnsupportedModelError, match="OwnHead has a head"), split_llm(path, 2):
        pass


def test_only_the_engine_runs_a_split_model(checkpoint: Checkpoint) -> None:
    """Anything else would wait for ranks that know of nothing."""
    with split_llm(checkpoint("llama"), 2, **WHOLE) as llm:
        for other in (GeneratorTorch, InferenceEngine):
            with pytest.raises(ValueError, match="split over 2 processes"):
                other(llm.model)
        with pytest.raises(RuntimeError, match="split over 2 processes"):
            llm.model.model.model.embed_tokens(torch.tensor([1]))
        assert len(llm.generate(PROMPTS[0], of(0))[0].token_ids) == 10, "and that still works"


def test_explicit_arguments_are_checked_before_the_others_hear_of_them(checkpoint: Checkpoint) -> None:
    with split_llm(checkpoint("llama"), 2, **WHOLE) as llm:
        runner = llm.engine.model_runner
        with pytest.raises(ValueError, match="token 320 is outside"):
            runner.forward_extend(torch.tensor([320]), [0], [1], [0], [0])
        logits, _ = runner.forward_extend(torch.tensor([5, 6]), [0], [2], [0], [0, 1])
        assert logits.shape == (1, 320)


def test_another_number_of_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="WORLD_SIZE=3"):
        LLM("story", tensor_parallel_size=2)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="RANK=1"):
        LLM("story", tensor_parallel_size=2)
