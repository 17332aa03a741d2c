"""`python -m nanoinfer bench tiers`: its options, and what it does with them."""

import argparse
import os
from pathlib import Path
from typing import Any

from nanoinfer.terminal import room


def add_tiers(tiers: argparse.ArgumentParser) -> None:
    """Add the options of `bench tiers`."""
    tiers.set_defaults(run=_tiers)
    tiers.add_argument("--model", default="story", help="bundled name, checkpoint directory or Hub name")
    tiers.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: the checkpoint's")
    tiers.add_argument(
        "--conversations",
        type=int,
        nargs="+",
        metavar="N",
        default=[4, 16, 64],
        help="how many chats there are, over a pool for 4 (default: 4 16 64)",
    )
    for option, default, what in (
        ("--turns", 3, "turns of a chat, the last one after a restart"),
        ("--first-tokens", 256, "tokens with which a chat begins"),
        ("--question-tokens", 24, "tokens that each later turn adds beside the last answer"),
        ("--new-tokens", 32, "tokens per answer"),
        ("--rounds", 3, "number of rounds; figures are medians"),
    ):
        tiers.add_argument(option, type=int, default=default, metavar="N", help=f"{what} (default: {default})")
    tiers.add_argument("--threads", type=int, help="threads per engine (default: the number of cores)")
    tiers.add_argument("--seed", type=int, default=0, help="seed of the token ids (default: 0)")
    tiers.add_argument(
        "--compare",
        nargs="+",
        default=[],
        metavar="NAME[:option=value,...][=PYTHON]",
        help="another engine: vllm (with its own options), llamacpp, which saves its slots, or a file PEER.py",
    )
    tiers.add_argument(
        "--timeout", type=float, default=600, help="seconds until an engine counts as failed (default: 600)"
    )
    tiers.add_argument("--out", type=os.path.expanduser, metavar="FILE.json", help="also write all runs to this file")


def _tiers(args: argparse.Namespace) -> int:
    from nanoinfer.bench.machine import describe_machine
    from nanoinfer.bench.markdown import fitted
    from nanoinfer.bench.settings import write_results
    from nanoinfer.bench.tiers import WAYS, TierSettings, measure_tiers, tier_peers
    from nanoinfer.bench.tiers_report import differences, format_tiers
    from nanoinfer.model.loader import resolve_model_path

    settings = TierSettings(
        args.conversations,
        args.turns,
        args.first_tokens,
        args.question_tokens,
        args.new_tokens,
        args.rounds,
        describe_machine()["cores"] if args.threads is None else args.threads,
        args.seed,
        args.dtype,
        tier_peers(args.compare),
        args.timeout,
    )
    path = resolve_model_path(args.model)
    if args.out:
        Path(args.out).touch()

    def keep(results: dict[str, Any]) -> None:
        if args.out:
            write_results(args.out, results)

    results = measure_tiers(path, settings, keep)
    print(fitted(format_tiers(results), room()))
    found = differences(results, WAYS) if results["model"]["dtype"] == "float32" else []
    for line in found:
        print(f"- DIFFERENT: {line}")
    return 1 if found else 0
