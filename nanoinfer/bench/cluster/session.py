"""A run of `bench cluster`: one cell after the other, each kept in a file, so that a run that broke off goes on."""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from nanoinfer.bench.cluster.figures import Figures, figures_of
from nanoinfer.bench.cluster.setups import Setup
from nanoinfer.bench.cluster.traffic import run_traffic
from nanoinfer.bench.cluster.workloads import WORKLOADS
from nanoinfer.bench.serve.process import free_port

POLICIES: dict[str, tuple[str, dict[str, Any]]] = {  # by the name in tables
    "round-robin": ("round-robin", {}),
    "least-loaded": ("least-loaded", {}),
    "prefix-hash": ("prefix-hash", {}),
    "prefix": ("prefix", {}),
    "ray-prefix": ("ray-prefix", {}),
    "ray-prefix-10": ("ray-prefix", {"imbalanced_threshold": 10}),
}


def run(setups: Sequence[Setup], policies: Sequence[str], seed: int, rounds: int, out: Path) -> list[Figures]:
    """Measure what is missing in the folder `out`, in turns; returns all cells of all rounds. The traffic of round r has
    seed + r."""
    from nanoinfer.cluster.ray_runtime import connect, disconnect, start_serve

    out.mkdir(parents=True, exist_ok=True)
    wanted = [(number, setup, policy) for number in range(rounds) for setup in setups for policy in policies]
    missing = [each for each in wanted if any(not _file(out, *each, name).exists() for name in WORKLOADS)]
    if missing:
        port = free_port()
        was_started = connect(num_cpus=8)
        logging.getLogger("httpx").setLevel(logging.WARNING)  # Ray has every logger write, this one per request
        try:
            start_serve(port=port)
            for number, setup, policy in missing:
                _measure(number, setup, policy, seed + number, out, f"http://127.0.0.1:{port}")
        finally:
            disconnect(was_started)
    found = []
    for each in wanted:
        for workload in WORKLOADS:
            content = json.loads(_file(out, *each, workload).read_text(encoding="utf-8"))
            found.append(Figures(**content))
    return found


def _measure(number: int, setup: Setup, policy: str, seed: int, out: Path, url: str) -> None:
    """Both workloads on a fresh cluster."""
    from nanoinfer.cluster.serve.applications import deploy, remove

    settings = setup.settings(f"{setup.name}-{policy}-{number}", *POLICIES[policy])
    deploy(settings)
    try:
        for workload, make in WORKLOADS.items():
            path = _file(out, number, setup, policy, workload)
            if path.exists():
                continue
            load, sessions = os.getloadavg()[0], make(setup.size, seed)
            exchanges = asyncio.run(run_traffic(url, setup.model, sessions))
            answers = setup.answers([each.prompt for each in exchanges], [setup.size.answer] * len(exchanges))
            figures = replace(figures_of(setup.name, policy, workload, exchanges, answers), load=load)
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_text(json.dumps(figures.as_json(), indent=1) + "\n", encoding="utf-8")
            unfinished.replace(path)
            print(_line(figures), flush=True)
    finally:
        remove(settings)


def table(cells: Sequence[Figures]) -> str:
    """All cells in Markdown: medians of their rounds, with the least and the most of these where there are several, and all
    that was wrong or failed in any. Times in milliseconds."""
    rounds: dict[tuple[str, str, str], list[Figures]] = {}
    for each in cells:
        rounds.setdefault((each.setup, each.workload, each.policy), []).append(each)
    head = ["setup", "workload", "policy", "hits", "of ideal", "TTFT p50", "p99", "tokens/s", "rounds", "wrong"]
    head.append("failed")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, group in sorted(rounds.items(), key=lambda item: item[0][:2]):
        share = median(each.hit_rate / each.ideal_hit_rate if each.ideal_hit_rate else 1.0 for each in group)
        values = [
            *(*name, f"{median(each.hit_rate for each in group):.1%}", f"{share:.2f}"),
            *(_spread(group, lambda each: each.ttft_p50 * 1e3), _spread(group, lambda each: each.ttft_p99 * 1e3)),
            _spread(group, lambda each: each.output_tokens_per_second),
            *(str(len(group)), str(sum(each.wrong for each in group)), str(sum(each.failed for each in group))),
        ]
        lines.append("| " + " | ".join(values) + " |")
    return "\n".join(lines)


def _spread(group: Sequence[Figures], value: Callable[[Figures], float]) -> str:
    values = [value(each) for each in group]
    return f"{median(values):,.0f}" + (f" ({min(values):,.0f}–{max(values):,.0f})" if len(values) > 1 else "")


def _line(each: Figures) -> str:
    return (
        f"{each.setup} {each.workload} {each.policy}: hits {each.hit_rate:.1%} (ideal {each.ideal_hit_rate:.1%}), "
        f"TTFT {each.ttft_p50 * 1e3:.0f} and {each.ttft_p99 * 1e3:.0f} ms, {each.output_tokens_per_second:.0f} tokens/s, "
        f"{each.wrong} wrong, {each.failed} failed" + (f" ({each.first_error})" if each.first_error else "")
    )


def _file(out: Path, number: int, setup: Setup, policy: str, workload: str) -> Path:
    return out / f"{setup.name}-{workload}-{policy}-{number}.json"
