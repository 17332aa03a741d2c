"""Simulations by name, several at a time, and their results in a file."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from nanoinfer.cluster.simulate.cluster import ClusterSettings, Simulation
from nanoinfer.cluster.simulate.outcome import Report
from nanoinfer.cluster.simulate.traces import make_trace

FORMAT = "nanoinfer simulate 1"
USERS_PER_REPLICA = 1000
USER_EVERY_S = 60.0  # a user sends a request so often, on average
SIZES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Job:
    """One simulation, with all that a process needs to run it. `rate`: requests per second and replica."""

    name: str
    settings: ClusterSettings
    trace: str
    rate: float
    seconds: float
    warm_up: float

    def run(self) -> dict[str, Any]:
        """The figures of its report. Only `requests`, 0, if none was measured: a policy that sends all requests to a
        few of many replicas may keep all of them waiting until the end."""
        one = self.settings
        outcome = Simulation(one).run(
            make_trace(self.trace, self.rate * one.replicas, one.seed), self.seconds, self.warm_up
        )
        figures = asdict(Report.of(outcome)) if outcome.measured else {"requests": 0, "open": outcome.open}
        return {"replicas": one.replicas, "policy": one.policy, "routers": one.routers, **figures}


def run_jobs(
    jobs: Sequence[Job], settings: dict[str, Any], path: str | None, processes: int, show: Callable[[Job, Any], object]
) -> dict[str, Any]:
    """Run them, and write the results to `path` after each, when `show` is called, too. `settings`: what they have in
    common. Returns what is written."""
    content: dict[str, Any] = {"format": FORMAT, "settings": settings, "runs": {}}

    def keep(job: Job, figures: dict[str, Any]) -> None:
        content["runs"][job.name] = figures
        if path is not None:
            Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        show(job, figures)

    if processes == 1:
        for job in jobs:
            keep(job, job.run())
        return content
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for job, figures in zip(jobs, pool.map(Job.run, jobs), strict=True):
            keep(job, figures)
    return content


def read_results(path: str) -> dict[str, Any]:
    """The content of a file of results. ValueError if it is something else."""
    try:
        content: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise KeyError("format")
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: is no file of results ({error})") from error
    return content
