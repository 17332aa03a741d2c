"""Draws the results of scaling.py: three panels, each with one message."""

from pathlib import Path
from typing import Any

# Okabe and Ito, 2008: colour-blind readers can tell these colours apart. Markers and dashes distinguish the lines too.
STYLES = (("#0072B2", "o", "-"), ("#E69F00", "s", "--"), ("#009E73", "^", ":"), ("#CC79A7", "D", "-."))


def draw(results: dict[str, Any], file: Path) -> None:
    """Write a PNG for a page about 900 pixels wide."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
    figure, (steps, radix, ttft) = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    _bookkeeping(steps, results["bookkeeping"])
    _radix(radix, results["radix"], results["entry"])
    _ttft(ttft, results["ttft"])
    figure.savefig(file, dpi=140, metadata={"Software": None})
    plt.close(figure)


def _bookkeeping(axes: Any, steps: list[dict[str, Any]]) -> None:
    lines = dict.fromkeys((step["slots"], step["seq_len"]) for step in steps)
    for (slots, seq_len), (color, marker, dashes) in zip(lines, STYLES, strict=False):
        points = [step for step in steps if (step["slots"], step["seq_len"]) == (slots, seq_len)]
        x, y = [p["requests"] for p in points], [p["ms"] for p in points]
        label = f"{slots:,} slots, {seq_len} tokens each"
        axes.plot(x, y, color=color, marker=marker, linestyle=dashes, label=label, markersize=7)
    ticks = sorted({step["requests"] for step in steps})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_ylim(0, 1.4 * max(step["ms"] for step in steps))  # room for the legend
    axes.set(xlabel="running requests", ylabel="ms per decode step, without the model")
    axes.set_title("Bookkeeping grows with the requests,\nnot with the pool")
    axes.legend(frameon=False, fontsize=10)


def _radix(axes: Any, trees: list[dict[str, Any]], entry: int) -> None:
    x = [tree["tokens"] for tree in trees]
    for key, name, (color, marker, dashes) in zip(("match_us", "insert_us"), ("match", "insert"), STYLES, strict=False):
        axes.plot(
            x, [tree[key] for tree in trees], color=color, marker=marker, linestyle=dashes, label=name, markersize=7
        )
    axes.set_xscale("log")
    axes.set_xticks(x, [f"{size // 1000}k" for size in x])
    axes.minorticks_off()
    axes.set_ylim(0, 1.4 * max(max(tree["match_us"], tree["insert_us"]) for tree in trees))
    axes.set(xlabel="tokens in the radix tree", ylabel=f"µs for a sequence of {entry} tokens")
    axes.set_title("Match and insert take the same time\nin a tree of any size")
    axes.legend(frameon=False, fontsize=10)


def _ttft(axes: Any, points: list[dict[str, Any]]) -> None:
    color, marker, dashes = STYLES[0]
    x, y = [100 * point["fraction"] for point in points], [point["ttft_ms"] for point in points]
    axes.plot(x, y, color=color, marker=marker, linestyle=dashes, markersize=7)
    axes.set_ylim(bottom=0)
    axes.set(xlabel=f"% of a {points[0]['prompt_tokens']}-token prompt cached", ylabel="ms to the first token")
    axes.set_title("The more tokens are cached,\nthe sooner the first one comes")
