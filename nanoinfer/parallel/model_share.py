"""ModelShare: a rank's share of a model, as `load_model` takes it."""

from typing import TYPE_CHECKING, Any

from nanoinfer.model.config import ModelConfig
from nanoinfer.parallel.communicator import Communicator
from nanoinfer.parallel.layers import install

if TYPE_CHECKING:
    from nanoinfer.parallel.ranks import Ranks


class ModelShare:
    """The share of this rank, whose layers use `communicator`. `ranks`: in rank 0, all others."""

    def __init__(self, communicator: Communicator, ranks: "Ranks | None" = None):
        self.communicator, self.ranks = communicator, ranks

    @property
    def size(self) -> int:
        """As in ModelSplit."""
        return self.communicator.shard.size

    @property
    def leads(self) -> bool:
        """As in ModelSplit."""
        return self.communicator.shard.rank == 0

    def own_config(self, config: ModelConfig) -> ModelConfig:
        """As in ModelSplit."""
        return self.communicator.shard.own_config(config)

    def install(self, network: Any, config: ModelConfig, quantization: str | None) -> None:
        """As in ModelSplit."""
        install(network, config, quantization, self.communicator)


def device_of(kind: str, rank: int) -> str:
    """The device of a rank: each has one of its own, except that the CPU is shared."""
    return kind if kind == "cpu" else f"{kind}:{rank}"
