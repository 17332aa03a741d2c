"""A run of `bench cluster`: one cell after the other, each kept in a file, so that a run that broke off goes on."""

import asyncio
import json
import logging
import socket
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from nanoinfer.bench.cluster.figures import Figures, figures_of
from nanoinfer.bench.cluster.setups import Setup
from nanoinfer.bench.cluster.traffic import run_traffic
from nanoinfer.bench.cluster.workloads import WORKLOADS, Size

POLICIES: dict[str, tuple[str, dict[str, Any]]] = {  # by the name in tables
    "round-robin": ("round-robin", {}),
    "least-loaded": ("least-loaded", {}),
    "prefix-hash": ("prefix-hash", {}),
    "prefix": ("prefix", {}),
    "ray-prefix": ("ray-prefix", {}),
    "ray-prefix-10": ("ray-prefix", {"imbalanced_threshold": 10}),
}


def run(
    setups: Sequence[Setup], policies: Sequence[str], size: Size, seed: int, rounds: int, out: Path
) -> list[Figures]:
    """Measure what is missing in the folder `out`; returns all cells of all rounds. The traffic of round r has seed + r."""
    from nanoinfer.cluster.ray_runtime import connect, disconnect, start_serve

    out.mkdir(parents=True, exist_ok=True)
    wanted = [(number, setup, policy) for number in range(rounds) for setup in setups for policy in policies]
    missing = [each for each in wanted if any(not _file(out, *each, name).exists() for name in WORKLOADS)]
    if missing:
        port = _free_port()
        was_started = connect(num_cpus=8)
        logging.getLogger("httpx").setLevel(logging.WARNING)  # Ray has every logger write, this one per request
        try:
            start_serve(port=port)
            for number, setup, policy in missing:
                _measure(number, setup, policy, size, seed + number, out, f"http://127.0.0.1:{port}")
        finally:
            disconnect(was_started)
    found = []
    for each in wanted:
        for workload in WORKLOADS:
            content = json.loads(_file(out, *each, workload).read_text(encoding="utf-8"))
            found.append(Figures(**content))
    return found


def _measure(number: int, setup: Setup, policy: str, size: Size, seed: int, out: Path, url: str) -> None:
    """Both workloads on a fresh cluster."""
    from nanoinfer.cluster.serve.applications import deploy, remove

    settings = setup.settings(f"{setup.name}-{policy}-{number}", *POLICIES[policy])
    deploy(settings)
    try:
        for workload, make in WORKLOADS.items():
            path = _file(out, number, setup, policy, workload)
            if path.exists():
                continue
            sessions = make(size, seed)
            exchanges = asyncio.run(run_traffic(url, setup.model, sessions))
            answers = setup.answers([each.prompt for each in exchanges], [size.answer] * len(exchanges))
            figures = figures_of(setup.name, policy, workload, exchanges, answers)
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_text(json.dumps(figures.as_json(), indent=1) + "\n", encoding="utf-8")
            unfinished.replace(path)
            print(_line(figures), flush=True)
    finally:
        remove(settings)


def table(cells: Sequence[Figures]) -> str:
    """All cells in Markdown: medians of their rounds, and all that was wrong or failed in any."""
    rounds: dict[tuple[str, str, str], list[Figures]] = {}
    for each in cells:
        rounds.setdefault((each.setup, each.workload, each.policy), []).append(each)
    head = ["setup", "workload", "policy", "hits", "of ideal", "TTFT p50", "p99", "tokens/s", "wrong", "failed"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, group in sorted(rounds.items(), key=lambda item: item[0][:2]):
        share = median(each.hit_rate / each.ideal_hit_rate if each.ideal_hit_rate else 1.0 for each in group)
        values = [
            *(*name, f"{median(each.hit_rate for each in group):.1%}", f"{share:.2f}"),
            *(f"{median(each.ttft_p50 for each in group) * 1e3:.0f} ms",),
            *(f"{median(each.ttft_p99 for each in group) * 1e3:.0f} ms",),
            *(f"{median(each.output_tokens_per_second for each in group):.0f}",),
            *(str(sum(each.wrong for each in group)), str(sum(each.failed for each in group))),
        ]
        lines.append("| " + " | ".join(values) + " |")
    return "\n".join(lines)


def _line(each: Figures) -> str:
    return (
        f"{each.setup} {each.workload} {each.policy}: hits {each.hit_rate:.1%} (ideal {each.ideal_hit_rate:.1%}), "
        f"TTFT {each.ttft_p50 * 1e3:.0f} and {each.ttft_p99 * 1e3:.0f} ms, {each.output_tokens_per_second:.0f} tokens/s, "
        f"{each.wrong} wrong, {each.failed} failed" + (f" ({each.first_error})" if each.first_error else "")
    )


def _file(out: Path, number: int, setup: Setup, policy: str, workload: str) -> Path:
    return out / f"{setup.name}-{workload}-{policy}-{number}.json"


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
