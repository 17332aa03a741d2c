"""What cannot be split, and what cannot be done with a split model."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nanoinfer import LLM
from nanoinfer.errors import UnsupportedModelError
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.llama import DecoderLayer, LlamaForCausalLM
from nanoinfer.paged import GeneratorTorch
from nanoinfer.parallel.members import StartedRanks
from nanoinfer.registry import ATTENTION_BACKENDS, KV_STORAGES, MODEL_FAMILIES, QUANTIZATIONS
from nanoinfer.sessions.inference import InferenceEngine
from tests.helpers.checkpoints import edited
from tests.helpers.split_and_whole import PROMPTS, SIX_HEADS, WHOLE, Checkpoint, of
from tests.helpers.split_models import split_llm


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused is refused before a process is started."""

    def start(*arguments: object) -> None:
        raise AssertionError("a process is started")

    monkeypatch.setattr(StartedRanks, "__init__", start)


@pytest.mark.parametrize(
    ("size", "changes", "why"),
    [
        (3, {}, "divide the model's 4 query heads"),
        (8, {}, "divide the model's 4 query heads"),
        (2, SIX_HEADS, "the model's 3 key/value heads, or be a"),
        (4, {"intermediate_size": 3}, "at most intermediate_size=3"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused_before_anything_starts(
    size: int, changes: dict[str, Any], why: str, checkpoint: Checkpoint
) -> None:
    with pytest.raises(ValueError, match=f"^tensor_parallel_size={size}: must .*{why}"):
        LLM(checkpoint("llama", **changes), tensor_parallel_size=size)


def test_a_mixture_of_experts_is_refused_before_anything_starts(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package has none, and one that was added from outside would be unknown to the other processes."""
    path = checkpoint("qwen3_moe")
    with pytest.raises(UnsupportedModelError, match="is a mixture of experts, which is not supported"):
        LLM(path, tensor_parallel_size=2)
    monkeypatch.setitem(MODEL_FAMILIES, "Qwen3MoeForCausalLM", Experts)
    with pytest.raises(ValueError, match=r"^architecture Qwen3MoeForCausalLM: comes from tests\."):
        LLM(path, tensor_parallel_size=2)


class Experts(LlamaForCausalLM):
    """A family from outside; what it computes does not matter."""

    model_type = "qwen3_moe"

    @classmethod
    def read_config(cls, hf: Any) -> ModelConfig:
        hf.attention_bias = hf.mlp_bias = False
        return super().read_config(hf)


@pytest.mark.parametrize("size", [0, -1, True, 2.0, "2", None])
def test_a_size_that_is_no_number_of_processes_is_refused(size: Any, checkpoint: Checkpoint) -> None:
    with pytest.raises(ValueError, match=r"^tensor_parallel_size=.*: must be an integer of at least 1"):
        LLM(checkpoint("llama"), tensor_parallel_size=size)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"capture": True}, "capture=True: passes of a model that is split over tensor_parallel_size=2"),
        ({"quantization": "mine"}, r"quantization='mine': comes from tests\.[\w.]+, and the other processes"),
        ({"kv_cache_dtype": "mine"}, r"kv_cache_dtype='mine': comes from tests"),
        ({"attention_backend": "mine"}, r"attention_backend='mine': comes from tests"),
        ({"quantization": "int3"}, "quantization='int3': must be one of"),
        ({"kernels": "fast"}, "kernels='fast': must be one of"),
        ({"device": "cpu:0"}, "device='cpu:0': must have no index"),
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
    with pytest.raises(ValueError, match=r"^architecture OwnHead: comes from tests\."):
        LLM(path, tensor_parallel_size=2)
    monkeypatch.setattr(OwnHead, "__module__", "nanoinfer.model.own")
    with (
        pytest.raises(UnsupportedModelError, match="OwnHead has a head or an embedding of its own"),
        split_llm(path, 2),
    ):
        pass


class OwnNames(LlamaForCausalLM):
    """A family whose checkpoints have other names for gate and up."""

    class layer_class(DecoderLayer):
        def new_mlp(self, *args: Any) -> Any:
            mlp = super().new_mlp(*args)
            mlp.gate_up_proj.parts = {"w1": 48, "w3": 48}
            return mlp


def test_a_projection_whose_cut_is_not_known_is_refused_by_name(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODEL_FAMILIES, "OwnNames", OwnNames)
    monkeypatch.setattr(OwnNames, "__module__", "nanoinfer.model.own")
    path = edited(checkpoint("llama"), tmp_path / "own", architectures=["OwnNames"])
    message = r"OwnNames has a layer model\.layers\.0\.mlp\.gate_up_proj that cannot be split"
    with pytest.raises(UnsupportedModelError, match=message), split_llm(path, 2):
        pass


def test_only_the_engine_runs_a_split_model(checkpoint: Checkpoint) -> None:
    """Anything else would wait for ranks that know of nothing."""
    with split_llm(checkpoint("llama"), 2, **WHOLE) as llm:
        for other in (GeneratorTorch, InferenceEngine):
            with pytest.raises(ValueError, match="is split over 2 processes, and only its LLM's engine can run it"):
                other(llm.model)
        with pytest.raises(RuntimeError, match="split over 2 processes: only the engine of its LLM can run it"):
            llm.model.model.model.embed_tokens(torch.tensor([1]))
        assert len(llm.generate(PROMPTS[0], of(0))[0].token_ids) == 10, "and that still works"


def test_passes_made_by_hand_are_checked_before_the_others_hear_of_them(checkpoint: Checkpoint) -> None:
    with split_llm(checkpoint("llama"), 2, **WHOLE) as llm:
        runner = llm.engine.model_runner
        with pytest.raises(ValueError, match="token 320 is outside"):
            runner.forward_extend(torch.tensor([320]), [0], [1], [0], [0])
        logits, _ = runner.forward_extend(torch.tensor([5, 6]), [0], [2], [0], [0, 1])
        assert logits.shape == (1, 320)


def test_another_number_of_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="tensor_parallel_size=2: must be torchrun's WORLD_SIZE=3"):
        LLM("story", tensor_parallel_size=2)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="RANK=1: only rank 0 of torchrun has the engine"):
        LLM("story", tensor_parallel_size=2)
