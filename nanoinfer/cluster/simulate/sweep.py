"""sweep: all policies from one replica to a thousand, a thousand users for each; and what several routers cost.

Up to 32 replicas with the engine's own scheduler and tree if asked for, beyond that at block level; at 32 both can be
compared.
"""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.simulate.cluster import ClusterSettings, Simulation
from nanoinfer.cluster.simulate.policy_router import POLICIES
from nanoinfer.cluster.simulate.report import Report
from nanoinfer.cluster.simulate.results import Results
from nanoinfer.cluster.simulate.traces import make_trace
from nanoinfer.config import EngineConfig

USERS_PER_REPLICA = 1000
USER_EVERY_S = 60.0  # a user sends a request so often, on average
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
ROUTERS = (1, 2, 4, 8, 16)
JOBS_PER_PROCESS = 8  # then another one takes over, with all its memory free


@dataclass(frozen=True)
class Job:
    """One simulation, with all that a process needs to run it."""

    name: str
    settings: ClusterSettings
    trace: str
    rate: float  # requests per second and replica
    seconds: float
    warm_up: float
    scale: float = 1.0

    def run(self) -> dict[str, Any]:
        """The figures of its report. Only `requests`, 0, if none was measured: a policy that sends all requests to a
        few of many replicas may keep all of them waiting until the end."""
        one = self.settings
        trace = make_trace(self.trace, self.rate * one.replicas, one.seed, self.scale)
        outcome = Simulation(one).run(trace, self.seconds, self.warm_up)
        return {
            "replicas": one.replicas,
            "policy": one.policy,
            "level": one.level,
            "routers": one.routers,
            "spread": one.spread,
            "index": one.index,
            **(Report.of(outcome).as_dict() if outcome.measured else {"requests": 0, "open": outcome.open}),
        }


def jobs_by_size(
    sizes: Sequence[int],
    costs: PassCosts,
    config: EngineConfig,
    trace: str = "chat",
    seconds: float = 24.0,
    warm_up: float = 16.0,
    policies: Sequence[str] = POLICIES,
    rate: float = USERS_PER_REPLICA / USER_EVERY_S,
) -> list[Job]:
    """Each policy at each size, at block level; the largest first, so that two processes end together."""
    return [
        Job(
            f"{replicas} {policy}",
            ClusterSettings(replicas, policy, costs, config, level="blocks"),
            trace,
            rate,
            seconds,
            warm_up,
        )
        for replicas in sorted(sizes, reverse=True)
        for policy in policies
    ]


def jobs_at_both_levels(
    replicas: int, costs: PassCosts, config: EngineConfig, trace: str, seconds: float, warm_up: float, rate: float
) -> list[Job]:
    """Each policy, with the engine's scheduler and tree and at block level."""
    return [
        Job(
            f"{replicas} {policy} {level}",
            ClusterSettings(replicas, policy, costs, config, level=level),
            trace,
            rate,
            seconds,
            warm_up,
        )
        for policy in POLICIES
        for level in ("exact", "blocks")
    ]


def jobs_by_routers(
    replicas: int,
    costs: PassCosts,
    config: EngineConfig,
    trace: str,
    seconds: float,
    warm_up: float,
    rate: float,
    routers: Sequence[int] = ROUTERS,
) -> list[Job]:
    """`prefix` with several routers, each with the whole index, or each with the prompts of its own users."""
    kinds = (("whole", "requests"), ("slice", "users"))
    return [
        Job(
            f"{replicas} replicas, {count} routers, {index}",
            ClusterSettings(
                replicas, "prefix", costs, config, level="blocks", routers=count, spread=spread, index=index
            ),
            trace,
            rate,
            seconds,
            warm_up,
        )
        for count in routers
        for index, spread in kinds
    ]


def run_jobs(jobs: Sequence[Job], results: Results, processes: int = 1, show: Any = None) -> None:
    """Run what `results` does not have yet. `show(job, figures)` is called after each."""
    left = [job for job in jobs if job.name not in results.runs]
    if processes == 1:
        for job in left:
            _keep(results, job, job.run(), show)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), max_tasks_per_child=JOBS_PER_PROCESS) as pool:
        futures = {pool.submit(job.run): job for job in left}
        for future in as_completed(futures):
            _keep(results, futures[future], future.result(), show)


def _keep(results: Results, job: Job, figures: dict[str, Any], show: Any) -> None:
    results.once(job.name, lambda: figures)
    if show is not None:
        show(job, figures)
