"""Ray itself: start one on this machine, or join one that runs; nothing listens beyond 127.0.0.1 unless told so."""

import logging
import os
from typing import Any

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray sends statistics to its makers otherwise
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",  # to load; Serve kills its ingress after 5, and starts it again
}
ONLY_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0: Ray takes 127.0.0.1 for this machine's address, on any system
OBJECT_STORE_BYTES = 128 * 2**20  # messages are small; Ray takes a third of the memory otherwise
LOCAL = "local"


def connect(address: str = LOCAL, num_cpus: float | None = None, namespace: str = "nanoinfer") -> bool:
    """Connect to the Ray at `address` ("auto": the one on this machine, or what RAY_ADDRESS says), or start one ("local").
    Returns whether it was started here. ConnectionError if there is none. Does nothing if this process has one."""
    prepare_environment(address == LOCAL)
    quiet_logs()
    import ray

    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"namespace": namespace, "log_to_driver": False, "logging_level": "ERROR"}
    if address == LOCAL:
        options |= {
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "num_cpus": num_cpus,
        }
    try:
        ray.init(address=address, **options)
    except BaseException:
        ray.shutdown()
        raise
    return address == LOCAL


def quiet_logs() -> None:
    """Ray lets all loggers write what is of level INFO: an engine would log a line per step. Not if a level is set."""
    logger = logging.getLogger("nanoinfer.engine")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)


def prepare_environment(only_loopback: bool = True) -> None:
    """Set what Ray's processes read from the environment; before `import ray`. `only_loopback`: this is 127.0.0.1."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if only_loopback:
        os.environ.setdefault(ONLY_LOOPBACK, "0")


def start_serve(host: str = "127.0.0.1", port: int = 8000) -> None:
    """Have Serve listen there, on the head node only. If Serve runs already, it stays where it is."""
    from ray import serve
    from ray.serve.config import HTTPOptions, ProxyLocation

    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # it sets INFO when it is imported
    serve.start(proxy_location=ProxyLocation.HeadOnly, http_options=HTTPOptions(host=host, port=port))


def disconnect(was_started: bool) -> None:
    """Leave Ray; end it, with Serve and all its processes, if it was started here."""
    import ray

    if was_started and ray.is_initialized():
        from ray import serve

        serve.shutdown()
    ray.shutdown()
