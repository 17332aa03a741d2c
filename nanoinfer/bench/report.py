"""Tables of `bench run`, in Markdown that is also aligned for a terminal."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from nanoinfer.bench.metrics import advantage, against_best, by_round, runs_of
from nanoinfer.bench.tables import number_cell, ratio_cell, table
from nanoinfer.bench.workloads import measure_of

Results = Mapping[str, Any]
LEGEND = """\
Figures are medians over rounds. Each round runs a workload on all engines in shuffled order, one at a time, while the
processes of the others are stopped. Ratios are computed within a round and shown as median (lowest..highest); above 1,
nanoinfer is faster. TTFT: time from arrival to the first token, median over requests. TPOT: time between two tokens of
a request, percentiles over all requests. Peak memory: memory of the engine's process during the workload, including
weights and K/V. Cached: prompt tokens whose K/V was cached, if the engine reports them. Same tokens: requests whose
output equals nanoinfer's with the same kind of weights."""


def format_results(results: Results) -> str:
    """The whole report: the machine, then for each model the main figures, remarks and all figures."""
    parts = [heading(results) + "".join(f"\n- {line}" for line in _versions(results["models"]))]
    described: set[str] = set()
    for model in results["models"]:
        lengths = [f"- {name}: {facts['description']}" for name, facts in model["workloads"].items()]
        parts += [model_title(model), *main_tables(model), "\n".join(line for line in lengths if line not in described)]
        described.update(lengths)
        parts += [remarks(model), details_table(model)]
    return "\n\n".join(part for part in [*parts, LEGEND] if part)


def heading(results: Results) -> str:
    """The machine, the settings and the command."""
    machine = results["machine"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB; {results['threads']} threads, "
        f"{results['rounds']} rounds, {results['date'][:10]}\nCommand: `{results['command']}`"
    )


def model_title(model: Results) -> str:
    return f"### {model['name']}: {model['parameters'] / 1e6:.1f} M parameters, {model['dtype']}"


def main_tables(model: Results) -> list[str]:
    """A table for the engines that compute with the checkpoint's numbers, and one for each kind of quantized weights."""
    kinds = dict.fromkeys(engine.get("weights") for engine in model["engines"])
    tables = {kind: main_table(model, kind) for kind in sorted(kinds, key=lambda kind: kind is not None)}
    return [text if kind is None else f"Weights in {kind}:\n\n{text}" for kind, text in tables.items()]


def main_table(model: Results, weights: str | None = None) -> str:
    """Rows: workloads. Columns: the engines with this kind of weights, and nanoinfer's ratio to the best peer of each
    round. Where nanoinfer runs with several settings, the ratio is that of the first."""
    engines = [engine for engine in model["engines"] if engine.get("weights") == weights]
    names = [engine["name"] for engine in engines]
    rivals = [engine["name"] for engine in engines if not engine["ours"]]
    ours = _ours(model, weights) if rivals else None
    rows = []
    for workload in model["workloads"]:
        measure = measure_of(workload)
        row = [f"{workload}, {measure.label}", *(cell(model, workload, name, measure.key) for name in names)]
        if ours:
            rounds = {name: by_round(model, workload, name, measure.key) for name in names}
            best = against_best(rounds[ours], {name: rounds[name] for name in rivals}, measure)
            row.append("–" if best is None else f"{ratio_cell(best[0])} {best[1]}")
        rows.append(row)
    return table(["workload", *names, *(["nanoinfer / best peer"] if ours else [])], rows)


def _ours(model: Results, weights: str | None) -> str | None:
    """The first of nanoinfer's settings with this kind of weights."""
    return next((e["name"] for e in model["engines"] if e["ours"] and e.get("weights") == weights), None)


def details_table(model: Results) -> str:
    """One row per workload and engine, with all figures."""
    rows = []
    for workload in model["workloads"]:
        measure = measure_of(workload)
        for engine in model["engines"]:
            name, ours = engine["name"], _ours(model, engine.get("weights"))
            mine, theirs = (by_round(model, workload, each or "", measure.key) for each in (ours, name))
            ratios = [advantage(mine[number], theirs[number], measure) for number in mine if number in theirs]
            tpot = by_round(model, workload, name, "tpot_ms").values()
            same = [run["same_requests"] for run in runs_of(model, workload, name) if "same_requests" in run]
            row = [f"{workload}, {measure.label}", name, cell(model, workload, name, measure.key)]
            row += ["" if ours in (None, name) else ratio_cell(ratios), cell(model, workload, name, "ttft_s", 1000)]
            row += [number_cell(median(each[p] for each in tpot)) if tpot else "" for p in ("p50", "p99")]
            row += [cell(model, workload, name, key) for key in ("peak_memory_mb", "cached_tokens")]
            rows.append([*row, "/".join(str(sum(pair)) for pair in zip(*same, strict=True))])
    head = ["workload", "engine", "main figure", "nanoinfer is faster", "TTFT ms", "TPOT p50 ms", "p99 ms"]
    return table([*head, "peak MB", "cached", "same tokens"], rows)


def cell(model: Results, workload: str, engine: str, key: str, factor: float = 1) -> str:
    """The median, with the number of rounds if some failed; a dash where the engine does not have this figure."""
    runs = runs_of(model, workload, engine)
    values = by_round(model, workload, engine, key)
    failed = sum("error" in run for run in runs)
    if not values:
        return "failed" if failed else "–"
    text = number_cell(median(values.values()) * factor)
    return f"{text} ({len(values)} of {len(runs)} rounds)" if failed else text


def remarks(model: Results) -> str:
    """Whether nanoinfer's settings agree, and failures."""
    lines, runs = list[str](), model["runs"]
    for engine in model["engines"]:
        name = engine["name"]
        compared = [run["same_requests"] for run in runs if run["engine"] == name and "same_requests" in run]
        if engine["ours"] and name != _ours(model, engine.get("weights")) and compared:
            wrong = sum(same != total for same, total in compared)
            equal = f"TOKENS DIFFER from nanoinfer's in {wrong}" if wrong else "tokens equal to nanoinfer's in all"
            lines.append(f"- {name}: {equal} of {len(compared)} runs")
    return "\n".join([*lines, *failures(model)])


def failures(results: Results) -> list[str]:
    """Each failure of an engine once, and where it was."""
    where: dict[tuple[str, str], list[str]] = {}
    for engine in results.get("engines", ()):
        if "error" in engine:
            where[engine["name"], engine["error"]] = ["while loading"]
    for run in results["runs"]:
        if run.get("error", "not loaded") != "not loaded":
            where.setdefault((run["engine"], run["error"]), []).append(f"{run['workload']} (round {run['round'] + 1})")
    return [
        f"- FAILED: {name}, {', '.join(places)}: {' | '.join(error.splitlines())}"
        for (name, error), places in where.items()
    ]


def _versions(models: Sequence[Results]) -> list[str]:
    """The versions of each engine's packages, once per engine."""
    seen = {e["name"].split(":")[0]: e["versions"] for model in models for e in model["engines"] if "versions" in e}
    return [f"{name}: {' '.join(f'{key} {version}' for key, version in each.items())}" for name, each in seen.items()]
