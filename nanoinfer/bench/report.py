"""Tables of a session's results, in Markdown that is also aligned for a terminal."""

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

from nanoinfer.bench.markdown import table
from nanoinfer.bench.metrics import advantage, against_best
from nanoinfer.bench.profile_report import format_profile
from nanoinfer.bench.workloads import WORKLOADS, Measure

Results = Mapping[str, Any]
LEGEND = """\
Figures are medians over rounds. Each round runs a workload on all engines in shuffled order, one at a time, while the
processes of the others are stopped. Ratios are computed within a round and shown as median (lowest..highest); above 1,
nanoinfer is faster. TTFT: time from arrival to the first token, median over requests. TPOT: time between two tokens of
a request, percentiles over all requests. Peak memory: memory of the engine's processes during the workload, including
weights and K/V. Cached: prompt tokens whose K/V was cached, if the engine reports them. Same tokens: requests whose
output equals nanoinfer's."""


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
        parts += [_title(model), main_table(model) if model["runs"] else "", new, remarks(model)]
        if details and model["runs"]:
            parts.append(details_table(model))
        for engine, profiles in model.get("profile", {}).items():
            parts += [f"Profile: {engine}, {name}\n\n{format_profile(kinds)}" for name, kinds in profiles.items()]
    legend = LEGEND if results["rounds"] else ""
    return "\n\n".join(part for part in [*parts, legend] if part)


def main_table(model: Results) -> str:
    """Rows: workloads. Columns: engines, and nanoinfer's ratio to the best peer of each round."""
    names = [engine["name"] for engine in model["engines"]]
    rivals = [engine["name"] for engine in model["engines"] if not engine["ours"]]
    rows = []
    for workload in model["workloads"]:
        measure = WORKLOADS[workload].measure
        row = [f"{workload}, {measure.label}", *(_cell(model, workload, name, measure.key) for name in names)]
        if rivals:
            by_round = {name: _by_round(model, workload, name, measure.key) for name in names}
            best = against_best(by_round[names[0]], {name: by_round[name] for name in rivals}, measure)
            row.append("–" if best is None else f"{_ratio(best[0])} {best[1]}")
        rows.append(row)
    return table(["workload", *names, *(["nanoinfer / best peer"] if rivals else [])], rows)


def details_table(model: Results) -> str:
    """One row per workload and engine, with all figures."""
    rows = []
    ours = model["engines"][0]["name"]
    for workload in model["workloads"]:
        measure = WORKLOADS[workload].measure
        for engine in model["engines"]:
            name = engine["name"]
            tpot = [_number(_over_rounds(model, workload, name, "tpot_ms", p)) for p in ("p50", "p99")]
            rows.append(
                [
                    f"{workload}, {measure.label}",
                    name,
                    _cell(model, workload, name, measure.key),
                    _times(model, workload, ours, name, measure) if name != ours else "",
                    _number(_over_rounds(model, workload, name, "ttft_s"), 1000),
                    *tpot,
                    _number(_over_rounds(model, workload, name, "peak_memory_mb")),
                    _number(_over_rounds(model, workload, name, "cached_tokens")),
                    _same(model, workload, name),
                ]
            )
    head = ["workload", "engine", "main figure", "nanoinfer is faster", "TTFT ms", "TPOT p50 ms", "p99 ms"]
    return table([*head, "peak MB", "cached", "same tokens"], rows)


def remarks(model: Results) -> str:
    """What the table does not show: failures, whether nanoinfer's settings agree, how close decoding is to memory speed."""
    lines = _roofline(model)
    lines += [_agreement(model, engine["name"]) for engine in model["engines"][1:] if engine["ours"]]
    for engine in model["engines"]:
        messages = {run["error"] for run in model["runs"] if run["engine"] == engine["name"] and "error" in run}
        if "error" in engine:
            lines.append(f"- FAILED: {engine['name']} while loading: {_one_line(engine['error'])}")
            continue
        for message in sorted(messages):
            where = [
                f"{run['workload']} (round {run['round'] + 1})"
                for run in model["runs"]
                if run["engine"] == engine["name"] and run.get("error") == message
            ]
            lines.append(f"- FAILED: {engine['name']} in {', '.join(where)}: {_one_line(message)}")
    disturbed = [run for run in model["runs"] if run.get("cores_elsewhere", 0) > 0.15]
    if disturbed:
        lines.append(
            f"- {len(disturbed)} of {len(model['runs'])} runs shared the machine with other work (>0.15 cores)."
        )
    return "\n".join(lines)


