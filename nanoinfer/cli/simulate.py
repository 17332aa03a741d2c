"""`python -m nanoinfer simulate`: what a cluster would do, without one."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanoinfer.cluster.costs import PassCosts
    from nanoinfer.cluster.simulate.results import Results
    from nanoinfer.config import EngineConfig

WHAT = {
    "policies": "each policy once",
    "validate": "compare with real replicas in processes",
    "sweep": "from 1 to 1,000 replicas",
    "levels": "the engine's scheduler and tree against the block-level model",
    "routers": "how fast one is, and what several cost",
    "calibrate": "measure a model's passes, for --costs",
    "show": "tables and a picture of a file of --out",
}
NEED_OUT = {"show": "the results to show", "calibrate": "where to write the costs"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "Simulates replicas of an engine behind a router: hits, times to the first token and throughput of each policy. "
        "The replicas are the engine's own scheduler, radix tree and pools (up to 32 of them); only the model's passes "
        "are replaced by what they cost."
    )
    add = parser.add_argument
    about = "; ".join(f"{what}: {meaning}" for what, meaning in WHAT.items())
    add("what", nargs="?", choices=WHAT, default="policies", help=f"{about} (default: policies)")
    add("--replicas", type=int, nargs="+", metavar="N", help="how many (default: 4; sweep: 1 ... 1000)")
    add("--policy", nargs="+", metavar="NAME", help="round-robin, least-loaded, prefix-hash, prefix (default: all)")
    add("--trace", default="chat", help="the traffic; --trace help lists all (default: chat)")
    add("--rate", type=float, metavar="R", help="requests per second and replica (default: 16.7, 1,000 users each)")
    add("--seconds", type=float, help="of simulated time (default: 30; sweep: 24; validate: 30 of real)")
    add("--warm-up", type=float, metavar="S", help="seconds that only fill caches (default: two thirds)")
    costs = "h100-llama-8b, h200-llama-8b (published figures), or a file that `simulate calibrate` wrote"
    add("--costs", default="h100-llama-8b", help=costs)
    add("--slots", type=int, help="tokens of K/V per replica (default: by --costs, else 100,000)")
    add("--level", choices=("exact", "blocks"), help="default: exact up to 32 replicas")
    add("--routers", type=int, default=1, help="routers side by side (default: 1)")
    add("--seed", type=int, default=0, help="of the traffic (default: 0)")
    add("--processes", type=int, default=1, help="run so many simulations at a time (default: 1)")
    add("--model", default="story", help="for calibrate (default: story)")
    add("--out", type=os.path.expanduser, metavar="FILE.json", help="write the results, after each run")
    add("--resume", action="store_true", help="continue the run that wrote the file of --out")
    add("--figure", type=os.path.expanduser, metavar="FILE.png", help="also draw the results")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate, print tables, write and draw. The exit code of `validate` is 1 if a figure is more than 15 % off."""
    from nanoinfer.cluster.simulate.results import Results, read_results
    from nanoinfer.cluster.simulate.sweep import USER_EVERY_S, USERS_PER_REPLICA
    from nanoinfer.cluster.simulate.table import table
    from nanoinfer.cluster.simulate.traces import TRACES

    if args.trace == "help":
        for name, kind in TRACES.items():
            print(f"{name}: {' '.join((kind.__doc__ or '').split())}")
        return 0
    _check(args)
    if args.what == "calibrate":
        return _calibrate(args)
    if args.seconds is None:
        args.seconds = 24.0 if args.what == "sweep" else 30.0
    if args.warm_up is None:
        args.warm_up = args.seconds * 2 / 3
    if args.rate is None:
        args.rate = USERS_PER_REPLICA / USER_EVERY_S
    if args.what == "show":
        content = read_results(args.out)
    else:
        results = Results(args.out, _settings(args), args.resume)
        _runs(args, results)
        content = {"settings": results.settings, "runs": results.runs}
    print(table(content))
    if args.figure:
        from nanoinfer.cluster.simulate.figure import draw

        draw(content, Path(args.figure))
    if args.what == "validate":
        worst = max(abs(ratio - 1) for each in content["runs"].values() for ratio in each["ratios"].values())
        print(f"the simulation is at most {worst:.0%} off")
        return int(worst > 0.15)
    return 0


