"""`python -m nanoinfer serve`: a model behind OpenAI's protocol, until Ctrl-C or SIGTERM."""

import argparse
import gc
import logging
import os
import signal
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from nanoinfer.cli.options import add_engine_options, add_model, choose_model, llm_options, load

if TYPE_CHECKING:
    from nanoinfer.cluster.serve.settings import ClusterSettings
    from nanoinfer.server.settings import ServerSettings

MAX_QUEUE = 256
API_KEY_VARIABLE = "NANOINFER_API_KEY"  # of the environment: keys separated by commas
POLICIES = ("prefix", "round-robin", "least-loaded", "prefix-hash")
NEED_REPLICAS = ("ray_address", "max_replicas", "policy", "costs", "threads")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "Serves a model with OpenAI's protocol. Ctrl-C or SIGTERM: requests that are being served are finished first."
    )
    add_model(parser)
    group = parser.add_argument_group("server")
    add: Any = group.add_argument
    several: Any = {"action": "append", "default": []}
    add("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1, this machine only)")
    add("--port", type=int, default=8000, help="0 takes a free one, which is printed (default: 8000)")
    add("--served-model-name", metavar="NAME", help="the model's id in requests (default: MODEL as typed)")
    add("--tool-call-parser", metavar="NAME", help="how the model writes tool calls (default: its template says it)")
    add("--reasoning-parser", metavar="NAME", help="how the model marks its reasoning (default: its template says it)")
    add("--api-key", **several, metavar="KEY", help="requests need one (better: in NANOINFER_API_KEY, or a file)")
    add("--api-key-file", metavar="FILE", help="requests need one of the keys in it, one per line")
    add("--allowed-host", **several, metavar="HOST", help="a name by which browsers may reach it")
    add("--cors-origin", **several, metavar="ORIGIN", help="pages from there may use it (default: none)")
    add("--adapter-root", metavar="FOLDER", help="adapters in it can be loaded over HTTP (default: none)")
    add("--request-timeout", type=float, metavar="S", help="a request ends after so many seconds (default: no limit)")
    add("--drain-timeout", type=float, default=30.0, metavar="S", help="seconds to finish requests (default: 30)")
    add("--max-requests", type=int, default=4096, metavar="N", help="most requests at a time (default: 4096)")
    add("--store-responses", type=int, default=256, metavar="N", help="/v1/responses keeps so many (default: 256)")
    add("--show-prompts", action="store_true", help="the log has prompts, and the live page shows everybody's")
    add("--event-block-size", type=int, metavar="N", help="/block_events tells what the tree holds, in such blocks")
    add = parser.add_argument_group("cluster (pip install nanoinfer[cluster])").add_argument
    number: Any = {"type": int, "metavar": "N"}
    add("--replicas", **number, help="serve with N engines, each in its own process, on Ray")
    add("--ray-address", metavar="ADDRESS", help="local starts a Ray here, an address joins one (default: local)")
    add("--max-replicas", **number, help="start more, up to N, while many prompt tokens wait (default: none)")
    add("--policy", choices=POLICIES, help="which replica gets a request (default: prefix)")
    add("--costs", metavar="FILE", help="what passes cost, as PassCosts.save writes it (default: measured)")
    add("--threads", **number, help="threads of a replica (default: 1)")
    add_engine_options(parser, but=("model",))
    parser.set_defaults(run=run, begin=begin, max_queue=MAX_QUEUE)


def begin(args: argparse.Namespace) -> None:
    """Check what takes no time, and say what is loaded, before anything slow is imported."""
    from nanoinfer.server import check_installed

    check_installed()
    choose_model(args)
    if not 0 <= args.port <= 65535:
        raise ValueError(f"--port {args.port}: must be in 0..65535")
    if not int(os.environ.get("RANK", 0)):  # torchrun's
        print(f"nanoinfer loads {args.model} ...", flush=True)


