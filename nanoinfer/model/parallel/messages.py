"""Message: what rank 0 says to the others, as bytes that carry numbers and nothing that could be executed. A pass is
sent as an InputMetadata without what every rank has of its own. And which adapter is in which slot, where each rank
keeps its share."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import nn

from nanoinfer.model.adapter_rows import AdapterRows
from nanoinfer.model.forward_batch import ForwardBatch, ForwardMode
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.kernels.huge_pages import PAGE, HugePages
from nanoinfer.model.layers.linear import Linear
from nanoinfer.model.layers.low_rank import LowRankPart, LowRankTable, make_low_rank
from nanoinfer.model.lora.adapter import Adapter
from nanoinfer.model.lora.pool import AdapterPool
from nanoinfer.model.lora.projections import LowRank, projections
from nanoinfer.model.model_runner import ModelRunner

REST = "<message>"  # the name of that tensor


@dataclass(frozen=True)
class Message:
    """`kind`: what to do. `values`: what JSON can hold, and numpy's integers, by name. `tensors`: on the host, by name."""

    kind: str
    values: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def encode(self) -> bytes:
        """As bytes of a safetensors file, in which the rest is one more tensor."""
        rest = json.dumps({"kind": self.kind, "values": self.values}, default=int).encode()
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in self.tensors.items()}
        return save({REST: torch.frombuffer(bytearray(rest), dtype=torch.uint8), **tensors})

    @classmethod
    def decode(cls, encoded: bytes) -> "Message":
        """The message that was encoded. Its tensors are copies."""
        tensors = load(encoded)
        rest = json.loads(tensors.pop(REST).numpy().tobytes())
        return cls(rest["kind"], rest["values"], tensors)


# Every rank has its own pools, backend and tables of adapters. What a backend plans is its own, too.
OWN = (
    "model_runner",
    "req_to_token_pool",
    "token_to_kv_pool",
    "attention_backend",
    "attention_plan",
    "adapters",
    "batch",
)
# forward_tensor's, which a split model refuses.
NEVER = ("attention_mask",)
OF_BATCH = "batch."  # in front of the names of a ForwardBatch's fields


def pass_message(input_ids: torch.Tensor, metadata: InputMetadata) -> Message:
    """Everything about a pass that the other ranks need. Adapters are sent by slot, for every new token."""
    given = {each.name: getattr(metadata, each.name) for each in fields(metadata) if each.name not in OWN}
    assert all(given.pop(name) is None for name in NEVER)
    given |= {OF_BATCH + each.name: getattr(metadata.batch, each.name) for each in fields(ForwardBatch)}
    arrays = [name for name, value in given.items() if isinstance(value, np.ndarray)]
    given |= {name: torch.from_numpy(given[name]) for name in arrays}
    given = {name: value.name if isinstance(value, ForwardMode) else value for name, value in given.items()}
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    tensors["input_ids"] = input_ids
    if metadata.adapters is not None:
        tensors["adapter_of_rows"] = metadata.adapters.of_rows
    values = {name: value for name, value in given.items() if name not in tensors}
    return Message("pass", {"arrays": arrays, **values}, tensors)


def received_pass(
    message: Message, runner: ModelRunner, tables: Mapping[Any, Any]
) -> tuple[torch.Tensor, InputMetadata]:
    """The arguments of `ModelRunner.run` for a pass that rank 0 has sent, with this rank's pools and `tables` of adapters.

    The rows of `req_to_token` are rank 0's alone: `kv_indices` has all slots.
    """
    device = runner.token_to_kv_pool.device
    received: dict[str, Any] = {**message.values, **message.tensors}
    received |= {name: received[name].numpy() for name in received.pop("arrays")}
    of_batch = {name.removeprefix(OF_BATCH): received.pop(name) for name in list(received) if name.startswith(OF_BATCH)}
    for values in (received, of_batch):
        values["forward_mode"] = ForwardMode[values["forward_mode"]]
    of_rows, input_ids = received.pop("adapter_of_rows", None), received.pop("input_ids")
    received = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in received.items()
    }
    metadata = InputMetadata(
        **received,
        model_runner=runner,
        batch=ForwardBatch(**of_batch),
        req_to_token_pool=runner.req_to_token_pool,
        token_to_kv_pool=runner.token_to_kv_pool,
        attention_backend=runner.attention_backend,
        adapters=None if of_rows is None else AdapterRows(of_rows.numpy(), tables),
    )
    return input_ids.to(device), metadata


class SentAdapters:
    """Rank 0: which adapters the other ranks have been sent, by slot."""

    def __init__(self) -> None:
        self._sent: dict[int, int] = {}  # slot → the adapter's id

    def news(self, pool: AdapterPool | None) -> Iterator[Message]:
        """A message for each adapter of `pool` that has a slot now and is not known there. Passes use no others."""
        for adapter in () if pool is None else pool.on_device:
            slot = adapter.slot
            if slot is not None and self._sent.get(slot) != adapter.id:
                yield _message(adapter, slot)
                self._sent[slot] = adapter.id


def _message(adapter: Adapter, slot: int) -> Message:
    tensors = {}
    for name, part in adapter.parts.items():
        tensors[f"{name}.A"], tensors[f"{name}.B"] = part.a, part.b
    scales = {name: part.scale for name, part in adapter.parts.items()}
    return Message("adapter", {"slot": slot, "scales": scales}, tensors)


class ReceivedAdapters:
    """The other ranks: `tables` of what adapters add to the linear layers of `network`, each with `size` slots."""

    def __init__(self, network: nn.Module, size: int):
        self._network, self._size = network, size
        self._projections = projections(network)
        self.tables: dict[Linear, LowRankTable] = {}

    def put(self, message: Message) -> None:
        """Take an adapter that rank 0 has sent, instead of what was in its slot before."""
        slot, by_linear = message.values["slot"], dict[Linear, list[LowRankPart]]()
        for name, scale in message.values["scales"].items():
            projection = self._projections[name]
            added = LowRank(message.tensors[f"{name}.A"], message.tensors[f"{name}.B"], scale)
            by_linear.setdefault(projection.linear, []).append(projection.share(added))
        for linear in by_linear.keys() - self.tables.keys():
            self.tables[linear] = self._new_table(linear)
        memory = HugePages(PAGE)
        for linear, table in self.tables.items():
            if linear in by_linear:
                table.put(slot, table.pack(by_linear[linear], memory))
            else:
                table.clear(slot)

    def _new_table(self, linear: Linear) -> LowRankTable:
        network: Any = self._network
        parameter = next(network.parameters())  # the embedding: linear weights are packed
        return make_low_rank(linear, network.kernels, self._size, parameter.dtype, parameter.device)
