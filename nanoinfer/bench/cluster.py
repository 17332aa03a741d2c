"""`bench cluster`: routing policies on a real cluster, on Ray Serve: hits, times and throughput of the same traffic.

Clients hold conversations that share system prompts, and ask in bursts with prefixes that nobody has seen before.
"""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any

from nanoinfer.bench import load
from nanoinfer.bench.engines import EngineSpec
from nanoinfer.bench.processes import free_port
from nanoinfer.bench.report import page, runs_of, table
from nanoinfer.bench.results import Keep, Results, new_results
from nanoinfer.bench.session import Settings, measure_rounds
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.serve.settings import ClusterSettings, ReplicaSettings
from nanoinfer.llm import LLM
from nanoinfer.sampling_params import SamplingParams

HEAD = ("setup", "workload", "policy", "hits", "of ideal", "TTFT p50", "p99", "tokens/s", "rounds", "wrong", "failed")
FIRST_TOKEN, LAST_TOKEN = 10, 1999  # ordinary tokens of the bundled model, and of every larger vocabulary

# An accelerator's shape: passes cost something, prompts cost much, and few rows cost little. It is slowed down so much that
# what is measured is these times, and not the processors that the ingress and six replicas share.
SLEEP = PassCosts(4e-2, 5e-4, 1e-3, 1e-7, source="as if from an accelerator, slowed down")
SLEEPING_VOCABULARY = 32_000


@dataclass(frozen=True)
class Ask:
    """One request: at `at` seconds or, after the answer of the request before it in its session, `at` seconds later. Its
    prompt is the session's tokens so far, prompts and answers, then `token_ids`."""

    at: float
    token_ids: Sequence[int]


Session = Sequence[Ask]


@dataclass(frozen=True)
class Size:
    """Tokens of each part, and how many of everything. `seconds`: until the last conversation begins, and of all bursts.
    `burst_s`: seconds in which the clients of a burst ask. It should be about the prefill of a prefix."""

    seconds: float = 12.0
    chats: int = 48
    systems: int = 8
    system: int = 256
    question: int = 24
    answer: int = 16
    turns: int = 3
    bursts: int = 3
    burst_prefixes: int = 4
    burst_clients: int = 60
    burst_prefix: int = 1024
    burst_s: float = 0.5


def chat(size: Size, seed: int) -> list[Session]:
    """Conversations of several turns. A few system prompts begin all of them; some are asked far more often than others."""
    rng = Random(f"chat {seed}")
    systems = [_tokens(rng, size.system) for _ in range(size.systems)]
    weights = [1 / rank for rank in range(1, size.systems + 1)]
    sessions: list[Session] = []
    for start in sorted(rng.uniform(0, size.seconds) for _ in range(size.chats)):
        (system,) = rng.choices(systems, weights)
        first = Ask(start, [*system, *_tokens(rng, size.question)])
        later = [Ask(rng.expovariate(2.0), _tokens(rng, size.question)) for _ in range(size.turns - 1)]
        sessions.append([first, *later])
    return sessions


def burst(size: Size, seed: int) -> list[Session]:
    """Again and again, many clients ask within about one prefill, with a few new prefixes, some far more often than others.
    Nobody has them cached: a router that waits for reports sends each client elsewhere, and one that looks at nothing but
    prefixes lets the clients of the first one wait for each other, beside replicas that have nothing to do."""
    rng = Random(f"burst {seed}")
    weights = [1 / rank for rank in range(1, size.burst_prefixes + 1)]
    sessions: list[Session] = []
    for number in range(size.bursts):
        start = size.seconds * number / size.bursts
        prefixes = [_tokens(rng, size.burst_prefix) for _ in weights]
        for at in sorted(rng.uniform(0, size.burst_s) for _ in range(size.burst_clients)):
            (prefix,) = rng.choices(prefixes, weights)
            sessions.append([Ask(start + at, [*prefix, *_tokens(rng, size.question)])])
    return sessions


WORKLOADS = {"chat": chat, "burst": burst}


def _tokens(rng: Random, count: int) -> list[int]:
    return [rng.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(count)]


async def run_traffic(
    port: int, model: str, sessions: Sequence[Session], max_tokens: int
) -> list[tuple[list[int], load.Exchange]]:
    """All sessions; each asks when its time has come. Prompts and their answers, in the order in which they were sent."""
    exchanges: list[tuple[list[int], load.Exchange]] = []
    began = time.perf_counter()

    async def hold(session: Session) -> None:
        so_far: list[int] = []
        for turn, ask in enumerate(session):
            due = ask.at - (time.perf_counter() - began) if turn == 0 else ask.at
            await asyncio.sleep(max(due, 0.0))
            prompt, exchange = [*so_far, *ask.token_ids], load.Exchange(time.perf_counter())
            exchanges.append((prompt, exchange))
            body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "return_token_ids": True}
            await load.ask(port, load.as_request(body), exchange)
            if exchange.read().error is not None or not exchange.times:
                exchange.error = exchange.error or "the answer has no tokens"
                return
            so_far = [*prompt, *exchange.token_ids]

    await asyncio.gather(*(hold(session) for session in sessions))
    return exchanges


