"""AdapterKey: what keeps the cached K/V of an adapter apart from that of others."""

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True)
class AdapterKey:
    """The `extra_key` of a request with an adapter, which computes other K/V for the same tokens than the base model.

    `id`: the adapter's, which is never used again; its `name` may be.
    """

    id: int
    extra_key: Hashable
    name: str = ""
