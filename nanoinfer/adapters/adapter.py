"""Adapter: one loaded adapter."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from nanoinfer.adapters.projections import LowRank

_ids = count(1)


@dataclass(eq=False)
class Adapter:
    """A loaded adapter, in host memory: `parts` by projection.

    - `id`: no other adapter of this process ever has the same, so that nothing cached for one is found by another.
    - `place`: where its AdapterPool has put it; None while it is in host memory only. An adapter has one pool.
    """

    name: str
    path: Path
    parts: Mapping[str, LowRank]
    id: int = field(default_factory=_ids.__next__)
    place: int | None = None

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
