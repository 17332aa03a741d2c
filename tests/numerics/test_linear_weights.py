"""The seam for kinds of linear weights: one that is defined here serves checkpoints of every family."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.kernels import Kernels
from nanoinfer.model.layers.linear import Linear
from nanoinfer.model.layers.linear_weights import DenseWeights, GatedDenseWeights, LinearWeights
from nanoinfer.model.loader import load_model
from nanoinfer.registry import QUANTIZATIONS
from tests.helpers.checkpoints import FAMILIES, save_checkpoint

Checkpoint = Callable[..., Path]

PROMPTS = [[5, 9, 200, 31, 7, 7, 250, 11, 64], [7], list(range(100, 123))]
GREEDY = SamplingParams(max_new_tokens=8, temperature=0, ignore_eos=True)


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """Each row to 8 bits: whole multiples of a 127th of its largest value."""
    step = weight.abs().amax(dim=1, keepdim=True) / 127
    return (weight / step).round() * step


class RoundedWeights:
    """8 bits per weight and one step per output channel."""

    made: list[str]

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels, name: str):
        self.step = weight.abs().amax(dim=1, keepdim=True) / 127
        self.whole = (weight / self.step).round().to(torch.int8)
        self.bias = bias
        self.made.append(name)

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.whole * self.step, self.bias)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Registers RoundedWeights as `rounded`; the names of the layers that it was made for."""
    monkeypatch.setattr(RoundedWeights, "made", [], raising=False)
    monkeypatch.setitem(QUANTIZATIONS, "rounded", RoundedWeights)
    return RoundedWeights.made


def tokens(llm: LLM) -> list[list[int]]:
    return [out.token_ids for out in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_kind_from_outside_serves_every_family(family: str, made: list[str], checkpoint: Checkpoint) -> None:
    """The tokens are those of a dense model whose linear weights were rounded before, and of them alone."""
    path = checkpoint(family)
    quantized = LLM(path, max_total_tokens=128, quantization="rounded")
    network = quantized.model.model
    linear = {name: module for name, module in network.named_modules() if isinstance(module, Linear)}
    assert made == list(linear), "every Linear, by its name, once"
    assert {"lm_head", "model.layers.2.self_attn.qkv_proj", "model.layers.0.mlp.down_proj"} <= set(made)
    assert all(isinstance(module.weights, RoundedWeights) and module.weight is None for module in linear.values())

    repacked = load_model(path, kernels="torch")
    for name, module in repacked.model.named_modules():
        if isinstance(module, Linear):
            assert isinstance(module.weights, DenseWeights | GatedDenseWeights)
            module.weights.packed = rounded(module.weights.packed)  # of a tied head, too: the embedding keeps its table
            assert torch.equal(module.weights.packed, linear[name].weights.whole * linear[name].weights.step)
    dense = load_model(path)
    for name, parameter in dense.model.named_parameters():
        assert torch.equal(network.get_parameter(name), parameter), "embeddings, norms and biases are the checkpoint's"

    plain = LLM(path, max_total_tokens=128, kernels="torch")
    for mine, other in zip(plain.model.model.modules(), repacked.model.modules(), strict=True):
        if isinstance(mine, Linear):
            mine.weights = other.weights
    assert tokens(quantized) == tokens(plain)
    quantized.engine.check_integrity()


@pytest.mark.parametrize("tied", [False, True])
def test_a_tied_head_is_rounded_and_the_embedding_is_not(tied: bool, made: list[str], tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "tied", "qwen2", tie_word_embeddings=tied)
    network = load_model(path, quantization="rounded").model
    table = load_model(path).model.model.embed_tokens.weight
    assert torch.equal(network.model.embed_tokens.weight, table)
    head = network.lm_head.weights
    assert isinstance(head, RoundedWeights)
    assert torch.equal(head.whole * head.step, rounded(table)) == tied


def test_a_kind_may_leave_layers_as_they_are(monkeypatch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> None:
    def all_but_the_head(weight: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels, name: str) -> LinearWeights:
        kind = DenseWeights if name == "lm_head" else RoundedWeights
        return kind(weight, bias, kernels, name)

    monkeypatch.setattr(RoundedWeights, "made", [], raising=False)
    monkeypatch.setitem(QUANTIZATIONS, "body", all_but_the_head)
    network = load_model(checkpoint("llama"), quantization="body").model
    assert isinstance(network.lm_head.weights, DenseWeights)
    assert len(RoundedWeights.made) == 3 * 4
