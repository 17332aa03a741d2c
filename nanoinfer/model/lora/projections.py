"""Which projections of a network an adapter may add to, and what it adds to one of them."""

from dataclasses import dataclass

import torch
from torch import nn

from nanoinfer.model.layers.experts import Experts
from nanoinfer.model.layers.linear import FusedLinear, Linear, LMHead
from nanoinfer.model.layers.low_rank import LowRankPart
from nanoinfer.model.split import ShardSpec, shard_spec_of


@dataclass(frozen=True)
class Projection:
    """One projection of a checkpoint, with `in_features` and `columns` outputs. `linear` computes it, as its output columns
    from `first` on. With a `shard_spec`, the model is split, and `linear` computes only this process's share of it."""

    linear: Linear
    first: int
    columns: int
    in_features: int
    shard_spec: ShardSpec | None = None

    def share(self, added: "LowRank") -> LowRankPart:
        """What this process's layers add for an adapter: B is cut like the projection's outputs, and A like its inputs."""
        a, b = added.a, added.b
        if self.shard_spec is not None:
            a, b = (a, self.shard_spec.of(b, 2)) if self.shard_spec.dim == 0 else (self.shard_spec.of(a, 2), b)
        return LowRankPart(a, b, added.scale, self.first)


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
    `model.layers.0.self_attn.q_proj`, layer by layer. The head is none of them, nor are embeddings and experts.

    If a family's checkpoints store several as one tensor (Phi-3), that one is the projection, as in its adapters.
    """
    by_name = {}
    experts = tuple(f"{path}." for path, module in network.named_modules() if isinstance(module, Experts))
    for path, module in network.named_modules():
        if not isinstance(module, Linear) or isinstance(module, LMHead) or path.startswith(experts):
            continue
        parent, _, name = path.rpartition(".")
        parts = module.parts if isinstance(module, FusedLinear) else {name: module.out_features}
        first = 0
        for part, columns in parts.items():
            shard_spec = shard_spec_of(module, part if isinstance(module, FusedLinear) else "")
            whole = (
                [columns, module.in_features]
                if shard_spec is None
                else shard_spec.whole_shape([columns, module.in_features])
            )
            by_name[f"{parent}.{part}"] = Projection(module, first, whole[0], whole[1], shard_spec)
            first += columns
    return by_name
