"""RoundRobin, LeastLoaded, PrefixHash: policies that know nothing of caches; and all policies by name."""

from collections.abc import Mapping
from typing import Any

from nanoinfer.cache.block_events import as_tokens, chained_hashes, namespace_hash
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.policy import Policy, RoutedRequest, check_count, rendezvous
from nanoinfer.cluster.prefix_router import PrefixRouter

POLICIES = ("round-robin", "least-loaded", "prefix-hash", "prefix")
# For a process that only looks at a cluster, and for one whose costs nobody has measured: of the bundled model on one core.
ROUGH_COSTS = PassCosts(2e-3, 3e-5, 5e-4, 1e-7, source="roughly the bundled model on one core")


class RoundRobin(Policy):
    """Each replica in turn."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = 0

    def _pick(self, request: RoutedRequest) -> str:
        self._turn += 1
        return self.replicas[(self._turn - 1) % len(self.replicas)]


class LeastLoaded(Policy):
    """The replica with the fewest requests of this router. Among equals, the one that was chosen longest ago."""

    def __init__(self) -> None:
        super().__init__()
        self._chosen: dict[str, int] = {}  # when each was chosen last
        self._turn = 0

    def remove_replica(self, replica: str) -> None:
        """As in Policy."""
        super().remove_replica(replica)
        self._chosen.pop(replica, None)

    def _pick(self, request: RoutedRequest) -> str:
        def load(replica: str) -> tuple[int, int]:
            return self.in_flight(replica), self._chosen.get(replica, 0)

        replica = min(self._at, key=load)
        self._turn += 1
        self._chosen[replica] = self._turn
        return replica


class PrefixHash(Policy):
    """Prompts that begin with the same `prefix_tokens` tokens go to the same replica, whatever its load.

    Shorter prompts count as they are. ValueError if `prefix_tokens` is below 1.
    """

    def __init__(self, prefix_tokens: int = 64) -> None:
        check_count("prefix_tokens", prefix_tokens, least=1)
        super().__init__()
        self.prefix_tokens = prefix_tokens

    def _pick(self, request: RoutedRequest) -> str:
        prefix = as_tokens(request.token_ids[: self.prefix_tokens])
        namespace = namespace_hash(request.extra_key, request.adapter)
        return rendezvous(chained_hashes(prefix, len(prefix), namespace)[0], self.replicas)


def make_policy(name: str, costs: PassCosts | None = None, options: Mapping[str, Any] | None = None) -> Policy:
    """The policy `name`; `options` are its class's. ValueError for an unknown name, TypeError for an unknown option."""
    options = dict(options or {})
    if name == "prefix":
        return PrefixRouter(costs or ROUGH_COSTS, **options)
    plain = {"round-robin": RoundRobin, "least-loaded": LeastLoaded, "prefix-hash": PrefixHash}
    if name not in plain:
        raise ValueError(f"policy={name!r}: must be one of {', '.join(POLICIES)}")
    return plain[name](**options)
