"""A run of `bench cluster`: routing policies on Ray Serve, with the same traffic. One cell after the other, each kept in a
file, so that a run that broke off goes on."""

import asyncio
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from nanoinfer.bench.cluster.figures import Figures, figures_of
from nanoinfer.bench.cluster.traffic import WORKLOADS, Size, run_traffic
from nanoinfer.bench.processes import free_port
from nanoinfer.bench.tables import table
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.serve.settings import ClusterSettings, ReplicaSettings
from nanoinfer.frontends.llm import LLM
from nanoinfer.requests.sampling_params import SamplingParams

NAMES = ("round-robin", "least-loaded", "prefix-hash", "prefix", "ray-prefix")
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {  # by the name in tables
    **{name: (name, {}) for name in NAMES},
    "ray-prefix-10": ("ray-prefix", {"imbalanced_threshold": 10}),
}
# An accelerator's shape: passes cost something, prompts cost much, and few rows cost little. It is slowed down so much that
# what is measured is these times, and not the processors that the door and six replicas share.
SLEEP = PassCosts(4e-2, 5e-4, 1e-3, 1e-7, source="as if from an accelerator, slowed down")
SLEEPING_VOCABULARY = 32_000


@dataclass(frozen=True)
class Setup:
    """`threads`: engines that compute, one thread each. `sleep`: engines whose model only takes its time. `size`: of the
    traffic."""

    name: str
    replicas: int
    model: str
    options: dict[str, Any]
    sleeps: bool
    size: Size

    def settings(self, name: str, policy: str, policy_options: dict[str, Any]) -> ClusterSettings:
        """Such a cluster. Each needs a name of its own: Ray's router remembers the replicas of the last one of a name, and
        sends requests to them."""
        costs = SLEEP if self.sleeps else None
        replica = ReplicaSettings(self.model, self.options, threads=1, costs=costs, sleeps=self.sleeps)
        return ClusterSettings(
            replica,
            self.replicas,
            cpus_per_replica=0.1,
            policy=policy,
            policy_options=policy_options,
            name=name,
            drain_timeout_s=10.0,
        )

    def answers(self, prompts: Sequence[Sequence[int]], max_tokens: Sequence[int]) -> list[list[int]]:
        """What one engine alone answers, greedily."""
        if self.sleeps:
            return [
                [(prompt[-1] + 1 + i) % SLEEPING_VOCABULARY for i in range(most)]
                for prompt, most in zip(prompts, max_tokens, strict=True)
            ]
        params = [SamplingParams(max_new_tokens=most, temperature=0, ignore_eos=True) for most in max_tokens]
        outputs = LLM(self.model, **self.options).generate([list(prompt) for prompt in prompts], params, use_tqdm=False)
        return [output.token_ids for output in outputs]


def setups(model: str, seconds: float = Size.seconds) -> dict[str, Setup]:
    """By name. `seconds`: of each workload."""
    few = {"max_total_tokens": 6144, "max_running_requests": 16}
    many = {**few, "max_total_tokens": 16_384, "max_context_len": 4096}
    small = Size(seconds, burst_prefixes=2, burst_clients=12, burst_prefix=512, burst_s=0.1)
    return {
        "threads": Setup("threads", 2, model, few, False, small),
        "sleep": Setup("sleep", 6, "sleeping", many, True, Size(seconds)),
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
                _measure(number, setup, policy, seed + number, out, port)
        finally:
            disconnect(was_started)
    found = []
    for each in wanted:
        for workload in WORKLOADS:
            content = json.loads(_file(out, *each, workload).read_text(encoding="utf-8"))
            found.append(Figures(**content))
    return found


def _measure(number: int, setup: Setup, policy: str, seed: int, out: Path, port: int) -> None:
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
            exchanges = asyncio.run(run_traffic(port, setup.model, sessions))
            answers = setup.answers([each.prompt for each in exchanges], [setup.size.answer] * len(exchanges))
            figures = replace(figures_of(setup.name, policy, workload, exchanges, answers), load=load)
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_text(json.dumps(figures.as_json(), indent=1) + "\n", encoding="utf-8")
            unfinished.replace(path)
            print(_line(figures), flush=True)
    finally:
        remove(settings)


def format_cells(cells: Sequence[Figures]) -> str:
    """All cells: medians of their rounds, with the least and the most of these where there are several, and all that was
    wrong or failed in any. Times in milliseconds."""
    rounds: dict[tuple[str, str, str], list[Figures]] = {}
    for each in cells:
        rounds.setdefault((each.setup, each.workload, each.policy), []).append(each)
    rows = []
    for name, group in sorted(rounds.items(), key=lambda item: item[0][:2]):
        share = median(each.hit_rate / each.ideal_hit_rate if each.ideal_hit_rate else 1.0 for each in group)
        row = [*name, f"{median(each.hit_rate for each in group):.1%}", f"{share:.2f}"]
        row += [_spread([each.ttft_p50 * 1e3 for each in group]), _spread([each.ttft_p99 * 1e3 for each in group])]
        row += [_spread([each.output_tokens_per_second for each in group]), str(len(group))]
        rows.append([*row, str(sum(each.wrong for each in group)), str(sum(each.failed for each in group))])
    head = ["setup", "workload", "policy", "hits", "of ideal", "TTFT p50", "p99", "tokens/s", "rounds", "wrong"]
    return table([*head, "failed"], rows)


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):,.0f}" + (f" ({min(values):,.0f}–{max(values):,.0f})" if len(values) > 1 else "")


def _line(each: Figures) -> str:
    return (
        f"{each.setup} {each.workload} {each.policy}: hits {each.hit_rate:.1%} (ideal {each.ideal_hit_rate:.1%}), "
        f"TTFT {each.ttft_p50 * 1e3:.0f} and {each.ttft_p99 * 1e3:.0f} ms, {each.output_tokens_per_second:.0f} tokens/s, "
        f"{each.wrong} wrong, {each.failed} failed" + (f" ({each.first_error})" if each.first_error else "")
    )


def _file(out: Path, number: int, setup: Setup, policy: str, workload: str) -> Path:
    return out / f"{setup.name}-{workload}-{policy}-{number}.json"
