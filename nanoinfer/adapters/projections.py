"""Which projections of a network an adapter may add to, and what it adds to one of them."""

from dataclasses import dataclass

import torch
from torch import nn

from nanoinfer.model.layers.linear import FusedLinear, Linear, LMHead


@dataclass(frozen=True)
class Projection:
    """One projection of a checkpoint. `linear` computes it, as its output columns `first..first + columns`."""

    linear: Linear
    first: int
    columns: int
    in_features: int


@dataclass(frozen=True, eq=False)
class LowRank:
    """What an adapter adds to one projection: `scale * b @ a` to its weight, or `scale * (x @ a.T) @ b.T` to its output.

    `a` [r, in_features] and `b` [out_features, r] are floating-point tensors on the host, of the dtype they are stored in.
    """

    a: torch.Tensor
    b: torch.Tensor
    scale: float

    @property
    def rank(self) -> int:
        return len(self.a)


def projections(network: nn.Module) -> dict[str, Projection]:
    """Every projection of `network` that an adapter may add to, by its name in checkpoints, such as
    `model.layers.0.self_attn.q_proj`, layer by layer. The head is none of them, nor are embeddings.

    If a family's checkpoints store several as one tensor (Phi-3), that one is the projection, as in its adapters.
    """
    found = {}
    for path, module in network.named_modules():
        if not isinstance(module, Linear) or isinstance(module, LMHead):
            continue
        parent, _, name = path.rpartition(".")
        parts = module.parts if isinstance(module, FusedLinear) else {name: module.out_features}
        first = 0
        for part, columns in parts.items():
            found[f"{parent}.{part}"] = Projection(module, first, columns, module.in_features)
            first += columns
    return found
