"""FleetRouter: our routing policies behind Serve's interface for request routers.

Serve makes one router in each process that has a handle to the replicas, by the class and keywords of the deployment's
RequestRouterConfig, and asks it for each call. The ingress, in the same process, tells the same Fleet what it learns
about the replicas and its requests. Serve sends this file's class as a value, so what it must share is in `fleet.py`.
"""

from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from nanoinfer.cluster.policy import RoutedRequest
from nanoinfer.cluster.serve.fleet import fleet_named
from nanoinfer.cluster.serve.protocol import Addressed, Call


class FleetRouter(RequestRouter):
    """Sends a Call where the fleet's policy says, and an Addressed to its replica."""

    def initialize_state(self, **arguments: Any) -> None:
        """Called by Serve with the deployment's `request_router_kwargs`: those of `fleet_named`."""
        self._fleet = fleet_named(**arguments)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Serve when replicas come or go."""
        super().update_replicas(replicas)
        self._fleet.set_replicas(replica.replica_id.unique_id for replica in replicas)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replica for this request, alone. Serve asks again if it cannot be reached."""
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        self._fleet.set_replicas(replicas)
        message = pending_request.args[0] if pending_request is not None and pending_request.args else None
        if isinstance(message, Addressed) and message.replica in replicas:
            return [[replicas[message.replica]]]
        if isinstance(message, Call):
            return [[replicas[self._fleet.choose(routed(message), message.avoid)]]]
        return [list(replicas.values())]  # a replica refuses what is addressed to another one, which is gone


def routed(call: Call) -> RoutedRequest:
    """A call as policies see it: all its completions begin with the same tokens."""
    first = call.requests[0]
    tokens = [*first.prompt, *first.output_ids]
    left = sum((request.params.max_new_tokens or 0) - len(request.output_ids) for request in call.requests)
    return RoutedRequest(call.call_id, tokens, max(left, 1), first.extra_key, first.adapter)
