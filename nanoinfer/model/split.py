"""Models that are split over processes, as layers and loader see them: which part of a tensor a process has.

The rules themselves, and everything about processes, are in nanoinfer/model/parallel/.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from nanoinfer.model.config import ModelConfig


@dataclass(frozen=True)
class ShardSpec:
    """This process's part of a checkpoint's tensor: along dimension `dim`, which has `total` entries, those of `ranges`
    (start, end), side by side. A tensor without that dimension, such as the bias of columns, is whole in every process."""

    dim: int
    ranges: tuple[tuple[int, int], ...]
    total: int

    @property
    def size(self) -> int:
        """How many entries this process has."""
        return sum(end - start for start, end in self.ranges)

    def whole_shape(self, shape: Sequence[int]) -> list[int]:
        """The shape of the checkpoint's tensor whose part has `shape`."""
        return [self.total if i == self.dim else size for i, size in enumerate(shape)]

    def of(self, tensor: Any, ndim: int) -> torch.Tensor:
        """The part of `tensor`, which is a tensor or a slice of a safetensors file with `ndim` dimensions, and of which
        no more is read."""
        if self.dim >= ndim:
            whole: torch.Tensor = tensor[:]
            return whole
        before = (slice(None),) * self.dim
        parts = [tensor[(*before, slice(*ends))] for ends in self.ranges]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=self.dim)


class ModelSplit(Protocol):
    """One process's share of a model. `load_model` asks it twice, before and after it makes the network."""

    @property
    def size(self) -> int:
        """Over how many processes the model is split."""
        ...

    @property
    def leads(self) -> bool:
        """Whether this process has the engine, and so needs a tokenizer."""
        ...

    def own_config(self, config: ModelConfig) -> ModelConfig:
        """The configuration of this process's share. ValueError if the model cannot be split like this."""
        ...

    def install(self, network: Any, config: ModelConfig, quantized: bool) -> None:
        """Put layers that work together with the other processes into a network that was made with `own_config` of
        `config`, and give its layers `shard_specs`: for each of a layer's projections by name, the ShardSpec of its
        tensors. `quantized`: whether its weights are to be in few bits."""
        ...


def shard_spec_of(module: Any, part: str) -> ShardSpec | None:
    """The ShardSpec of a layer's projection `part` (of its tensors, if it is one alone: ""). None: it is whole here."""
    shard_spec: ShardSpec | None = getattr(module, "shard_specs", {}).get(part)
    return shard_spec
