"""A run of `bench cluster`: routing policies on Ray Serve, with the same traffic."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from nanoinfer.bench.cluster.figures import figures_of
from nanoinfer.bench.cluster.traffic import WORKLOADS, Session, Size, run_traffic
from nanoinfer.bench.engines import EngineSpec
from nanoinfer.bench.metrics import runs_of
from nanoinfer.bench.processes import free_port
from nanoinfer.bench.report import failures, heading
from nanoinfer.bench.results import Keep, Results, new_results
from nanoinfer.bench.session import Settings, measure_rounds
from nanoinfer.bench.tables import table
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.serve.settings import ClusterSettings, ReplicaSettings
from nanoinfer.frontends.llm import LLM
from nanoinfer.requests.sampling_params import SamplingParams

POLICIES: dict[str, tuple[str, dict[str, Any]]] = {  # by the name in tables
    name: (name, {}) for name in ("round-robin", "least-loaded", "prefix-hash", "prefix")
}
HEAD = ("setup", "workload", "policy", "hits", "of ideal", "TTFT p50", "p99", "tokens/s", "rounds", "wrong", "failed")

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

    def __str__(self) -> str:
        return self.name

    def answers(self, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
        """What one engine alone answers, greedily."""
        if self.sleeps:
            return [[(prompt[-1] + 1 + i) % SLEEPING_VOCABULARY for i in range(tokens)] for prompt in prompts]
        params = SamplingParams(max_new_tokens=tokens, temperature=0, ignore_eos=True)
        outputs = LLM(self.model, **self.options).generate(prompts, params, use_tqdm=False)
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


def start_results(setups: Sequence[Setup], policies: Sequence[str], settings: Settings) -> Results:
    """Results without measurements."""
    names = {"setups": [setup.name for setup in setups], "policies": [*policies]}
    return new_results("cluster", {**settings.as_dict(), **names}, runs=[])


def measure_cluster(
    setups: Sequence[Setup], policies: Sequence[str], settings: Settings, results: Results, keep: Keep
) -> Results:
    """Add what `results` does not have yet: for each setup, policy and round the figures of both workloads on a fresh
    cluster. `keep` is called after every setup of every round."""
    from nanoinfer.cluster.ray_runtime import connect, disconnect, start_serve
    from nanoinfer.cluster.serve.applications import deploy, remove

    port = free_port()

    def one_run(number: int, setup: Setup, policy: EngineSpec) -> dict[str, Any]:
        cluster = setup.settings(f"{setup.name}-{policy.name}-{number}", *POLICIES[policy.name])
        deploy(cluster)
        try:
            return {name: cell(setup, make(setup.size, settings.seed + number)) for name, make in WORKLOADS.items()}
        finally:
            remove(cluster)

    def cell(setup: Setup, sessions: Sequence[Session]) -> dict[str, Any]:
        load = os.getloadavg()[0]
        exchanges = asyncio.run(run_traffic(port, setup.model, sessions))
        answers = setup.answers([each.prompt for each in exchanges], setup.size.answer)
        return {**figures_of(exchanges, answers), "load": load}

    was_started = connect(num_cpus=8)
    try:
        start_serve(port=port)
        engines = [EngineSpec(policy, Path()) for policy in policies]
        measure_rounds(results, setups, replace(settings, engines=engines), one_run, keep)
    finally:
        disconnect(was_started)
    return results


def format_cluster(results: Mapping[str, Any]) -> str:
    """A row for each setup, workload and policy: medians of rounds, with the least and the most where there are several,
    and all that was wrong or failed in any. Times in milliseconds."""
    rows = []
    for setup, workload in product(results["settings"]["setups"], WORKLOADS):
        for policy in results["settings"]["policies"]:
            cells = [run[workload] for run in runs_of(results, setup, policy) if workload in run]
            row = [setup, workload, policy]
            if cells:
                share = median(each["hit_rate"] / (each["ideal_hit_rate"] or 1) for each in cells)
                row += [f"{median(each['hit_rate'] for each in cells):.1%}", f"{share:.2f}"]
                row += [_spread([1e3 * each[name] for each in cells]) for name in ("ttft_p50", "ttft_p99")]
                row += [_spread([each["output_tokens_per_second"] for each in cells]), str(len(cells))]
                row += [str(sum(each[name] for each in cells)) for name in ("wrong", "failed")]
            rows.append([*row, *[""] * (len(HEAD) - len(row))])
    return "\n\n".join([heading(results), table(HEAD, rows), *failures(results)])


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):,.0f}" + (f" ({min(values):,.0f}–{max(values):,.0f})" if len(values) > 1 else "")
