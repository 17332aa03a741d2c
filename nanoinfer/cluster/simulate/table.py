"""Tables of results, as text for a terminal and a page."""

from typing import Any

COLUMNS = (
    ("requests", "{:,}", "requests", 1.0),
    ("hits", "{:.1f} %", "hit_rate", 100.0),
    ("of one cache for all", "{:.1f} %", "ideal_hit_rate", 100.0),
    ("TTFT mean", "{:.1f} ms", "ttft_mean", 1e3),
    ("p50", "{:.1f} ms", "ttft_p50", 1e3),
    ("p99", "{:.1f} ms", "ttft_p99", 1e3),
    ("tok/s per replica", "{:,.0f}", "tokens_per_second", 1.0),
    ("imbalance", "{:.2f}", "imbalance", 1.0),
)


def table(results: dict[str, Any]) -> str:
    """The runs of a file of results, a line each, in Markdown."""
    kind, runs = results["settings"].get("kind"), results["runs"]
    if kind == "validate":
        return _validation(list(runs.values()))
    speeds = {name: run for name, run in runs.items() if "blocks" in run}
    others = {name: run for name, run in runs.items() if "blocks" not in run}
    parts = []
    if speeds:
        rows = [
            [
                f"{run['replicas']:,}",
                f"{run['blocks']:,}",
                f"{run['choice_us']:,.0f} µs",
                f"{run['hash_us']:,.0f} µs",
                f"{run['choices_per_second']:,.0f}",
                f"{run['blocks_per_second']:,.0f}",
            ]
            for run in speeds.values()
        ]
        head = ["replicas", "blocks in the index", "a choice", "hashing", "requests/s", "blocks stored/s"]
        parts.append(markdown(head, rows))
    if others:
        has_ideal = all("ideal_hit_rate" in run for run in others.values() if run["requests"])
        columns = COLUMNS if has_ideal else COLUMNS[:2] + COLUMNS[3:]
        ordered = sorted(others.items(), key=lambda item: (item[1]["replicas"], item[1].get("routers", 1)))
        rows = [[name, *(_cell(run, *column) for column in columns)] for name, run in ordered]
        parts.append(markdown(["run", *(head for head, *_ in columns)], rows))
    return "\n\n".join(parts)


def _cell(run: dict[str, Any], head: str, text: str, key: str, factor: float) -> str:
    if key not in run:
        return "–"
    return text.format(factor * run[key] if factor != 1.0 else run[key])


def _validation(runs: list[dict[str, Any]]) -> str:
    rows = []
    for run in runs:
        measured, simulated = run["measured"], run["simulated"]
        cells = [
            f"{scale * measured[key]:.1f} / {scale * simulated[key]:.1f} ({100 * (run['ratios'][key] - 1):+.0f} %)"
            for key, scale in (("ttft_mean", 1e3), ("ttft_p50", 1e3), ("ttft_p99", 1e3), ("tokens_per_second", 1.0))
        ]
        hits = f"{100 * measured['hit_rate']:.1f} / {100 * simulated['hit_rate']:.1f} %"
        rows.append([run["case"], f"{measured['requests']}", *cells, hits])
    heads = ["case", "requests", "TTFT mean, ms", "p50, ms", "p99, ms", "tok/s per replica", "hits"]
    return markdown(heads, rows) + "\n\nmeasured / simulated (how far the simulation is off)"


def markdown(heads: list[str], rows: list[list[str]]) -> str:
    """A table whose columns are aligned in the text, too."""
    widths = [max(len(line[place]) for line in [heads, *rows]) for place in range(len(heads))]

    def line(cells: list[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]) + " |"

    rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"
    return "\n".join([line(heads), rule, *map(line, rows)])
