"""`python -m nanoinfer serve --replicas N`: a model behind one door, on several engines, with Ray Serve."""

import argparse
import os
import signal
import socket
import threading
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any

from nanoinfer.cli.options import llm_options

if TYPE_CHECKING:
    from nanoinfer.cluster.serve.settings import ClusterSettings
    from nanoinfer.server.settings import ServerSettings

POLICIES = ("prefix", "round-robin", "least-loaded", "prefix-hash")
NEED_REPLICAS = ("ray_address", "max_replicas", "policy", "costs", "threads")


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """The options for several replicas."""
    add = parser.add_argument_group("cluster (pip install nanoinfer[cluster])").add_argument
    add("--replicas", type=int, metavar="N", help="serve with N engines, each in its own process, on Ray")
    add(
        "--ray-address",
        metavar="ADDRESS",
        help="local starts a Ray here, auto or an address joins one (default: local)",
    )
    add(
        "--max-replicas",
        type=int,
        metavar="N",
        help="start more, up to N, while many prompt tokens wait (default: none)",
    )
    add("--policy", choices=POLICIES, help="which replica gets a request (default: prefix)")
    add("--costs", metavar="FILE", help="what passes cost, as PassCosts.save writes it (default: measured)")
    add("--threads", type=int, metavar="N", help="threads of a replica (default: 1)")


def check_cluster_options(args: argparse.Namespace) -> None:
    """ValueError for options that need --replicas without it, and if Ray is not installed."""
    if args.replicas is None:
        if given := [name for name in NEED_REPLICAS if getattr(args, name) is not None]:
            raise ValueError(f"--{given[0].replace('_', '-')}: needs --replicas N")
        return
    if find_spec("ray") is None:
        raise ValueError("--replicas: needs Ray: pip install nanoinfer[cluster]")
    if args.threads is not None and args.threads < 1:
        raise ValueError(f"--threads {args.threads}: must be at least 1")


def cluster_settings(args: argparse.Namespace) -> "ClusterSettings":
    """What the options ask for. A replica gets a processor for each thread of each of its ranks."""
    from nanoinfer.cluster.costs import PassCosts
    from nanoinfer.cluster.serve.settings import ClusterSettings, ReplicaSettings

    threads, options = args.threads or 1, llm_options(args)
    return ClusterSettings(
        ReplicaSettings(args.model, options, threads, costs=None if args.costs is None else PassCosts.load(args.costs)),
        args.replicas,
        args.max_replicas,
        cpus_per_replica=threads * options["tensor_parallel_size"],
        policy=args.policy or "prefix",
        drain_timeout_s=args.drain_timeout,
    )


def serve_cluster(args: argparse.Namespace, server: "ServerSettings") -> None:
    """Deploy, and return when a signal has come and everything has been answered. A second signal ends it at once."""
    from nanoinfer.cluster.ray_runtime import LOCAL, connect, disconnect, start_serve

    settings = cluster_settings(args)
    port = _free_port(args.host, args.port)
    most = max(settings.replicas, settings.max_replicas or 0)
    signals = Signals()
    was_started = connect(
        args.ray_address or LOCAL, num_cpus=max(most * settings.cpus_per_replica, os.cpu_count() or 1)
    )
    signals.take()
    try:
        start_serve(args.host, port)
        from nanoinfer.cluster.serve.applications import deploy, remove

        deploy(settings, server)
        signals.take()
        host = f"[{args.host}]" if ":" in args.host else args.host
        print(f"nanoinfer serves {args.model} on http://{host}:{port}, {settings.replicas} replicas", flush=True)
        signals.wait()
        remove(settings)
    finally:
        disconnect(was_started)


class Signals:
    """SIGTERM and Ctrl-C, from now on: the first one is waited for, the second one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._first = threading.Event()
        self.take()

    def take(self) -> None:
        """Take the signals from whoever has them: Ray installs handlers of its own, which end the process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def wait(self) -> None:
        """Return at the first signal."""
        while not self._first.wait(1.0):  # so that handlers run
            pass

    def _note(self, number: int, frame: FrameType | None) -> Any:
        if self._first.is_set():
            raise KeyboardInterrupt
        self._first.set()


def _free_port(host: str, port: int) -> int:
    """`port`, or a free one for 0. ValueError if it cannot be listened at."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            found: int = sock.getsockname()[1]
            return found
    except OSError as error:
        raise ValueError(f"--host {host} --port {port}: cannot be listened at: {error.strerror or error}") from error
