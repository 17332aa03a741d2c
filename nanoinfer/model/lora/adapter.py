"""Adapter: one loaded adapter, and its digest, under which K/V of it is kept for later, whatever it is called."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from pathlib import Path

import torch

from nanoinfer.model.loader import LoadedModel
from nanoinfer.model.lora.projections import LowRank, projections

_ids = count(1)


@dataclass(eq=False)
class Adapter:
    """A loaded adapter, in host memory: `parts` by projection.

    - `id`: no other adapter of this process ever has the same, so that nothing cached for one is found by another.
    - `slot`: where its AdapterPool has put it; None while it is in host memory only. An adapter has one pool.
    """

    name: str
    path: Path
    parts: Mapping[str, LowRank]
    id: int = field(default_factory=_ids.__next__)
    slot: int | None = None

    def again(self) -> "Adapter":
        """Another adapter with the same weights, for another pool."""
        return Adapter(self.name, self.path, self.parts)

    @property
    def num_bytes(self) -> int:
        """How much host memory its weights take."""
        return sum(part.a.nbytes + part.b.nbytes for part in self.parts.values())

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of its projections, each once, in ascending order."""
        return tuple(sorted({len(part.a) for part in self.parts.values()}))

    def __repr__(self) -> str:
        return f"Adapter({self.name!r}, {str(self.path)!r})"


def adapter_digest(adapter: Adapter) -> str:
    """SHA-256 over the projections, scales, shapes, dtypes and numbers of an adapter: the same for equal ones, always."""
    digest = sha256()
    for name, part in sorted(adapter.parts.items()):
        for tensor in (part.a, part.b):
            digest.update(f"{name} {part.scale!r} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def random_adapter(model: LoadedModel, rank: int, seed: int = 0) -> Adapter:
    """An adapter of all projections of `model`, made in memory, in float32, for timing passes without files. The same seed
    gives the same weights."""
    generator, parts = torch.Generator().manual_seed(seed), {}
    for name, projection in projections(model.model).items():
        a = torch.randn(rank, projection.in_features, generator=generator) / projection.in_features**0.5
        parts[name] = LowRank(a, torch.randn(projection.columns, rank, generator=generator) / 100, 1.0)
    return Adapter(f"rank {rank}, seed {seed}", Path("random"), parts)
