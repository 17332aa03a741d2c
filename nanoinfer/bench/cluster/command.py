"""The options of `bench cluster`."""

import argparse
import json
import os
from importlib.util import find_spec
from pathlib import Path

SETUPS = ("threads", "sleep")
POLICY_NAMES = ("round-robin", "least-loaded", "prefix-hash", "prefix", "ray-prefix", "ray-prefix-10")


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "Serves the same traffic with each routing policy on Ray Serve (pip install nanoinfer[cluster]): two replicas of "
        "one thread each, and six whose model only sleeps. Cells that are in the folder already are not measured again."
    )
    parser.set_defaults(run=run)
    parser.add_argument("--model", default="story", help="for the replicas that compute (default: story)")
    parser.add_argument("--setup", choices=SETUPS, action="append", help="only this one; may be given again")
    parser.add_argument("--policy", choices=POLICY_NAMES, action="append", help="only this one; may be given again")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each workload's arrivals (default: 12)")
    parser.add_argument(
        "--rounds", type=int, default=1, help="of all cells; the table has medians and spreads (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the traffic (default: 0)")
    parser.add_argument(
        "--out", type=os.path.expanduser, default="bench-cluster", metavar="FOLDER", help="default: bench-cluster"
    )
    parser.add_argument("--json", type=os.path.expanduser, metavar="FILE", help="write all cells into this one, too")


def run(args: argparse.Namespace) -> None:
    """Measure, and print the table."""
    if find_spec("ray") is None:
        raise ValueError("bench cluster: needs Ray: pip install nanoinfer[cluster]")
    if not args.seconds > 0:
        raise ValueError(f"--seconds {args.seconds}: must be above 0")
    if args.rounds < 1:
        raise ValueError(f"--rounds {args.rounds}: must be at least 1")
    from nanoinfer.bench.cluster.session import run as run_session
    from nanoinfer.bench.cluster.session import table
    from nanoinfer.bench.cluster.setups import setups

    known = setups(args.model, args.seconds)
    chosen = [known[name] for name in args.setup or SETUPS]
    cells = run_session(chosen, args.policy or POLICY_NAMES, args.seed, args.rounds, Path(args.out))
    print(table(cells))
    if args.json is not None:
        content = json.dumps([each.as_json() for each in cells], indent=1)
        Path(args.json).write_text(content + "\n", encoding="utf-8")
