"""Draws the results of draft_curve.py: a panel per number of requests."""

from pathlib import Path
from statistics import median
from typing import Any

from nanoinfer.bench.draft_curve import curve
from nanoinfer.bench.scaling_figure import STYLES


def draw(results: dict[str, Any], file: Path) -> None:
    """Write a PNG for a page about 900 pixels wide."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
    count = len(results["requests"])
    figure, panels = plt.subplots(
        1, count, figsize=(6.5 * count, 4.5), layout="constrained", squeeze=False, sharey=True
    )
    for axes, together in zip(panels[0], results["requests"], strict=True):
        _panel(axes, results, together)
    panels[0][0].set_ylabel("speed, as a multiple of that without drafts")
    panels[0][0].legend(frameon=False, fontsize=10, loc="upper left")
    figure.savefig(file, dpi=140, metadata={"Software": None})
    plt.close(figure)


def _panel(axes: Any, results: dict[str, Any], together: int) -> None:
    axes.axhline(1.0, color="#999999", linewidth=1)
    for line, (color, marker, dashes) in zip(results["lines"], STYLES, strict=True):
        points = curve(results, together, line)
        x = [100 * rate for rate in points]
        axes.plot(
            x,
            [median(each) for each in points.values()],
            color=color,
            marker=marker,
            linestyle=dashes,
            label=f"{line} drafts" if line.startswith("k") else f"{line}, at most 7",
            markersize=7,
        )
        low, high = ([bound(each) for each in points.values()] for bound in (min, max))
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("% of drafts that are right")
    axes.set_title(f"{together} request{'s'[: together > 1]} at a time")
