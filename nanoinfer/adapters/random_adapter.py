"""random_adapter: an adapter with random weights, made in memory, for timing passes without files."""

from pathlib import Path

import torch

from nanoinfer.adapters.adapter import Adapter
from nanoinfer.adapters.projections import LowRank, projections
from nanoinfer.model.loader import LoadedModel


def random_adapter(model: LoadedModel, rank: int, seed: int = 0) -> Adapter:
    """An adapter of all projections of `model`, in float32. The same seed gives the same weights."""
    generator, parts = torch.Generator().manual_seed(seed), {}
    for name, projection in projections(model.model).items():
        a = torch.randn(rank, projection.in_features, generator=generator) / projection.in_features**0.5
        parts[name] = LowRank(a, torch.randn(projection.columns, rank, generator=generator) / 100, 1.0)
    return Adapter(f"rank {rank}, seed {seed}", Path("random"), parts)
