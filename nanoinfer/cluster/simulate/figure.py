"""A picture of results: policies by the number of replicas."""

from pathlib import Path
from typing import Any

from nanoinfer.viz.palette import LINES

STYLES = (("-", "o", LINES[0]), ("--", "s", LINES[7]), (":", "^", LINES[2]), ("-.", "D", LINES[3]))
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

    ended = [run for run in runs if run["requests"]]
    policies, sizes = list(dict.fromkeys(run["policy"] for run in runs)), sorted({run["replicas"] for run in runs})
    with plt.rc_context({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False}):
        figure, grid = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
        for axes, (key, title, factor, unit) in zip(grid.flat, PANELS, strict=True):
            for policy, (line, marker, colour) in zip(policies, STYLES, strict=False):
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
