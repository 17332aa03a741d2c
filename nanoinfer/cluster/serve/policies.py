"""Routing policies by name, with what a cluster knows to make one."""

from collections.abc import Mapping
from typing import Any

from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.plain_policies import LeastLoaded, PrefixHash, RoundRobin
from nanoinfer.cluster.policy import Policy
from nanoinfer.cluster.prefix_router import PrefixRouter

POLICIES = ("prefix", "round-robin", "least-loaded", "prefix-hash")
# For a process that only looks at a cluster, and for one whose costs nobody has measured: of the bundled model on one core.
ROUGH_COSTS = PassCosts(2e-3, 3e-5, 5e-4, 1e-7, source="roughly the bundled model on one core")


def make_policy(name: str, costs: PassCosts | None = None, options: Mapping[str, Any] | None = None) -> Policy:
    """The policy `name`; `options` are its class's. ValueError for an unknown name, TypeError for an unknown option."""
    options = dict(options or {})
    if name == "prefix":
        return PrefixRouter(costs or ROUGH_COSTS, **options)
    plain = {"round-robin": RoundRobin, "least-loaded": LeastLoaded, "prefix-hash": PrefixHash}
    if name not in plain:
        raise ValueError(f"policy={name!r}: must be one of {', '.join(POLICIES)}")
    return plain[name](**options)