def figures_of(exchanges: Sequence[tuple[list[int], load.Exchange]], wanted: Sequence[Sequence[int]]) -> dict[str, Any]:
    """`wanted`: what one engine answers to each of the exchanges' prompts.

    `hit_rate`: cached tokens of all prompt tokens; `ideal_hit_rate`: of one infinitely large cache. Times in seconds.
    `wrong`: requests whose tokens are not those of one engine alone; `failed`: those without an answer.
    """
    good = [(prompt, each) for prompt, each in exchanges if each.error is None]
    errors = [each.error for _, each in exchanges if each.error is not None]
    pairs = zip(exchanges, wanted, strict=True)
    ttft = [each.times[0] - each.due for _, each in good] or [0.0]
    centiles = quantiles(ttft, n=100, method="inclusive") if len(ttft) > 1 else ttft * 99
    span = max((each.times[-1] for _, each in good), default=0.0) - min((each.due for _, each in good), default=0.0)
    return {
        "requests": len(exchanges),
        "hit_rate": sum(each.cached_tokens or 0 for _, each in good) / max(sum(len(prompt) for prompt, _ in good), 1),
        "ideal_hit_rate": ideal_hits(exchanges) / max(sum(len(prompt) for prompt, _ in exchanges), 1),
        "ttft_p50": centiles[49],
        "ttft_p99": centiles[98],
        "output_tokens_per_second": sum(len(each.token_ids) for _, each in good) / span if span else 0.0,
        "wrong": sum(each.error is None and each.token_ids != list(right) for (_, each), right in pairs),
        "failed": len(errors),
        "first_error": errors[0] if errors else None,
    }


def ideal_hits(exchanges: Sequence[tuple[list[int], load.Exchange]]) -> int:
    """The cached tokens of one infinitely large cache that serves these in the order in which they were sent, each of which
    finds the prompts of all before it, and their answers. No routing can do better."""
    trie: dict[int, Any] = {}
    hits = 0
    for prompt, each in exchanges:
        node = trie
        for token in prompt[:-1]:  # the last one is always computed
            if token not in node:
                break
            node, hits = node[token], hits + 1
        node = trie
        for token in (*prompt, *each.token_ids):
            node = node.setdefault(token, {})
    return hits


@dataclass(frozen=True)
class Setup:
    """`threads`: engines that compute, one thread each. `sleep`: engines whose model only takes its time. `size`: of the
    traffic."""

    name: str
    replica: ReplicaSettings
    replicas: int
    size: Size

    def __str__(self) -> str:
        return self.name

    def answers(self, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
        """What one engine alone answers, greedily."""
        if self.replica.sleeps:
            return [[(prompt[-1] + 1 + i) % SLEEPING_VOCABULARY for i in range(tokens)] for prompt in prompts]
        params = SamplingParams(max_new_tokens=tokens, temperature=0, ignore_eos=True)
        outputs = LLM(self.replica.model, **self.replica.options).generate(prompts, params, use_tqdm=False)
        return [output.token_ids for output in outputs]


def setups(model: str, seconds: float = Size.seconds) -> dict[str, Setup]:
    """By name. `seconds`: of each workload."""
    few = {"max_total_tokens": 6144, "max_running_requests": 16}
    many = {**few, "max_total_tokens": 16_384, "max_context_len": 4096}
    small = Size(seconds, burst_prefixes=2, burst_clients=12, burst_prefix=512, burst_s=0.1)
    sleeping = ReplicaSettings("sleeping", many, threads=1, costs=SLEEP, sleeps=True)
    both = (
        Setup("threads", ReplicaSettings(model, few, threads=1), 2, small),
        Setup("sleep", sleeping, 6, Size(seconds)),
    )
    return {setup.name: setup for setup in both}


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
        # Ray's router remembers the replicas of the last cluster of a name, and sends requests to them: each has its own.
        own: dict[str, Any] = {
            "name": f"{setup.name}-{policy.name}-{number}",
            "cpus_per_replica": 0.1,
            "drain_timeout_s": 10.0,
        }
        cluster = ClusterSettings(setup.replica, setup.replicas, policy=policy.name, **own)
        deploy(cluster)
        try:
            return {name: cell(setup, make(setup.size, settings.seed + number)) for name, make in WORKLOADS.items()}
        finally:
            remove(cluster)

    def cell(setup: Setup, sessions: Sequence[Session]) -> dict[str, Any]:
        busy, tokens = os.getloadavg()[0], setup.size.answer
        exchanges = asyncio.run(run_traffic(port, setup.replica.model, sessions, tokens))
        answers = setup.answers([prompt for prompt, _ in exchanges], tokens)
        return {**figures_of(exchanges, answers), "load": busy}

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
    return page(results, table(HEAD, rows), legend="")


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):,.0f}" + (f" ({min(values):,.0f}–{max(values):,.0f})" if len(values) > 1 else "")
