"""Results as a table, for a terminal and a page."""

from typing import Any

COLUMNS = (
    ("requests", "{:,}", "requests", 1),
    ("hits", "{:.1f} %", "hit_rate", 100.0),
    ("of one cache for all", "{:.1f} %", "ideal_hit_rate", 100.0),
    ("TTFT mean", "{:.1f} ms", "ttft_mean", 1e3),
    ("p50", "{:.1f} ms", "ttft_p50", 1e3),
    ("p99", "{:.1f} ms", "ttft_p99", 1e3),
    ("tok/s per replica", "{:,.0f}", "tokens_per_second", 1.0),
    ("imbalance", "{:.2f}", "imbalance", 1.0),
)


def table(runs: dict[str, Any]) -> str:
    """Runs by name, a line each, in Markdown whose columns are aligned in the text, too."""
    lines = [["run", *(head for head, *_ in COLUMNS)]]
    for name, run in runs.items():
        cells = [text.format(factor * run[key]) if key in run else "–" for _, text, key, factor in COLUMNS]
        lines.append([name, *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    first = [line[0].ljust(widths[0]) for line in lines]
    others = [[cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)] for line in lines]
    return "\n".join(f"| {' | '.join([name, *cells])} |" for name, cells in zip(first, others, strict=True))
