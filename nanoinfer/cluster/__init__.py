"""More than one engine: who has what cached, where a request goes, and what a cluster would do."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanoinfer.cluster.block_index import BlockIndex
    from nanoinfer.cluster.costs import PassCosts
    from nanoinfer.cluster.data.generate import generate_dataset
    from nanoinfer.cluster.policies import LeastLoaded, PrefixHash, RoundRobin
    from nanoinfer.cluster.policy import Policy, ReplicaLoad, RoutedRequest, load_of
    from nanoinfer.cluster.prefix_router import PrefixRouter
    from nanoinfer.cluster.ray_runtime import connect

__all__ = [
    "BlockIndex",
    "LeastLoaded",
    "PassCosts",
    "Policy",
    "PrefixHash",
    "PrefixRouter",
    "ReplicaLoad",
    "RoundRobin",
    "RoutedRequest",
    "connect",
    "generate_dataset",
    "load_of",
]
_FILES = {
    "block_index": ("BlockIndex",),
    "costs": ("PassCosts",),
    "data.generate": ("generate_dataset",),
    "policies": ("LeastLoaded", "PrefixHash", "RoundRobin"),
    "policy": ("Policy", "ReplicaLoad", "RoutedRequest", "load_of"),
    "prefix_router": ("PrefixRouter",),
    "ray_runtime": ("connect",),
}


def __getattr__(name: str) -> Any:
    """Load a public name at its first use. None of those that route loads torch."""
    file = next((file for file, names in _FILES.items() if name in names), None)
    if file is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{file}"), name)
