"""`python -m nanoinfer bench drafts`: its options, and what it does with them."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nanoinfer.terminal import room

DRAFT_WORKLOAD_NAMES = ("copying", "json", "stories")  # for help without torch


def add_drafts(drafts: argparse.ArgumentParser) -> None:
    """Add the options of `bench drafts`."""
    drafts.set_defaults(run=_drafts)
    drafts.add_argument("--model", default="story", help="bundled name, checkpoint directory or Hub name")
    drafts.add_argument("--draft-model", metavar="NAME", help="for the drafter `model` (default: the model's own)")
    drafts.add_argument(
        "--workloads",
        nargs="+",
        metavar="NAME",
        default=list(DRAFT_WORKLOAD_NAMES),
        help=f"any of {', '.join(DRAFT_WORKLOAD_NAMES)} (default: all)",
    )
    drafts.add_argument(
        "--requests", type=int, nargs="+", metavar="N", help="how many requests at a time (default: 1 4 16 32)"
    )
    drafts.add_argument(
        "--num-draft-tokens",
        type=int,
        nargs="+",
        metavar="K",
        help="the most drafts per request and pass (default: 3 7)",
    )
    drafts.add_argument("--rounds", type=int, default=5, help="number of rounds; figures are medians (default: 5)")
    drafts.add_argument(
        "--always", action="store_true", help="draft even where it does not pay (adaptive_drafts=False)"
    )
    drafts.add_argument("--threads", type=int, help="threads (default: the number of cores)")
    drafts.add_argument("--seed", type=int, default=0, help="seed of the prompts (default: 0)")
    drafts.add_argument(
        "--compare",
        nargs="+",
        default=[],
        metavar="NAME[:option=value,...][=PYTHON]",
        help="another engine's n-gram drafts on `copying`: vllm or llamacpp, run with PYTHON if given",
    )
    drafts.add_argument(
        "--timeout", type=float, default=600, help="seconds until another engine counts as failed (default: 600)"
    )
    drafts.add_argument("--out", type=os.path.expanduser, metavar="FILE.json", help="also write all runs to this file")


def _drafts(args: argparse.Namespace) -> int:
    if args.out:
        Path(args.out).touch()  # a file that cannot be written fails here, before the measurement
    from nanoinfer.bench.draft_peers import draft_peers
    from nanoinfer.bench.draft_settings import DraftSettings
    from nanoinfer.bench.drafts import measure_drafts
    from nanoinfer.bench.drafts_report import format_drafts
    from nanoinfer.bench.machine import describe_machine
    from nanoinfer.bench.markdown import fitted

    settings = DraftSettings(
        args.model,
        args.draft_model,
        args.workloads,
        args.requests or (1, 4, 16, 32),
        args.num_draft_tokens or (3, 7),
        args.rounds,
        describe_machine()["cores"] if args.threads is None else args.threads,
        args.seed,
        args.always,
        peers=draft_peers(args.compare),
        timeout=args.timeout,
    )
    results = measure_drafts(settings, _keeper(args))
    print(fitted(format_drafts(results), room()))
    return 1 if results["differences"] else 0


def _keeper(args: argparse.Namespace) -> Callable[[dict[str, Any]], None]:
    """Writes the results to the file of --out, if there is one."""
    from nanoinfer.bench.settings import write_results

    def keep(results: dict[str, Any]) -> None:
        if args.out:
            write_results(args.out, results)

    return keep
