"""Pictures of results: policies by the number of replicas, measured against simulated, and what routers cost."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nanoinfer.viz.palette import BARS, LINES

DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D")
COLOURS = (
    LINES[0],
    LINES[7],
    LINES[2],
    LINES[3],
)  # charcoal, rose, grey, brick: each lighter or darker than the others
PANELS = (
    ("hit_rate", "prompt tokens that were cached", 100.0, "%"),
    ("ttft_p50", "time to the first token,\nmedian (logarithmic)", 1e3, "ms"),
    ("ttft_p99", "time to the first token,\n99th percentile (logarithmic)", 1e3, "ms"),
    ("tokens_per_second", "output tokens per second\nand replica", 1.0, ""),
)


def draw(results: dict[str, Any], file: Path) -> None:
    """Write a PNG of a file of results, for a page about 900 pixels wide. ValueError for a kind that has no picture."""
    kind = results["settings"].get("kind")
    kinds: dict[Any, Callable[[list[dict[str, Any]]], Any]] = {
        "policies": _by_size,
        "sweep": _by_size,
        "validate": _validation,
        "routers": _routers,
    }
    if kind not in kinds:
        raise ValueError(f"kind={kind!r}: there is no picture of these results; there are for {', '.join(kinds)}")
    if not results["runs"]:
        raise ValueError("runs: there are none to draw")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False}):
        figure = kinds[kind](list(results["runs"].values()))
        figure.savefig(file, dpi=140, metadata={"Software": None})
        plt.close(figure)


def _by_size(runs: list[dict[str, Any]]) -> Any:
    """Four panels: hits, both waits and throughput, a line per policy over the number of replicas."""
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    policies = list(dict.fromkeys(run["policy"] for run in runs))
    for axes, (key, title, factor, unit) in zip(grid.flat, PANELS, strict=True):
        for place, policy in enumerate(policies):
            ended = [run for run in runs if run["policy"] == policy and run["requests"]]
            points = sorted((run["replicas"], factor * run[key]) for run in ended)
            _line(axes, points, place, policy)
        _sizes(axes, sorted({run["replicas"] for run in runs}))
        axes.set_title(title)
        axes.set(xlabel="replicas", ylabel=unit)
        if key.startswith("ttft") and any(run["requests"] for run in runs):
            _logarithmic(axes)
        else:
            _from_zero(axes)
    grid.flat[0].legend(frameon=False, fontsize=10)
    return figure


def _validation(runs: list[dict[str, Any]]) -> Any:
    """Simulated over measured: a row per case, a mark per figure, and the band of 15 % around 1."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(11, 1.5 + 0.5 * len(runs)), layout="constrained")
    names = list(runs[0]["ratios"])
    axes.axvspan(0.85, 1.15, color=BARS[2].face, label="within 15 %")
    axes.axvline(1, color=LINES[2], linewidth=1)
    for place, name in enumerate(names):
        x = [run["ratios"][name] for run in runs]
        y = [row + (place - (len(names) - 1) / 2) * 0.15 for row in range(len(runs))]
        axes.plot(x, y, MARKERS[place], color=LINES[place], label=name.replace("_", " "), markersize=7)
    axes.set_yticks(range(len(runs)), [run["case"] for run in runs])
    axes.invert_yaxis()
    axes.set(xlabel="simulated / measured")
    axes.legend(frameon=False, fontsize=10, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _routers(runs: list[dict[str, Any]]) -> Any:
    """How fast one router is, and what several side by side cost."""
    import matplotlib.pyplot as plt

    figure, (speed, hits, waits) = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    speeds = [run for run in runs if "choice_us" in run]
    for place, replicas in enumerate(sorted({run["replicas"] for run in speeds})):
        points = sorted((run["blocks"], run["choice_us"]) for run in speeds if run["replicas"] == replicas)
        _line(speed, points, place, f"{replicas} replicas")
    speed.set(xscale="log", xlabel="blocks in the index", ylabel="microseconds per choice")
    _from_zero(speed)
    speed.set_title("One router in Python")
    speed.legend(frameon=False, fontsize=10)
    several = [run for run in runs if "index" in run]
    words = {"whole": "each knows all blocks", "slice": "each knows its users' blocks"}
    for axes, key, factor, label, title in (
        (hits, "hit_rate", 100.0, "%", "prompt tokens that were cached"),
        (waits, "ttft_p99", 1e3, "ms", "time to the first token,\n99th percentile"),
    ):
        for place, index in enumerate(words):
            points = sorted((run["routers"], factor * run[key]) for run in several if run["index"] == index)
            _line(axes, points, place, words[index])
        _sizes(axes, sorted({run["routers"] for run in several}))
        axes.set(xlabel="routers", ylabel=label)
        _from_zero(axes)
        axes.set_title(title)
    hits.legend(frameon=False, fontsize=10, loc="lower left")
    return figure


def _line(axes: Any, points: Sequence[tuple[float, float]], place: int, label: str) -> None:
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=COLOURS[place % len(COLOURS)],
        marker=MARKERS[place % len(MARKERS)],
        linestyle=DASHES[place % len(DASHES)],
        label=label,
        markersize=6,
    )


def _sizes(axes: Any, sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(sizes), [f"{size:,}" for size in sizes], rotation=45 if len(sizes) > 6 else 0)
    axes.minorticks_off()


def _from_zero(axes: Any) -> None:
    """An axis that begins at 0 and leaves room above."""
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])


def _logarithmic(axes: Any) -> None:
    """A logarithmic axis with plain numbers."""
    from matplotlib import ticker

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
