"""deploy and remove: the two applications of a cluster, the replicas and the ingress before them.

They are two so that each can be replaced while the other one stays, and so that the end can be drained: first the ingress
goes, which waits for its requests, and then the replicas.
"""

import logging
from dataclasses import replace
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from nanoinfer.cluster.serve.protocol import Addressed, Description
from nanoinfer.cluster.serve.remote_engine import ServedByReplicas, ServeReplicas
from nanoinfer.cluster.serve.replica import Replica
from nanoinfer.cluster.serve.settings import ClusterSettings
from nanoinfer.config import EngineConfig
from nanoinfer.server.settings import ServerSettings

ON_HEAD = "node:__internal_head__"  # Ray's resource of the head node
MOST_ONGOING = 100_000  # calls at one replica: its engine has a queue of its own


def deploy(settings: ClusterSettings, server: ServerSettings | None = None, route_prefix: str = "/") -> Description:
    """Deploy a cluster in the Ray that this process is connected to; what is there already under the same name is replaced
    piece by piece, while requests go on (a rolling update). Returns when it takes requests.

    `server`: what the ingress allows, as `make_app` takes it. Serve must have been started with the address to listen at
    (`start_serve`).
    """
    serve.run(replicas_application(settings), name=settings.replicas_name, route_prefix=None)
    handle = serve.get_deployment_handle("Replica", app_name=settings.replicas_name)
    description: Description = handle.describe.remote(Addressed("")).result(timeout_s=settings.replica_timeout_s)
    ingress = ingress_application(settings, server or ServerSettings(), description)
    serve.run(ingress, name=settings.name, route_prefix=route_prefix)
    return description


def remove(settings: ClusterSettings) -> None:
    """End a cluster: newcomers are refused, what has been accepted is finished, for at most `drain_timeout_s` seconds at
    the ingress and again at the replicas."""
    for name in (settings.name, settings.replicas_name):
        if name in serve.status().applications:
            serve.delete(name)


def replicas_application(settings: ClusterSettings) -> serve.Application:
    """The replicas, for `serve.run`."""
    config = RequestRouterConfig(
        request_router_class="nanoinfer.cluster.serve.request_router:FleetRouter",
        request_router_kwargs=fleet_arguments(settings),
    )
    number: dict[str, Any] = {"num_replicas": settings.replicas}
    if settings.max_replicas is not None:
        policy = AutoscalingPolicy(
            policy_function="nanoinfer.cluster.serve.fleet:QueuedTokens",
            policy_kwargs={"per_replica": settings.queued_tokens_per_replica},
        )
        limits = AutoscalingConfig(min_replicas=settings.replicas, max_replicas=settings.max_replicas, policy=policy)
        number = {"autoscaling_config": limits}
    deployment = serve.deployment(
        name="Replica",
        ray_actor_options={"num_cpus": settings.cpus_per_replica},
        request_router_config=config,
        **_of_both(settings),
        **number,
    )(Replica)
    # An ingress no longer asks a replica that is told to end, and must not count as dead while that one finishes its calls.
    silence_s = max(settings.replica.silence_s, settings.silence_s) + settings.drain_timeout_s
    return deployment.bind(replace(settings.replica, silence_s=silence_s))


def ingress_application(
    settings: ClusterSettings, server: ServerSettings, description: Description
) -> serve.Application:
    """The ingress: the OpenAI application, whose engine is the replicas."""

    def build() -> Any:
        from nanoinfer.cluster.serve.fleet import fleet_named
        from nanoinfer.server.app import make_app

        arguments = fleet_arguments(settings, description.config)
        replicas = ServeReplicas(settings.replicas_name, fleet_named(**arguments, costs=description.costs))
        logging.getLogger("nanoinfer.access").setLevel(logging.INFO)
        return make_app(ServedByReplicas(description, settings, replicas), server)

    deployment = serve.deployment(
        name="Ingress",
        num_replicas=1,
        ray_actor_options={"num_cpus": 0, "resources": {ON_HEAD: 0.001}},  # where what listens for Serve is
        **_of_both(settings),
    )(serve.ingress(build)())
    return deployment.bind()


def _of_both(settings: ClusterSettings) -> dict[str, Any]:
    return {
        "max_ongoing_requests": MOST_ONGOING,
        "graceful_shutdown_timeout_s": settings.drain_timeout_s,
        "graceful_shutdown_wait_loop_s": 0.2,
        "health_check_period_s": settings.health_check_period_s,
        "health_check_timeout_s": settings.health_check_timeout_s,
    }


def fleet_arguments(settings: ClusterSettings, config: EngineConfig | None = None) -> dict[str, Any]:
    """What FleetRouter gets from the deployment; with the replicas' `config`, what the ingress's fleet is made with, before
    there is a router in its process."""
    options = dict(settings.policy_options)
    if settings.policy == "prefix":
        options.setdefault("block_size", settings.replica.event_block_size)
        if config is not None:  # beyond these, requests wait for each other
            options.setdefault("max_running_requests", config.max_running_requests)
            options.setdefault("chunk_tokens", config.chunked_prefill_size or config.max_context_len)
    return {"name": settings.replicas_name, "policy": settings.policy, "options": options}