def run(args: argparse.Namespace) -> None:
    """Load, serve, and return when everything has been answered."""
    from nanoinfer.server.app import make_app
    from nanoinfer.server.run import bound_socket, serve
    from nanoinfer.server.settings import ServerSettings

    settings = ServerSettings(
        api_keys=_keys(args),
        allowed_hosts=[*args.allowed_host, args.host],
        cors_origins=args.cors_origin,
        adapter_root=args.adapter_root,
        show_prompts=args.show_prompts,
        event_block_size=args.event_block_size,
        served_model_name=args.served_model_name or args.model,
        tool_call_parser=args.tool_call_parser,
        reasoning_parser=args.reasoning_parser,
        request_timeout_s=args.request_timeout,
        drain_timeout_s=args.drain_timeout,
        max_requests=args.max_requests,
        store_responses=args.store_responses,
    )
    if args.replicas is None and (given := [name for name in NEED_REPLICAS if getattr(args, name) is not None]):
        raise ValueError(f"--{given[0].replace('_', '-')}: needs --replicas N")
    if args.replicas is not None and (args.tool_call_parser or args.reasoning_parser):
        raise ValueError(
            "--tool-call-parser and --reasoning-parser: not with --replicas, which follow the chat template"
        )
    raise_open_files_limit()
    if args.replicas is not None:
        serve_cluster(args, settings)
        return
    with bound_socket(args.host, args.port) as sock:
        app = make_app(load(args), settings)
        _log_to_standard_error(args.show_prompts)
        gc.collect()
        gc.freeze()  # what is loaded is no garbage, and a collection that looks at it keeps everybody waiting for 0.2 s
        serve(app, sock)


def _keys(args: argparse.Namespace) -> list[str]:
    """The keys from the command line, a file and the environment."""
    keys = [*args.api_key, *(read_keys(args.api_key_file) if args.api_key_file else ())]
    if API_KEY_VARIABLE in os.environ:
        found = [key.strip() for key in os.environ[API_KEY_VARIABLE].split(",") if key.strip()]
        if not found:
            raise ValueError(f"{API_KEY_VARIABLE}: is set, but has no keys; unset it to serve without keys")
        keys += found
    return keys


def read_keys(path: str | Path) -> list[str]:
    """The keys in a file, one per line. Empty lines and lines that begin with # are none. ValueError if there is none."""
    text = Path(path).expanduser().read_text(encoding="utf-8")
    keys = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise ValueError(f"--api-key-file {path}: has no keys; one per line")
    return keys


def raise_open_files_limit() -> None:
    """Let this process have as many open files, and so connections, as the system allows it."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Discreet(logging.Formatter):
    """Writes of an exception where it was raised and its type, not its message, nor what led to it."""

    def formatException(self, ei: Any) -> str:
        """What is logged below a line that has an exception."""
        from nanoinfer.server.errors import where

        kind, error, _ = ei
        return f"{where(error)}{kind.__name__}"


def _log_to_standard_error(show_prompts: bool) -> None:
    """The access log, and what goes wrong. Not the engine's line per step. Messages of exceptions may quote prompts."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter((logging.Formatter if show_prompts else Discreet)("%(asctime)s %(message)s"))
    for name in ("nanoinfer", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False
    logging.getLogger("nanoinfer.access").setLevel(logging.INFO)


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
    if args.threads is not None and args.threads < 1:
        raise ValueError(f"--threads {args.threads}: must be at least 1")
    if find_spec("ray") is None:
        raise ValueError("--replicas: needs Ray: pip install nanoinfer[cluster]")
    from nanoinfer.cluster.ray_runtime import LOCAL, connect, disconnect, start_serve
    from nanoinfer.server.run import bound_socket

    settings = cluster_settings(args)
    with bound_socket(args.host, args.port) as sock:
        port = sock.getsockname()[1]
    most = max(settings.replicas, settings.max_replicas or 0)
    stop = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    def take_signals() -> None:  # Ray installs handlers of its own, which end the process
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, note)

    take_signals()
    was_started = connect(
        args.ray_address or LOCAL, num_cpus=max(most * settings.cpus_per_replica, os.cpu_count() or 1)
    )
    take_signals()
    try:
        start_serve(args.host, port)
        from nanoinfer.cluster.serve.applications import deploy, remove

        deploy(settings, server)
        take_signals()
        host = f"[{args.host}]" if ":" in args.host else args.host
        print(f"nanoinfer serves {args.model} on http://{host}:{port}, {settings.replicas} replicas", flush=True)
        while not stop.wait(1.0):  # so that handlers run
            pass
        remove(settings)
    finally:
        disconnect(was_started)
