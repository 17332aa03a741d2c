"""Tables of a session's results, in Markdown that is also aligned for a terminal."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from nanoinfer.bench.markdown import table
from nanoinfer.bench.metrics import advantage, against_best, by_round, runs_of
from nanoinfer.bench.remarks import remarks
from nanoinfer.bench.workloads import WORKLOADS, Measure

Results = Mapping[str, Any]
LEGEND = """\
Figures are medians over rounds. Each round runs a workload on all engines in shuffled order, one at a time, while the
processes of the others are stopped. Ratios are computed within a round and shown as median (lowest..highest); above 1,
nanoinfer is faster. TTFT: time from arrival to the first token, median over requests. TPOT: time between two tokens of
a request, percentiles over all requests. Peak memory: memory of the engine's processes during the workload, including
weights and K/V. Cached: prompt tokens whose K/V was cached, if the engine reports them. Same tokens: requests whose
output equals nanoinfer's with the same kind of weights."""


def format_results(results: Results, details: bool = True) -> str:
    """The whole report: the machine, then for each model the main figures, remarks and, with `details`, all figures."""
    machine = results["machine"]
    head = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB; {results['threads']} threads, "
        f"{results['rounds']} rounds, {results['date'][:10]}",
        f"Command: `{results['command']}`",
        _versions(results["models"]),
    ]
    parts = ["\n".join(line for line in head if line)]
    described: set[str] = set()
    for model in results["models"]:
        lengths = [f"- {name}: {facts['description']}" for name, facts in model["workloads"].items()]
        new = "\n".join(line for line in lengths if line not in described)
        described.update(lengths)
        parts.append(_title(model))
        if model["runs"]:
            parts += main_tables(model)
        parts += [new, remarks(model)]
        if details and model["runs"]:
            parts.append(details_table(model))
    return "\n\n".join(part for part in [*parts, LEGEND] if part)


def main_tables(model: Results) -> list[str]:
    """A table for the engines that compute with the checkpoint's numbers, and one for each kind of quantized weights."""
    kinds = dict.fromkeys(engine.get("weights") for engine in model["engines"])
    tables = []
    for weights in sorted(kinds, key=lambda kind: kind is not None):
        text = main_table(model, weights)
        tables.append(text if weights is None else f"Weights in {weights}:\n\n{text}")
    return tables


def main_table(model: Results, weights: str | None = None) -> str:
    """Rows: workloads. Columns: the engines with this kind of weights, and nanoinfer's ratio to the best peer of each
    round. Where nanoinfer runs with several settings, the ratio is that of the first."""
    engines = [engine for engine in model["engines"] if engine.get("weights") == weights]
    names = [engine["name"] for engine in engines]
    ours = _ours(model, weights)
    rivals = [engine["name"] for engine in engines if not engine["ours"]]
    rows = []
    for workload in model["workloads"]:
        measure = WORKLOADS[workload].measure
        row = [f"{workload}, {measure.label}", *(cell(model, workload, name, measure.key) for name in names)]
        if rivals and ours:
            rounds = {name: by_round(model, workload, name, measure.key) for name in (ours, *rivals)}
            best = against_best(rounds[ours], {name: rounds[name] for name in rivals}, measure)
            row.append("–" if best is None else f"{ratio_cell(best[0])} {best[1]}")
        rows.append(row)
    return table(["workload", *names, *(["nanoinfer / best peer"] if rivals and ours else [])], rows)


def _ours(model: Results, weights: str | None) -> str | None:
    """The first of nanoinfer's settings with this kind of weights."""
    return next((e["name"] for e in model["engines"] if e["ours"] and e.get("weights") == weights), None)


def details_table(model: Results) -> str:
    """One row per workload and engine, with all figures."""
    rows = []
    for workload in model["workloads"]:
        measure = WORKLOADS[workload].measure
        for engine in model["engines"]:
            name, ours = engine["name"], _ours(model, engine.get("weights"))
            tpot = [number_cell(_over_rounds(model, workload, name, "tpot_ms", p)) for p in ("p50", "p99")]
            rows.append(
                [
                    f"{workload}, {measure.label}",
                    name,
                    cell(model, workload, name, measure.key),
                    _times(model, workload, ours, name, measure) if ours not in (None, name) else "",
                    number_cell(_over_rounds(model, workload, name, "ttft_s"), 1000),
                    *tpot,
                    number_cell(_over_rounds(model, workload, name, "peak_memory_mb")),
                    number_cell(_over_rounds(model, workload, name, "cached_tokens")),
                    _same(model, workload, name),
                ]
            )
    head = ["workload", "engine", "main figure", "nanoinfer is faster", "TTFT ms", "TPOT p50 ms", "p99 ms"]
    return table([*head, "peak MB", "cached", "same tokens"], rows)


def _title(model: Results) -> str:
    title = f"### {model['name']}: {model['parameters'] / 1e6:.1f} M parameters, {model['dtype']}"
    if model["bandwidth_gb_s"]:
        title += f", read bandwidth before and after {', '.join(f'{v:.1f}' for v in model['bandwidth_gb_s'])} GB/s"
    return title


def _over_rounds(model: Results, workload: str, engine: str, key: str, part: str | None = None) -> float | None:
    values = by_round(model, workload, engine, key)
    numbers = [value if part is None else value[part] for value in values.values()]
    return median(numbers) if numbers else None


def cell(model: Results, workload: str, engine: str, key: str) -> str:
    """The median, with the number of rounds if some failed; a dash where the engine does not run this workload."""
    runs = runs_of(model, workload, engine)
    values = by_round(model, workload, engine, key)
    failed = sum("error" in run for run in runs)
    if not values:
        return "failed" if failed else "–"
    text = number_cell(median(values.values()))
    return f"{text} ({len(values)} of {len(runs)} rounds)" if failed else text


def _times(model: Results, workload: str, ours: str | None, other: str, measure: Measure) -> str:
    """How many times faster `ours` is, over the rounds that both have."""
    first, second = (by_round(model, workload, name or "", measure.key) for name in (ours, other))
    ratios = [advantage(first[number], second[number], measure) for number in first if number in second]
    return ratio_cell(ratios) if ratios else "–"


def ratio_cell(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"


def _same(model: Results, workload: str, engine: str) -> str:
    counts = [run["same_requests"] for run in runs_of(model, workload, engine) if "same_requests" in run]
    return f"{sum(same for same, _ in counts)}/{sum(total for _, total in counts)}" if counts else ""


def number_cell(value: float | None, factor: float = 1) -> str:
    if value is None:
        return ""
    value *= factor
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _versions(models: Sequence[Results]) -> str:
    """The versions of each engine's packages, once per engine."""
    seen: dict[str, str] = {}
    for model in models:
        for engine in model["engines"]:
            if "versions" in engine:
                seen[engine["name"].split(":")[0]] = " ".join(f"{k} {v}" for k, v in engine["versions"].items())
    return "\n".join(["Versions:", *(f"- {name}: {versions}" for name, versions in seen.items())]) if seen else ""
