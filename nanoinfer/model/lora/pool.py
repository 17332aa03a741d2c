"""AdapterPool: the slots that adapters have on the device, and which adapter is in which.

Loaded adapters stay in host memory. To be computed with, one needs a slot; there are few. A slot holds what each linear
layer adds (see model/layers/low_rank.py), and its number is what a pass knows an adapter by.

    host memory ──fetch──► a slot ──another adapter needs it, and no running request uses it──► host memory

An adapter is fetched in a thread of its own, so that the requests of other adapters go on meanwhile.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from nanoinfer.model.kernels.huge_pages import PAGE, HugePages
from nanoinfer.model.layers.linear import Linear
from nanoinfer.model.layers.low_rank import LowRankPart, LowRankTable, make_low_rank
from nanoinfer.model.lora.adapter import Adapter
from nanoinfer.model.lora.projections import projections

Packed = dict[Linear, Any]


class AdapterPool:
    """`size` slots for adapters of `network`.

    `tables`: what each linear layer adds, by slot. `version` changes when graphs that were captured before cannot be used
    any more. `fetches`: how many have been started.

    Only one thread at a time may use it. `executor`: where adapters are fetched.
    """

    def __init__(self, network: nn.Module, size: int, executor: Executor | None = None):
        self._network, self.size, self._executor = network, size, executor
        self.tables: dict[Linear, LowRankTable] = {}
        self.version = self.fetches = 0
        self._projections = projections(network)
        self._slots: list[Adapter | None] = [None] * size  # with those that are being fetched
        self._fetching: dict[Adapter, Future[Packed]] = {}
        self._failures: dict[Adapter, BaseException] = {}
        self._uses, self._used_at = 0, [0] * size

    @property
    def fetching(self) -> bool:
        """True while an adapter is being fetched, or has been and nobody has looked at it yet."""
        return bool(self._fetching or self._failures)

    @property
    def on_device(self) -> list[Adapter]:
        """The adapters that have a slot and can be computed with."""
        return [adapter for adapter in self._slots if adapter is not None and adapter.slot is not None]

    def obtain(self, adapter: Adapter, in_use: Collection[Adapter | None]) -> bool:
        """True if `adapter` has a slot now, so that a pass may use it. Else it is being fetched, or waits until a slot
        is left by one of `in_use`, which the running requests use and which therefore stay.
        """
        self._finish_fetches()
        if adapter.slot is not None and self._slots[adapter.slot] is not adapter:
            raise ValueError(f"{adapter}: has a slot in another pool; load it once more for this one")
        if adapter.slot is None:
            if adapter not in self._fetching and adapter not in self._failures:
                slot = self._vacant(in_use)
                if slot is not None:
                    self._start_fetch(adapter, slot)
                    self._finish_fetches()
            if adapter.slot is None:
                return False
        self._uses += 1
        self._used_at[adapter.slot] = self._uses
        return True

    def wait(self) -> bool:
        """Wait until a fetch has ended, well or not. False if there is none whose end nobody has looked at."""
        for future in list(self._fetching.values())[:1]:
            future.exception()
        return self.fetching

    def take_failure(self) -> tuple[Adapter, BaseException] | None:
        """An adapter that could not be fetched, and why; each failure once. After that, `obtain` tries again."""
        self._finish_fetches()
        return self._failures.popitem() if self._failures else None

    def remove(self, adapter: Adapter) -> None:
        """Forget `adapter`, and empty its slot and the room that it needed. No running request may use it."""
        self._failures.pop(adapter, None)
        if (future := self._fetching.pop(adapter, None)) is not None:
            future.cancel()
        if adapter in self._slots:
            self._empty(self._slots.index(adapter))
            self.version += sum(table.shrink() for table in self.tables.values())  # each of them

    def _vacant(self, in_use: Collection[Adapter | None]) -> int | None:
        """A slot without an adapter. If there is none, that of the adapter whose last use is longest ago is emptied, among
        those that no one uses. None if there is none of these, either."""
        if None in self._slots:
            return self._slots.index(None)
        idle = [i for i, adapter in enumerate(self._slots) if adapter not in in_use and adapter not in self._fetching]
        if not idle:
            return None
        slot = min(idle, key=self._used_at.__getitem__)
        self._empty(slot)
        return slot

    def _empty(self, slot: int) -> None:
        adapter = self._slots[slot]
        assert adapter is not None
        self._slots[slot], adapter.slot = None, None
        for table in self.tables.values():
            table.clear(slot)

    def _start_fetch(self, adapter: Adapter, slot: int) -> None:
        by_linear: dict[Linear, list[LowRankPart]] = {}
        for name, part in adapter.parts.items():
            projection = self._projections[name]
            by_linear.setdefault(projection.linear, []).append(projection.share(part))
        for linear in by_linear.keys() - self.tables.keys():
            self.tables[linear] = self._new_table(linear)
            self.version += 1
        tables = {linear: self.tables[linear] for linear in by_linear}
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "fetch adapters")
        self.fetches += 1
        self._slots[slot], self._used_at[slot] = adapter, self._uses
        self._fetching[adapter] = self._executor.submit(_pack, by_linear, tables)

    def _new_table(self, linear: Linear) -> LowRankTable:
        network: Any = self._network
        parameter = next(network.parameters())  # the embedding: linear weights are packed
        return make_low_rank(linear, network.kernels, self.size, parameter.dtype, parameter.device)

    def _finish_fetches(self) -> None:
        """Put what has been fetched into its slot."""
        for adapter, future in [(adapter, future) for adapter, future in self._fetching.items() if future.done()]:
            del self._fetching[adapter]
            slot = self._slots.index(adapter)
            if (error := future.exception()) is not None:
                self._slots[slot], self._failures[adapter] = None, error
                continue
            try:
                self._put(slot, future.result())
            except BaseException as broken:  # memory may run out here, too
                self._empty(slot)
                self._failures[adapter] = broken
                continue
            adapter.slot = slot

    def _put(self, slot: int, packed: Packed) -> None:
        for linear, table in self.tables.items():
            if linear not in packed:
                table.clear(slot)
            elif table.put(slot, packed[linear]):
                self.version += 1


def _pack(by_linear: Mapping[Linear, list[LowRankPart]], tables: Mapping[Linear, LowRankTable]) -> Packed:
    memory = HugePages(PAGE)  # of this adapter alone: it is returned when the adapter leaves
    with torch.no_grad():
        return {linear: tables[linear].pack(parts, memory) for linear, parts in by_linear.items()}
