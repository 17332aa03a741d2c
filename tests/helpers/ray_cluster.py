"""A Ray of three nodes on this machine, a cluster of nanoinfer in it, and ways to damage both."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from nanoinfer.cluster.ray_runtime import OBJECT_STORE_BYTES, prepare_environment, start_serve
from nanoinfer.engine.engine import Engine
from tests.helpers.waiting import HANG_S, until

TIMEOUTS = {  # with a machine that others keep busy
    "RAY_memory_monitor_refresh_ms": "0",  # Ray kills workers when little memory is left, whoever has it
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": str(HANG_S),
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": str(HANG_S),
}
for name, value in TIMEOUTS.items():
    os.environ.setdefault(name, value)
prepare_environment()
WITHOUT_SLOW_IMPORTS = Path(__file__).parent / "without_slow_imports"
ROOT = Path(__file__).parent.parent.parent
STARTS = 3  # a node's helpers have 15 seconds to load, which takes longer where the machine is busy
os.environ["PYTHONPATH"] = os.pathsep.join((str(WITHOUT_SLOW_IMPORTS), str(ROOT)))  # of Ray's processes

import ray  # noqa: E402
from ray import serve  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from nanoinfer.cluster.serve.applications import fleet_arguments  # noqa: E402
from nanoinfer.cluster.serve.fleet import fleet_named  # noqa: E402
from nanoinfer.cluster.serve.protocol import Addressed  # noqa: E402
from nanoinfer.cluster.serve.remote_engine import ServeReplicas  # noqa: E402
from nanoinfer.cluster.serve.settings import ClusterSettings  # noqa: E402

NOTICES_SOON = {  # that a node is gone, whose connections are refused; one that is only slow has time
    "health_check_initial_delay_ms": 2000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 30_000,
    "health_check_failure_threshold": 4,
}


class ThreeNodes:
    """A head without processors, and two nodes with two each, for the replicas. More can be added."""

    def __init__(self) -> None:
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": NOTICES_SOON}
        self.cluster, self.nodes = Cluster(), list[Any]()
        try:
            self._add(**head)
            self.nodes += [self.add_node(), self.add_node()]
            ray.init(address=self.cluster.address, namespace="tests", log_to_driver=False, logging_level="ERROR")
        except BaseException:
            self.shut_down()
            raise

    def add_node(self) -> Any:
        return self._add(num_cpus=2)

    def _add(self, **options: Any) -> Any:
        """A node; once more if its helpers did not load in time, as happens beside other tests."""
        for attempt in range(STARTS):
            try:
                return self.cluster.add_node(object_store_memory=OBJECT_STORE_BYTES, **options)
            except Exception:
                if attempt == STARTS - 1:
                    raise
                if self.cluster.head_node is None:
                    kill_children()  # of the head that did not start
        raise AssertionError("unreachable")

    def kill_node(self, node_id: str) -> None:
        """End a node and all its processes, at once."""
        (node,) = (node for node in self.nodes if node.node_id == node_id)
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def shut_down(self) -> None:
        try:
            if ray.is_initialized():
                serve.shutdown()
        finally:
            ray.shutdown()
            self.cluster.shutdown()
            kill_children()


def kill_children() -> None:
    """Kill the processes of Ray that this process has started and that are left."""
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if "/ray/" in " ".join(child.cmdline()):
                child.kill()


@contextmanager
def three_nodes(port: int | None = None) -> Iterator[ThreeNodes]:
    """Three nodes, with Serve if there is a `port` for it to listen at. Where Ray does not start, nothing is said about
    nanoinfer: the test is skipped."""
    with ExitStack() as stack:
        try:
            nodes = ThreeNodes()
            stack.callback(nodes.shut_down)
            if port is not None:
                start_serve(port=port)
        except Exception as error:
            pytest.skip(f"Ray does not start here: {type(error).__name__}: {error}")
        yield nodes


class Watcher:
    """Looks into the replicas of a cluster from the test's process, and damages them."""

    def __init__(self, settings: ClusterSettings):
        self.fleet = fleet_named(**fleet_arguments(settings))
        self._links = ServeReplicas(settings.replicas_name, self.fleet)

    def names(self) -> list[str]:
        """The replicas that there are; waits until Serve has said so."""
        until(lambda: asyncio.run(self._links.describe(HANG_S)), "an answer of a replica")
        return sorted(self.fleet.replicas)

    def visit(self, name: str, function: Callable[[Engine], Any], seconds: float = HANG_S) -> Any:
        """What `function` returns in the engine's thread of this replica."""
        return asyncio.run(self._links.ask("visit", Addressed(name, content=function), seconds))

    def tell_all(self, function: Callable[[Engine], Any]) -> None:
        """`visit` every replica, once there are two; those that have died do not count."""

        def told() -> bool:
            try:
                return len([self.visit(name, function) for name in self.names()]) == 2
            except Exception:  # one has died, and Serve has not said so yet
                return False

        until(told, "two replicas that can be told something")

    def send(self, name: str, function: Callable[[Engine], Any]) -> None:
        """As `visit`, for functions that never return."""
        with suppress(Exception):  # the replica cannot answer any more
            self.visit(name, function, 5)

    def busy(self) -> str:
        """The name of a replica that runs requests; waits for one."""
        return until(
            lambda: next((each for each in self.names() if self.visit(each, running)), ""), "a replica at work"
        )


def running(engine: Engine) -> int:
    return len(engine.scheduler.running)


def freeze_at_work(engine: Engine) -> bool:
    """Stop the process between two steps, if it has something to do."""
    if engine.scheduler.running:
        os.kill(os.getpid(), signal.SIGSTOP)
    return False
