"""Fleet: the replicas of one deployment as one process sees them, and the policy that chooses among them; and how many
replicas there should be. Serve's router and the ingress find the same Fleet here."""

import threading
from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import TYPE_CHECKING, Any

from nanoinfer.cache.block_events import EventBatch, Snapshot
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.policies import make_policy
from nanoinfer.cluster.policy import Policy, RoutedRequest

if TYPE_CHECKING:
    from nanoinfer.engine.engine import Engine


class Fleet:
    """A policy with a lock around it: Serve's router asks it in a thread of its own, the ingress tells it from another one.

    `replicas`: the names of those that requests can be sent to. `on_change`: called, in any thread, when they change.
    """

    def __init__(self, policy: Policy):
        self._policy, self._lock = policy, threading.RLock()
        self._sent: dict[str, str] = {}  # the replica of each request that has not ended
        self._elsewhere: set[str] = set()  # those of them that the policy wanted elsewhere, and does not know of
        self.replicas: frozenset[str] = frozenset()
        self.on_change: Callable[[], object] | None = None

    def set_replicas(self, replicas: Iterable[str]) -> None:
        """These are all that there are now."""
        now = frozenset(replicas)
        with self._lock:
            if now == self.replicas:
                return
            for gone in sorted(self.replicas - now):
                self._policy.remove_replica(gone)
            for new in sorted(now - self.replicas):
                self._policy.add_replica(new)
            self.replicas = now
        if self.on_change is not None:
            self.on_change()

    def choose(self, request: RoutedRequest, avoid: frozenset[str] = frozenset()) -> str:
        """The replica for a request, which counts as sent there until `note_end`. Of those in `avoid`, and the one that was
        chosen for it before without an end, only if there is no other one. NoReplicaError without replicas."""
        with self._lock:
            before = self._forget(request.request_id)
            avoid |= set() if before is None else {before}
            chosen = self._policy.choose(request)
            others = sorted(self.replicas - avoid)
            if chosen in avoid and others:
                self._policy.note_end(request.request_id)
                chosen = min(others, key=list(self._sent.values()).count)
                self._elsewhere.add(request.request_id)
            self._sent[request.request_id] = chosen
            return chosen

    def note_first_token(self, request_id: str, cached_tokens: int) -> None:
        """Its prompt has been computed, but for so many tokens that the replica had cached."""
        with self._lock:
            if request_id in self._sent and request_id not in self._elsewhere:
                self._policy.note_first_token(request_id, cached_tokens)

    def note_end(self, request_id: str, output_tokens: int | None = None) -> str | None:
        """It has ended, with so many output tokens, or its replica has lost it (None). Returns where it was."""
        with self._lock:
            return self._forget(request_id, output_tokens)

    def note_events(self, replica: str, batch: EventBatch) -> bool:
        """False: batches before this one are missing, so a snapshot is needed."""
        with self._lock:
            return replica not in self.replicas or self._policy.note_events(replica, batch)

    def note_snapshot(self, replica: str, snapshot: Snapshot) -> None:
        """Everything that the tree of `replica` holds."""
        with self._lock:
            if replica in self.replicas:
                self._policy.note_snapshot(replica, snapshot)

    def _forget(self, request_id: str, output_tokens: int | None = None) -> str | None:
        replica = self._sent.pop(request_id, None)
        if replica is not None and request_id not in self._elsewhere:
            self._policy.note_end(request_id, output_tokens)
        self._elsewhere.discard(request_id)
        return replica


_fleets: dict[str, Fleet] = {}
_making = threading.Lock()


def fleet_named(name: str, policy: str, options: Mapping[str, Any], costs: PassCosts | None = None) -> Fleet:
    """The one Fleet of this process that has this name; made at first use, with the policy of that name."""
    with _making:
        if name not in _fleets:
            _fleets[name] = Fleet(make_policy(policy, costs, options))
        return _fleets[name]


def queued_tokens(engine: "Engine") -> int:
    """Prompt tokens of an engine's requests that have not been computed yet; some of them may turn out to be cached. Any
    thread may ask, and waits for the current step to end."""
    with engine.visit():
        reqs = (*engine.scheduler.waiting, *engine.scheduler.running)
        return sum(req.prompt_len - req.kv_len for req in reqs if not req.num_output_tokens)


class QueuedTokens:
    """Serve's autoscaler calls it with what replicas have recorded (`Replica.record_autoscaling_stats`).

    Prompt tokens that wait are seconds that requests wait, whatever their number; requests are not, since one prompt may be
    as long as a hundred others. `per_replica`: so many queued tokens per replica are fine. There are at least as many
    replicas as would bring it down to that; one goes when the others would still be at half of it.
    """

    def __init__(self, per_replica: float):
        self._per_replica = per_replica

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of replicas that there should be, and the policy's state, which is empty."""
        queued = sum((context.aggregated_metrics or {}).get("queued_tokens", {}).values())
        return self.wanted(queued, context.target_num_replicas), {}

    def wanted(self, queued_tokens: float, replicas: int) -> int:
        """The number for so many queued tokens, if there are so many `replicas` now. Serve keeps it in its limits."""
        enough = max(ceil(queued_tokens / self._per_replica), 1)
        if enough >= replicas:
            return enough
        calm = queued_tokens <= self._per_replica * (replicas - 1) / 2
        return max(replicas - 1, enough) if calm else replicas
