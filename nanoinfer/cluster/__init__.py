"""More than one engine: who has what cached, where a request goes, and what a cluster would do.

None of these names loads torch, an engine, or Ray.
"""

from nanoinfer.cluster.block_index import BlockIndex
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.data.generate import generate_dataset
from nanoinfer.cluster.policies import LeastLoaded, PrefixHash, RoundRobin
from nanoinfer.cluster.policy import Policy, RoutedRequest
from nanoinfer.cluster.prefix_router import PrefixRouter
from nanoinfer.cluster.ray_runtime import connect

__all__ = [
    "BlockIndex",
    "LeastLoaded",
    "PassCosts",
    "Policy",
    "PrefixHash",
    "PrefixRouter",
    "RoundRobin",
    "RoutedRequest",
    "connect",
    "generate_dataset",
]
