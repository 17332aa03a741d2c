"""The seam for MLPs: Qwen3-MoE, added from outside the package, has layers with experts and layers without."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from nanoinfer import LLM, SamplingParams, UnsupportedModelError
from nanoinfer.model.adapter_rows import AdapterRows
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.layers.linear import Linear
from nanoinfer.model.llama import MLP, DecoderLayer, LlamaForCausalLM
from nanoinfer.model.loader import load_model
from nanoinfer.registry import MODEL_FAMILIES
from tests.helpers.adapters import MIXED, PROMPTS, merged, outputs, three_adapters
from tests.helpers.checkpoints import edited, greedy
from tests.helpers.kernels import all_kernels
from tests.helpers.rows import compare_all_passes
from tests.helpers.split_models import split_llm

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]

GREEDY = SamplingParams(max_new_tokens=8, temperature=0, ignore_eos=True)


@dataclass(frozen=True)
class ExpertsConfig(ModelConfig):
    """A decoder that has experts in all layers except `dense_layers`."""

    num_experts: int = 0
    num_experts_per_tok: int = 0
    expert_size: int = 0
    normalized: bool = False  # whether the weights of a token's experts add up to 1
    dense_layers: frozenset[int] = frozenset()


class Experts(nn.Module):
    """Several MLPs. Each token goes through those that the router `gate` finds likeliest for it."""

    def __init__(self, config: ExpertsConfig, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.top, self.normalized = config.num_experts_per_tok, config.normalized
        self.gate = Linear(config.hidden_size, config.num_experts, False, dtype, device)
        each = (MLP(config, config.expert_size, dtype, device) for _ in range(config.num_experts))
        self.experts = nn.ModuleList(each)

    def forward(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        weights, chosen = self.gate(x, adapters).float().softmax(-1).topk(self.top)
        if self.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        for expert in chosen.unique().tolist():
            rows, place = torch.where(chosen == expert)
            of_rows = self.experts[expert](x[rows], None if adapters is None else adapters.of(rows))
            y[rows] += of_rows * weights[rows, place, None].to(x.dtype)
        return y


class ExpertsDecoderLayer(DecoderLayer):
    def new_mlp(self, config: ModelConfig, layer_id: int, dtype: torch.dtype, device: torch.device) -> Any:
        assert isinstance(config, ExpertsConfig)
        if layer_id in config.dense_layers:
            return super().new_mlp(config, layer_id, dtype, device)
        return Experts(config, dtype, device)


class Qwen3MoeForCausalLM(LlamaForCausalLM):
    model_type = "qwen3_moe"
    layer_class = ExpertsDecoderLayer

    @classmethod
    def read_config(cls, hf: Any) -> ModelConfig:
        return ExpertsConfig.of_decoder(
            hf,
            sliding_windows=(hf.sliding_window,) * hf.num_hidden_layers,
            qkv_bias=hf.attention_bias,
            o_bias=hf.attention_bias,
            qk_norm=True,
            num_experts=hf.num_experts,
            num_experts_per_tok=hf.num_experts_per_tok,
            expert_size=hf.moe_intermediate_size,
            normalized=hf.norm_topk_prob,
            dense_layers=frozenset(hf.mlp_only_layers),
        )


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODEL_FAMILIES, "Qwen3MoeForCausalLM", Qwen3MoeForCausalLM)


@pytest.mark.cpu
@pytest.mark.parametrize("changes", [{}, {"norm_topk_prob": False, "mlp_only_layers": [], "num_experts_per_tok": 3}])
def test_a_family_with_another_mlp_in_some_layers_has_the_logits_and_tokens_of_transformers(
    changes: dict[str, object], checkpoint: Checkpoint, oracle: Oracle
) -> None:
    path = checkpoint("qwen3_moe", **changes)
    compare_all_passes(load_model(path), oracle(path), page_size=4)
    expected = [greedy(oracle(path), prompt, 8) for prompt in PROMPTS]
    for kernels in all_kernels("cpp"):
        llm = LLM(path, max_total_tokens=128, kernels=kernels)
        for _ in range(2):  # the second time from the cache
            assert [out.token_ids for out in llm.generate(PROMPTS, GREEDY, use_tqdm=False)] == expected
        llm.engine.check_integrity()


def test_experts_and_router_take_adapters(checkpoint: Checkpoint) -> None:
    """The oracle: models into which the adapters are merged."""
    path = checkpoint("qwen3_moe")
    folders = three_adapters(path)
    models = {name: LLM(merged(path, folder), max_total_tokens=256) for name, folder in folders.items()}
    found = outputs(LLM(path, max_total_tokens=512, adapters=folders))
    for prompt, name, out in zip(PROMPTS, MIXED, found, strict=True):
        (wanted,) = outputs(models[name] if name else LLM(path, max_total_tokens=256), [prompt], [None])
        assert out.token_ids == wanted.token_ids


def test_experts_cannot_be_split_and_are_refused_by_name(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Qwen3MoeForCausalLM, "__module__", "nanoinfer.model.qwen3_moe")
    message = r"size=2: Qwen3MoeForCausalLM has a layer model\.layers\.0\.mlp\.gate that cannot be split"
    with pytest.raises(UnsupportedModelError, match=message), split_llm(checkpoint("qwen3_moe"), 2):
        pass


def test_a_mixture_of_experts_that_is_refused_is_not_refused_as_one(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = edited(checkpoint("qwen3_moe"), tmp_path / "relu", hidden_act="relu")
    with pytest.raises(UnsupportedModelError, match=r"relu: hidden_act='relu': must be one of silu"):
        LLM(path)