def _title(model: Results) -> str:
    bandwidth = ", ".join(f"{value:.1f}" for value in model["bandwidth_gb_s"])
    read = f", read bandwidth before and after {bandwidth} GB/s" if bandwidth else ""
    return f"### {model['name']}: {model['parameters'] / 1e6:.1f} M parameters, {model['dtype']}{read}"


def _roofline(model: Results) -> list[str]:
    """Weight bytes read per second in `single`, as a share of the memory's bandwidth, which limits a single stream."""
    shares, bandwidths = [], []
    for engine in model["engines"]:
        runs = [run for run in _runs(model, "single", engine["name"]) if run.get("ms_per_token")]
        if runs:
            read = [model["decode_bytes"] / run["ms_per_token"] / 1e6 for run in runs]
            available = [mean(run["bandwidth_gb_s"]) for run in runs]
            bandwidths += available
            shares.append(f"{engine['name']} {median(a / b for a, b in zip(read, available, strict=True)):.2f}")
    if not shares:
        return []
    weights = f"{model['decode_bytes'] / 1e9:.3f} GB of weights per token"
    measured = f"{min(bandwidths):.1f}..{max(bandwidths):.1f} GB/s, measured before and after each run"
    return [f"- single: {weights}; read speed as a share of the memory's speed ({measured}): {', '.join(shares)}"]


def _agreement(model: Results, name: str) -> str:
    compared = [run for run in model["runs"] if run["engine"] == name and "same_requests" in run]
    different = [run for run in compared if run["first_difference"]]
    if not compared:
        return f"- {name}: tokens not compared"
    if not different:
        return f"- {name}: tokens equal to nanoinfer's on every workload ({len(compared)} runs)"
    run = different[0]
    request, position = run["first_difference"]
    return (
        f"- {name}: TOKENS DIFFER from nanoinfer's in {len(different)} of {len(compared)} runs, first in "
        f"{run['workload']}, round {run['round'] + 1}, request {request}, output token {position}"
    )


def _runs(model: Results, workload: str, engine: str) -> list[Results]:
    return [run for run in model["runs"] if run["workload"] == workload and run["engine"] == engine]


def _by_round(model: Results, workload: str, engine: str, key: str) -> dict[int, float]:
    runs = _runs(model, workload, engine)
    return {run["round"]: run[key] for run in runs if run.get(key) is not None}


def _over_rounds(model: Results, workload: str, engine: str, key: str, part: str | None = None) -> float | None:
    values = _by_round(model, workload, engine, key)
    numbers = [value if part is None else value[part] for value in values.values()]  # type: ignore[index]
    return median(numbers) if numbers else None


def _cell(model: Results, workload: str, engine: str, key: str) -> str:
    """The median, with the number of rounds if some failed; a dash where the engine does not run this workload."""
    runs = _runs(model, workload, engine)
    values = _by_round(model, workload, engine, key)
    failed = sum("error" in run for run in runs)
    if not values:
        return "failed" if failed else "–"
    text = _number(median(values.values()))
    return f"{text} ({len(values)} of {len(runs)} rounds)" if failed else text


def _times(model: Results, workload: str, ours: str, other: str, measure: Measure) -> str:
    """How many times faster `ours` is, over the rounds that both have."""
    first, second = (_by_round(model, workload, name, measure.key) for name in (ours, other))
    ratios = [advantage(first[number], second[number], measure) for number in first if number in second]
    return _ratio(ratios) if ratios else "–"


def _ratio(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"


def _same(model: Results, workload: str, engine: str) -> str:
    counts = [run["same_requests"] for run in _runs(model, workload, engine) if "same_requests" in run]
    return f"{sum(same for same, _ in counts)}/{sum(total for _, total in counts)}" if counts else ""


def _number(value: float | None, factor: float = 1) -> str:
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


def _one_line(text: str) -> str:
    return " | ".join(text.splitlines())
