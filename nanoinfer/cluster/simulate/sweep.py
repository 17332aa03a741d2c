"""Simulations by name, several at a time; their results in a file, and as a picture: policies by
the number of replicas."""

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
    seed: int

    def run(self) -> dict[str, Any]:
        """The figures of its report. Only `requests`, 0, if none was measured: a policy that sends all requests to a
        few of many replicas may keep all of them waiting until the end."""
        one = self.settings
        outcome = Simulation(one).run(
            make_trace(self.trace, self.rate * one.replicas, self.seed), self.seconds, self.warm_up
        )
        figures = asdict(Report.of(outcome)) if outcome.measured else {"requests": 0, "open": outcome.open}
        return {"replicas": one.replicas, "policy": one.policy, **figures}


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


PANELS = (
    ("hit_rate", "prompt tokens that were cached", 100.0, "%"),
    ("ttft_p50", "time to the first token,\nmedian (logarithmic)", 1e3, "ms"),
    ("ttft_p99", "time to the first token,\n99th percentile (logarithmic)", 1e3, "ms"),
    ("tokens_per_second", "output tokens per second\nand replica", 1.0, ""),
)


def draw(runs: list[dict[str, Any]], file: Path) -> None:
    """Write a PNG for a page about 900 pixels wide: hits, both waits and throughput, a line per policy over the number of
    replicas."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib import ticker

    from nanoinfer.viz.palette import LINES

    styles = (("-", "o", LINES[0]), ("--", "s", LINES[7]), (":", "^", LINES[2]), ("-.", "D", LINES[3]))
    ended = [run for run in runs if run["requests"]]
    policies, sizes = list(dict.fromkeys(run["policy"] for run in runs)), sorted({run["replicas"] for run in runs})
    with plt.rc_context({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False}):
        figure, grid = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
        for axes, (key, title, factor, unit) in zip(grid.flat, PANELS, strict=True):
            for policy, (line, marker, colour) in zip(policies, styles, strict=False):
                points = sorted((run["replicas"], factor * run[key]) for run in ended if run["policy"] == policy)
                x, y = [replicas for replicas, _ in points], [value for _, value in points]
                axes.plot(x, y, line, marker=marker, color=colour, label=policy, markersize=6)
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=45 if len(sizes) > 6 else 0)
            axes.minorticks_off()
            axes.set_title(title)
            axes.set(xlabel="replicas", ylabel=unit)
            if key.startswith("ttft") and ended:
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
                axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
                axes.yaxis.set_minor_locator(ticker.NullLocator())
            else:
                axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
        grid.flat[0].legend(frameon=False, fontsize=10)
        figure.savefig(file, dpi=140, metadata={"Software": None})
        plt.close(figure)
