"""`python -m nanoinfer simulate`: what a cluster would do, without one."""

import argparse
import inspect
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoinfer.bench.report import table
from nanoinfer.cli.options import check_folders

if TYPE_CHECKING:
    from nanoinfer.cluster.costs import PassCosts
    from nanoinfer.config import EngineConfig

WHAT = ("sweep", "calibrate", "show")
MOST_RUNNING, LONGEST_CONTEXT = 256, 131_072  # of a replica: requests side by side, tokens
COLUMNS = (
    ("requests", "{:,}", "requests", 1),
    ("hits", "{:.1f} %", "hit_rate", 100.0),
    ("of one cache for all", "{:.1f} %", "ideal_hit_rate", 100.0),
    ("TTFT mean", "{:.1f} ms", "ttft_mean", 1e3),
    ("p50", "{:.1f} ms", "ttft_p50", 1e3),
    ("p99", "{:.1f} ms", "ttft_p99", 1e3),
    ("tok/s per replica", "{:,.0f}", "tokens_per_second", 1.0),
    ("imbalance", "{:.2f}", "imbalance", 1.0),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "Simulates replicas of an engine behind a router: hits, times to the first token and throughput of each policy. "
        "The replicas are the engine's own scheduler, tree and pools; a pass of the model takes the time it would cost."
    )
    add = parser.add_argument
    add(
        "what",
        nargs="?",
        choices=WHAT,
        help="sweep: 1 to 32 replicas; calibrate: measure a model's passes; show: a file of --out (default: simulate once)",
    )
    add("--replicas", type=int, nargs="+", metavar="N", help="how many (default: 4; sweep: 1 ... 32)")
    add("--policy", nargs="+", metavar="NAME", help="round-robin, least-loaded, prefix-hash, prefix (default: all)")
    add("--trace", default="chat", help="the traffic; --trace help lists all (default: chat)")
    add("--rate", type=float, metavar="R", help="requests per second and replica (default: 16.7, 1,000 users each)")
    add("--seconds", type=float, default=30.0, help="of simulated time (default: 30)")
    add("--warm-up", type=float, metavar="S", help="seconds that only fill caches (default: two thirds)")
    add(
        "--costs",
        default="h100-llama-8b",
        help="h100-llama-8b, h200-llama-8b (published figures), or a file of calibrate",
    )
    add("--slots", type=int, help="tokens of K/V per replica (default: by --costs, else 100,000)")
    add("--seed", type=int, default=0, help="of the traffic (default: 0)")
    add("--processes", type=int, default=1, help="run so many simulations at a time (default: 1)")
    add("--model", default="story", help="for calibrate (default: story)")
    add("--out", type=os.path.expanduser, metavar="FILE.json", help="write the results, after each run")
    add("--figure", type=os.path.expanduser, metavar="FILE.png", help="also draw the results")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate, print the table, write and draw."""
    from nanoinfer.cluster.simulate.sweep import draw, read_results
    from nanoinfer.cluster.simulate.traces import TRACES

    if args.trace == "help":
        for name, kind in TRACES.items():
            print(f"{name}: {' '.join((inspect.getdoc(kind) or '').split())}")
        return 0
    _check(args)
    if args.what == "calibrate":
        return _calibrate(args)
    runs = (read_results(args.out) if args.what == "show" else _simulate(args))["runs"]
    print(_table(runs))
    if args.figure:
        draw(list(runs.values()), Path(args.figure))
    return 0


def _table(runs: dict[str, Any]) -> str:
    """Runs by name, a line each, in Markdown whose columns are aligned in the text, too."""
    rows = [
        [name, *(text.format(factor * run[key]) if key in run else "–" for _, text, key, factor in COLUMNS)]
        for name, run in runs.items()
    ]
    return table(["run", *(head for head, *_ in COLUMNS)], rows)


def _check(args: argparse.Namespace) -> None:
    """ValueError for what cannot be, before anything is computed."""
    if args.what in ("show", "calibrate") and not args.out:
        raise ValueError(f"{args.what}: needs --out FILE")
    if args.processes < 1:
        raise ValueError(f"--processes {args.processes}: must be at least 1")
    check_folders(args.out, args.figure)
    if args.figure:
        import matplotlib  # noqa: F401 - fails here, before anything is computed, where it is not installed


def _calibrate(args: argparse.Namespace) -> int:
    from nanoinfer.cluster.calibrate import calibrate
    from nanoinfer.llm import LLM

    costs = calibrate(LLM(args.model))
    costs.save(args.out)
    print(f"{costs}\nwritten: {args.out}")
    return 0


def _simulate(args: argparse.Namespace) -> dict[str, Any]:
    """Every policy at every size."""
    from nanoinfer.cluster.policies import POLICIES
    from nanoinfer.cluster.simulate.cluster import ClusterSettings
    from nanoinfer.cluster.simulate.sweep import SIZES, USER_EVERY_S, USERS_PER_REPLICA, Job, run_jobs

    costs, config = _costs(args)
    traffic = {
        "trace": args.trace,
        "rate": USERS_PER_REPLICA / USER_EVERY_S if args.rate is None else args.rate,
        "seconds": args.seconds,
        "warm_up": args.seconds * 2 / 3 if args.warm_up is None else args.warm_up,
        "seed": args.seed,
    }
    settings = {**traffic, "slots": config.max_total_tokens, "costs": asdict(costs)}
    jobs = [
        Job(f"{size} {policy}", ClusterSettings(size, policy, costs, config), **traffic)
        for size in args.replicas or (SIZES if args.what == "sweep" else [4])
        for policy in args.policy or POLICIES
    ]

    def show(job: Job, figures: dict[str, Any]) -> None:
        hits = f"hits {figures['hit_rate']:.1%}" if figures["requests"] else "no measured request has ended"
        print(f"{jobs.index(job) + 1}/{len(jobs)} {job.name}: {hits}", flush=True)

    return run_jobs(jobs, settings, args.out, args.processes, show)


def _costs(args: argparse.Namespace) -> "tuple[PassCosts, EngineConfig]":
    """Costs of passes, and the settings of a replica: a GPU's, not a laptop's."""
    from nanoinfer.cluster.costs import THROUGHPUT, PassCosts, kv_slots, published_costs
    from nanoinfer.config import EngineConfig

    if args.costs in THROUGHPUT or not Path(args.costs).exists():
        costs, slots = published_costs(args.costs), args.slots or kv_slots(args.costs)
    else:
        costs, slots = PassCosts.load(args.costs), args.slots or 100_000
    return costs, EngineConfig(MOST_RUNNING, slots, min(LONGEST_CONTEXT, slots))
