"""PEFT's models with random adapters, and how an adapter that was read is compared with them."""

import copy
from functools import cache
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from peft.tuners.lora import LoraLayer

from nanoinfer.errors import AdapterError
from nanoinfer.model.llama import LlamaForCausalLM
from nanoinfer.model.loader import load_model
from nanoinfer.model.lora.peft_files import read_adapter
from nanoinfer.model.lora.projections import LowRank
from tests.helpers.checkpoints import FAMILIES

ATTENTION, MLP = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
ENDS = dict.fromkeys(FAMILIES, ATTENTION + MLP) | {"phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]}


@cache
def network_of(checkpoint: Path) -> LlamaForCausalLM:
    """This engine's network of a checkpoint, loaded once."""
    return load_model(checkpoint, kernels="torch").model


def adapt(base: transformers.PreTrainedModel, seed: int = 0, **fields: Any) -> peft.PeftModel:
    """PEFT's model of a copy of `base` with a random adapter of this LoraConfig."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(**{"task_type": "CAUSAL_LM", **fields})
    model = peft.get_peft_model(copy.deepcopy(base), config)
    for layer in layers_of(model).values():
        if "default" not in layer.lora_B:
            continue  # of an embedding
        torch.nn.init.normal_(layer.lora_B["default"].weight)
    return model


def layers_of(model: peft.PeftModel) -> dict[str, LoraLayer]:
    prefix = "base_model.model."
    modules = {name.removeprefix(prefix): module for name, module in model.named_modules()}
    return {name: module for name, module in modules.items() if isinstance(module, LoraLayer)}


def check_equal(model: peft.PeftModel, read: dict[str, LowRank]) -> None:
    layers = layers_of(model)
    assert read.keys() == layers.keys()
    for name, low_rank in read.items():
        assert low_rank.rank == layers[name].r["default"]
        assert low_rank.scale == layers[name].scaling["default"]
        assert torch.equal(low_rank.a, layers[name].lora_A["default"].weight)
        assert torch.equal(low_rank.b, layers[name].lora_B["default"].weight)
        assert torch.equal(low_rank.b @ low_rank.a * low_rank.scale, layers[name].get_delta_weight("default"))


def refusal(folder: Path | str, network: LlamaForCausalLM) -> str:
    with pytest.raises(AdapterError) as caught:
        read_adapter(folder, network)
    start = f"adapter {str(folder)!r}: "
    assert str(caught.value).startswith(start)
    return str(caught.value).removeprefix(start)


def equal(one: dict[str, LowRank], other: dict[str, LowRank]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[name].a, other[name].a)
        and torch.equal(one[name].b, other[name].b)
        and one[name].scale == other[name].scale
        for name in one
    )
