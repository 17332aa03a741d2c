"""The tables of `bench adapters`."""

from collections.abc import Mapping, Sequence
from typing import Any

from nanoinfer.bench.adapters import BASE, NUM_REQUESTS
from nanoinfer.bench.markdown import table
from nanoinfer.bench.metrics import against_best, by_round
from nanoinfer.bench.report import cell, ratio_cell
from nanoinfer.bench.workloads import OUTPUT_SPEED

LEGEND = """\
Figures are medians over rounds. A ratio is computed within a round and shown as median (lowest..highest). The first table
says how many times as long a batch takes as the base batch of the same engine and round, from the first prompt to the last
token. Every adapter is for all projections; the requests have them in turn."""


def format_adapters(results: Mapping[str, Any]) -> str:
    """The machine, then a table of costs and one of speeds, with a row per batch and a column per engine."""
    machine, model = results["machine"], results["model"]
    sizes = ", ".join(f"{count / 1e6:.1f} M of rank {rank}" for rank, count in results["adapter_parameters"].items())
    head = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB; {results['threads']} threads, "
        f"{results['rounds']} rounds, {results['date'][:10]}",
        f"Command: `{results['command']}`",
        *(
            f"- {engine['name']}: {' '.join(f'{name} {version}' for name, version in engine['versions'].items())}"
            for engine in results["engines"]
            if "versions" in engine
        ),
    ]
    title = f"### {model['name']}: {model['parameters'] / 1e6:.1f} M parameters, {model['dtype']}"
    parts = [
        "\n".join(head),
        f"{title}\n\n{results['description']}. Parameters of an adapter: {sizes}",
        "Time, as a multiple of the base batch's:\n\n" + _costs(results),
        "Output tokens per second:\n\n" + _speeds(results),
        "\n".join(_remarks(results)),
        LEGEND,
    ]
    return "\n\n".join(part for part in parts if part)


def _costs(results: Mapping[str, Any]) -> str:
    names = [engine["name"] for engine in results["engines"]]
    rows = [
        [batch, *(_cost(results, batch, name) for name in names)] for batch in results["batches"] if batch != str(BASE)
    ]
    return table([f"{NUM_REQUESTS} requests", *names], rows)


def _cost(results: Mapping[str, Any], batch: str, engine: str) -> str:
    ratios = cost(results, batch, engine)
    return ratio_cell(ratios) if ratios else "failed"


def cost(results: Mapping[str, Any], batch: str, engine: str) -> list[float]:
    """For every round that has both, how many times as long as the base batch the `batch` takes."""
    seconds, base = (by_round(results, each, engine, "wall_s") for each in (batch, str(BASE)))
    return [seconds[number] / base[number] for number in seconds if number in base]


def _speeds(results: Mapping[str, Any]) -> str:
    names = [engine["name"] for engine in results["engines"]]
    ours, rivals = _ours_and_rivals(results)
    rows = []
    for batch in results["batches"]:
        row = [batch, *(cell(results, batch, name, OUTPUT_SPEED.key) for name in names)]
        if rivals:
            rounds = {name: by_round(results, batch, name, OUTPUT_SPEED.key) for name in (ours, *rivals)}
            best = against_best(rounds[ours], {name: rounds[name] for name in rivals}, OUTPUT_SPEED)
            row.append("–" if best is None else f"{ratio_cell(best[0])} {best[1]}")
        rows.append(row)
    return table([f"{NUM_REQUESTS} requests", *names, *(["nanoinfer / best peer"] if rivals else [])], rows)


def _ours_and_rivals(results: Mapping[str, Any]) -> tuple[str, Sequence[str]]:
    ours = next(engine["name"] for engine in results["engines"] if engine["ours"])
    return ours, [engine["name"] for engine in results["engines"] if not engine["ours"]]


def _remarks(results: Mapping[str, Any]) -> list[str]:
    """How many requests got the same tokens, and each failure once."""
    ours, lines = _ours_and_rivals(results)[0], []
    for engine in results["engines"]:
        runs = [run for run in results["runs"] if run["engine"] == engine["name"]]
        counts = [run["same_requests"] for run in runs if "same_requests" in run]
        if counts and engine["name"] != ours:
            same, total = (sum(pair[i] for pair in counts) for i in (0, 1))
            lines.append(f"- {engine['name']}: {same} of {total} requests got {ours}'s tokens")
        errors = dict.fromkeys(run["error"] for run in runs if "error" in run)
        lines += [f"- FAILED: {engine['name']}, {' | '.join(error.splitlines())}" for error in errors]
    return lines