def _check(args: argparse.Namespace) -> None:
    """ValueError for what cannot be, before anything is computed."""
    needed = "the results to continue" if args.resume else NEED_OUT.get(args.what)
    if needed and not args.out:
        raise ValueError(f"{'--resume' if args.resume else args.what}: needs --out FILE, {needed}")
    if args.processes < 1:
        raise ValueError(f"--processes {args.processes}: must be at least 1")
    for path in (args.out, args.figure):
        if path and not Path(path).absolute().parent.is_dir():
            raise ValueError(f"{path}: there is no folder {Path(path).absolute().parent}")
    if args.figure:
        import matplotlib  # noqa: F401 - fails here, before anything is computed, where it is not installed


def _calibrate(args: argparse.Namespace) -> int:
    from nanoinfer.cluster.calibrate import calibrate
    from nanoinfer.frontends.llm import LLM

    costs = calibrate(LLM(args.model))
    costs.save(args.out)
    print(f"{costs}\nwritten: {args.out}")
    return 0


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """What the runs of a file of results have in common."""
    if args.what == "validate":
        return {"kind": "validate", "seconds": args.seconds}
    from dataclasses import asdict

    costs, config = _costs(args)
    return {
        "kind": args.what,
        "trace": args.trace,
        "rate": args.rate,
        "seconds": args.seconds,
        "warm_up": args.warm_up,
        "seed": args.seed,
        "slots": config.max_total_tokens,
        "costs": asdict(costs),
    }


def _runs(args: argparse.Namespace, results: "Results") -> None:
    if args.what == "validate":
        _validate(args, results)
        return
    from nanoinfer.cluster.simulate import sweep
    from nanoinfer.cluster.simulate.cluster import MOST_EXACT, ClusterSettings
    from nanoinfer.cluster.simulate.policy_router import POLICIES

    costs, config = _costs(args)
    common = (costs, config, args.trace, args.seconds, args.warm_up)
    policies = args.policy or list(POLICIES)
    if args.what == "sweep":
        jobs = sweep.jobs_by_size(args.replicas or sweep.SIZES, *common, policies, args.rate)
    elif args.what == "levels":
        sizes = args.replicas or [MOST_EXACT]
        jobs = [job for size in sizes for job in sweep.jobs_at_both_levels(size, *common, args.rate)]
    elif args.what == "routers":
        jobs = sweep.jobs_by_routers((args.replicas or [64])[0], *common, args.rate)
        _speeds(costs, results)
    else:
        jobs = [
            sweep.Job(
                f"{size} {policy}",
                ClusterSettings(
                    size,
                    policy,
                    costs,
                    config,
                    level=args.level or ("exact" if size <= MOST_EXACT else "blocks"),
                    routers=args.routers,
                    seed=args.seed,
                ),
                args.trace,
                args.rate,
                args.seconds,
                args.warm_up,
            )
            for size in args.replicas or [4]
            for policy in policies
        ]
    done = len([job for job in jobs if job.name in results.runs])

    def show(job: sweep.Job, figures: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        hits = f"hits {figures['hit_rate']:.1%}" if figures["requests"] else "no measured request has ended"
        print(f"{done}/{len(jobs)} {job.name}: {hits}", flush=True)

    sweep.run_jobs(jobs, results, args.processes, show)


def _speeds(costs: "PassCosts", results: "Results") -> None:
    """How fast one router is, by the size of its index."""
    from nanoinfer.cluster.simulate.router_speed import router_speed

    for replicas in (8, 64, 1000):
        for blocks in (100_000, 1_000_000):
            prompts = max(1, round(blocks / 56 / replicas))  # each has 56 blocks of its own
            results.once(
                f"one router, {replicas} replicas, {prompts} prompts each",
                lambda replicas=replicas, prompts=prompts: router_speed(replicas, prompts, costs).as_dict(),  # type: ignore[misc]
            )


def _validate(args: argparse.Namespace, results: "Results") -> None:
    from nanoinfer.cluster.simulate.validate import compare, standard_cases

    for case in standard_cases(args.seconds):
        found = results.once(case.name, lambda case=case: compare(case).as_dict())  # type: ignore[misc]
        ratios = ", ".join(f"{name} {100 * (ratio - 1):+.0f} %" for name, ratio in found["ratios"].items())
        print(f"{case.name}: {ratios}", flush=True)


def _costs(args: argparse.Namespace) -> "tuple[PassCosts, EngineConfig]":
    from nanoinfer.cluster.costs import PassCosts
    from nanoinfer.cluster.published_costs import THROUGHPUT, kv_slots, published_costs
    from nanoinfer.cluster.simulate.cluster import replica_config

    slots = args.slots
    if args.costs in THROUGHPUT or not Path(args.costs).exists():
        costs = published_costs(args.costs)
        slots = slots or kv_slots(args.costs)
    else:
        costs = PassCosts.load(args.costs)
    config = replica_config(slots or 100_000)
    return costs, config
