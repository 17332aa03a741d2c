"""How a pass is told: an InputMetadata without what every rank has of its own."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from nanoinfer.model.adapter_rows import AdapterRows
from nanoinfer.model.input_metadata import ForwardMode, InputMetadata
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.parallel.messages import Message

# Every rank has its own pools, backend and tables of adapters. What a backend plans is its own, too.
OWN = ("req_to_token_pool", "token_to_kv_pool", "attention_backend", "attention_plan", "adapters")
# forward_tensor's, which a split model refuses.
NEVER = ("attention_mask",)


def pass_message(input_ids: torch.Tensor, metadata: InputMetadata) -> Message:
    """Everything about a pass that the other ranks need. Adapters are told by place, for every new token."""
    given = {each.name: getattr(metadata, each.name) for each in fields(metadata) if each.name not in OWN}
    assert all(given.pop(name) is None for name in NEVER)
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    values = {name: value for name, value in given.items() if name not in tensors and name != "forward_mode"}
    tensors["input_ids"] = input_ids
    if metadata.adapters is not None:
        tensors["adapter_of_rows"] = metadata.adapters.of_rows
    return Message("pass", {"forward_mode": metadata.forward_mode.name, **values}, tensors)


def told_pass(message: Message, runner: ModelRunner, tables: Mapping[Any, Any]) -> tuple[torch.Tensor, InputMetadata]:
    """The arguments of `ModelRunner.run` for a pass that rank 0 has told, with this rank's pools and `tables` of adapters.

    The rows of `req_to_token` are rank 0's alone: `kv_indices` has all slots.
    """
    device = runner.token_to_kv_pool.device
    tensors = {name: tensor.to(device) for name, tensor in message.tensors.items() if name != "adapter_of_rows"}
    input_ids = tensors.pop("input_ids")
    told: dict[str, Any] = {**message.values, **tensors}
    told["forward_mode"] = ForwardMode[told["forward_mode"]]
    of_rows = message.tensors.get("adapter_of_rows")
    metadata = InputMetadata(
        **told,
        req_to_token_pool=runner.req_to_token_pool,
        token_to_kv_pool=runner.token_to_kv_pool,
        attention_backend=runner.attention_backend,
        adapters=None if of_rows is None else AdapterRows(of_rows.numpy(), tables),
    )
    return input_ids, metadata
