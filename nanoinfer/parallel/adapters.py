"""The adapters of a split model: rank 0 says which adapter is in which place, and every rank keeps its share there."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from nanoinfer.adapters.adapter import Adapter
from nanoinfer.adapters.pool import AdapterPool
from nanoinfer.adapters.projections import LowRank, projections
from nanoinfer.kernels.huge_pages import PAGE, HugePages
from nanoinfer.model.layers.linear import Linear
from nanoinfer.model.layers.low_rank import LowRankPart, LowRankTable, make_low_rank
from nanoinfer.parallel.messages import Message


class ToldAdapters:
    """Rank 0: which adapters the other ranks have been told, by place."""

    def __init__(self) -> None:
        self._told: dict[int, int] = {}  # place → the adapter's id

    def news(self, pool: AdapterPool | None) -> Iterator[Message]:
        """A message for each adapter of `pool` that has a place now and is not known there. Passes use no others."""
        for adapter in () if pool is None else pool.on_device:
            place = adapter.place
            if place is not None and self._told.get(place) != adapter.id:
                yield _message(adapter, place)
                self._told[place] = adapter.id


def _message(adapter: Adapter, place: int) -> Message:
    tensors = {}
    for name, part in adapter.parts.items():
        tensors[f"{name}.A"], tensors[f"{name}.B"] = part.a, part.b
    scales = {name: part.scale for name, part in adapter.parts.items()}
    return Message("adapter", {"place": place, "scales": scales}, tensors)


class PlacedAdapters:
    """The other ranks: `tables` of what adapters add to the linear layers of `network`, each with `size` places."""

    def __init__(self, network: nn.Module, size: int):
        self._network, self._size = network, size
        self._projections = projections(network)
        self.tables: dict[Linear, LowRankTable] = {}

    def put(self, message: Message) -> None:
        """Take an adapter that rank 0 has told, in place of what was in its place before."""
        place, by_linear = message.values["place"], dict[Linear, list[LowRankPart]]()
        for name, scale in message.values["scales"].items():
            projection = self._projections[name]
            added = LowRank(message.tensors[f"{name}.A"], message.tensors[f"{name}.B"], scale)
            by_linear.setdefault(projection.linear, []).append(projection.share(added))
        for linear in by_linear.keys() - self.tables.keys():
            self.tables[linear] = self._new_table(linear)
        memory = HugePages(PAGE)
        for linear, table in self.tables.items():
            if linear in by_linear:
                table.put(place, table.pack(by_linear[linear], memory))
            else:
                table.clear(place)

    def _new_table(self, linear: Linear) -> LowRankTable:
        network: Any = self._network
        parameter = next(network.parameters())  # the embedding: linear weights are packed
        return make_low_rank(linear, network.kernels, self._size, parameter.dtype, parameter.device)
