"""Draws the results of `bench serve`: throughput against clients, and the waits of the slowest against load. A hollow
marker is a lower bound: not all had been served when the measurement was over."""

from pathlib import Path
from typing import Any

from nanoinfer.bench.scaling_figure import STYLES
from nanoinfer.bench.serve.report import is_bound, over_rounds
from nanoinfer.bench.serve.start_commands import NULL


def draw(results: dict[str, Any], file: Path) -> None:
    """Write a PNG for a page about 900 pixels wide."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib import ticker

    plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
    figure, (speed, first, gaps) = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    settings = results["settings"]
    _lines(speed, results, "closed", settings["clients"], "tokens_s", None)
    speed.set_xscale("log", base=2)
    speed.set_xticks(settings["clients"], [str(count) for count in settings["clients"]])
    speed.minorticks_off()
    speed.set_ylim(bottom=0)
    speed.set(xlabel="clients, each with one request at a time", ylabel="tokens per second")
    speed.set_title("Tokens per second")
    speed.legend(frameon=False, fontsize=10)
    for axes, key, title in (
        (first, "ttft_ms", "Time to the first token,\nthe longest of a hundred"),
        (gaps, "gap_ms", "Time between two tokens,\nthe longest of a hundred"),
    ):
        _lines(axes, results, "open", settings["shares"], key, "p99")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
        axes.set_xticks(settings["shares"], [f"{share:.0%}" for share in settings["shares"]])
        axes.set(xlabel="rate of arrivals, as a share of\nthe most that nanoinfer serves", ylabel="ms (p99)")
        axes.set_title(title)
    figure.savefig(file, dpi=140, metadata={"Software": None})
    plt.close(figure)


def _lines(axes: Any, results: dict[str, Any], kind: str, levels: list[float], key: str, part: str | None) -> None:
    """A line per server, over the levels at which it was measured."""
    names = [name for name in results["settings"]["servers"] if name != NULL]
    for name, (color, marker, dashes) in zip(names, STYLES, strict=False):
        found = [(level, over_rounds(results, f"{kind} {level:g}", name, key, part)) for level in levels]
        points = [(level, value) for level, value in found if value is not None]
        x, y = [level for level, _ in points], [value for _, value in points]
        axes.plot(x, y, color=color, marker=marker, linestyle=dashes, label=name, markersize=7)
        bounds = [point for point in points if part and is_bound(results, f"{kind} {point[0]:g}", name, key, part)]
        if bounds:
            axes.plot(*zip(*bounds, strict=True), color="white", marker=marker, markersize=4, linestyle="")
