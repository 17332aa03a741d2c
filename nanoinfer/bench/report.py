"""Tables of measurements, in Markdown that is also aligned for a terminal: those of `bench run`, and what all share."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from nanoinfer.bench.workloads import Measure, measure_of

Results = Mapping[str, Any]
LEGEND = """\
Medians over rounds. Ratios are computed within a round, shown as median (lowest..highest); above 1, nanoinfer is faster.
Same tokens: requests whose output equals nanoinfer's with the same kind of weights. More: data/bench/README.md."""


def format_results(results: Results) -> str:
    """The whole report: the machine, then for each model the main figures, remarks and all figures."""
    parts = [heading(results) + "".join(f"\n- {line}" for line in _versions(results["models"]))]
    described: set[str] = set()
    for model in results["models"]:
        lengths = [f"- {name}: {facts['description']}" for name, facts in model["workloads"].items()]
        remarks = [line for line in lengths if line not in described]
        described.update(lengths)
        if used := [f"{each['name']} {each['instructions']}" for each in model["engines"] if "instructions" in each]:
            remarks.append(f"- instructions of the products: {', '.join(used)}")
        parts += [model_title(model), *main_tables(model), "\n".join(remarks)]
        parts += ["\n".join(failures(model)), details_table(model)]
    return "\n\n".join(part for part in [*parts, LEGEND] if part)


def page(results: Results, *parts: str, legend: str) -> str:
    """The machine and the model, `parts`, what failed, and the legend."""
    title = model_title(results["model"]) if "model" in results else ""
    every = [heading(results), title, *parts, "\n".join(failures(results)), legend]
    return "\n\n".join(part for part in every if part)


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
            row = [f"{workload}, {measure.label}", name, cell(model, workload, name, measure.key)]
            row += ["" if ours in (None, name) else ratio_cell(ratios), cell(model, workload, name, "ttft_s", 1000)]
            row += [number_cell(median(each[p] for each in tpot)) if tpot else "" for p in ("p50", "p99")]
            row += [cell(model, workload, name, key) for key in ("peak_memory_mb", "cached_tokens")]
            rows.append([*row, same_cell(model, workload, name)])
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


def same_cell(model: Results, workload: str, engine: str) -> str:
    """How many requests, of how many, had nanoinfer's tokens."""
    same = [run["same_requests"] for run in runs_of(model, workload, engine) if "same_requests" in run]
    return "/".join(str(sum(pair)) for pair in zip(*same, strict=True))


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


def advantage(ours: float, other: float, measure: Measure) -> float:
    """How many times better `ours` is. Above 1, ours is better, whether more or less of the measure is good."""
    return ours / other if measure.more_is_better else other / ours


def against_best(
    ours: Mapping[int, float], peers: Mapping[str, Mapping[int, float]], measure: Measure
) -> tuple[list[float], str] | None:
    """For every round, how many times better `ours` is than that round's best peer; and the peer that was best most often.

    Values are given by round. None if no round has both `ours` and a peer.
    """
    ratios, winners = [], []
    for number, value in sorted(ours.items()):
        rivals = {name: values[number] for name, values in peers.items() if number in values}
        if rivals:
            winner = min(rivals, key=lambda name: advantage(value, rivals[name], measure))
            ratios.append(advantage(value, rivals[winner], measure))
            winners.append(winner)
    return (ratios, max(sorted(set(winners)), key=winners.count)) if ratios else None


def runs_of(model: Mapping[str, Any], workload: str, engine: str) -> list[dict[str, Any]]:
    """The runs of one workload on one engine, failed ones included."""
    return [run for run in model["runs"] if run["workload"] == workload and run["engine"] == engine]


def by_round(model: Mapping[str, Any], workload: str, engine: str, key: str) -> dict[int, Any]:
    """Round → the run's figure `key`, for the rounds that have it."""
    runs = runs_of(model, workload, engine)
    return {run["round"]: run[key] for run in runs if run.get(key) is not None}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are right-aligned."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        return f"| {' | '.join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)])} |"

    rule = "|".join("-" * (width + 2) if not i else "-" * (width + 1) + ":" for i, width in enumerate(widths))
    return "\n".join([line(head), f"|{rule}|", *(line(row) for row in rows)])


def number_cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratio_cell(ratios: Sequence[float]) -> str:
    """The median, with the lowest and the highest."""
    return f"{median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})" if ratios else "–"
