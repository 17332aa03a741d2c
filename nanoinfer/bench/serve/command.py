"""`python -m nanoinfer bench serve`: its options, and what it does with them."""

import argparse
import os
from pathlib import Path
from typing import Any

from nanoinfer.terminal import room


def add_serve(serve: argparse.ArgumentParser) -> None:
    """Add the options of `bench serve`."""
    serve.set_defaults(run=_serve)
    serve.add_argument(
        "--model", default="story", help="bundled name, checkpoint directory or Hub name (default: story)"
    )
    serve.add_argument(
        "--compare",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME[:option=value,...][=PROGRAM]",
        help="another server: vllm or llamacpp, run with the Python PROGRAM; llama-server=BINARY; nanoinfer with other "
        "options (nanoinfer:max_running_requests=128); or SERVER.py",
    )
    serve.add_argument(
        "--concurrency", type=int, nargs="+", metavar="N", help="clients in closed loops (default: 1 8 32 128)"
    )
    serve.add_argument(
        "--rates",
        type=float,
        nargs="*",
        metavar="SHARE",
        help="rates of open loops, as shares of what nanoinfer served in a closed loop (default: 0.5 0.8 0.95 1.2)",
    )
    serve.add_argument("--seconds", type=float, help="for how long requests are begun in a run (default: 5)")
    serve.add_argument("--rounds", type=int, help="number of rounds; figures are medians (default: 3; --own-cost: 7)")
    serve.add_argument("--new-tokens", type=int, help="tokens of an answer (default: 32; --own-cost: 64)")
    serve.add_argument(
        "--goodput",
        metavar="ttft_ms:N,tpot_ms:N",
        default="ttft_ms:500,tpot_ms:100",
        help="what a request must meet to count (default: ttft_ms:500,tpot_ms:100)",
    )
    serve.add_argument(
        "--threads", type=int, default=1, help="threads per server (default: 1; clients need a core, too)"
    )
    serve.add_argument("--seed", type=int, default=0, help="seed of prompts and arrivals (default: 0)")
    serve.add_argument(
        "--timeout",
        type=float,
        default=600,
        help="seconds until a server that does not start has failed (default: 600)",
    )
    serve.add_argument(
        "--own-cost",
        action="store_true",
        help="instead: compare 32 streams over HTTP with the same requests to an AsyncEngine",
    )
    serve.add_argument("--streams", type=int, help="for --own-cost: how many streams (default: 32)")
    serve.add_argument(
        "--json", type=os.path.expanduser, metavar="FILE", help="also write all runs to FILE, after each"
    )
    serve.add_argument("--resume", action="store_true", help="continue the run that wrote the file of --json")


def _serve(args: argparse.Namespace) -> int:
    from nanoinfer.bench.engines import EngineFailure

    if args.resume and not args.json:
        raise ValueError("--resume: needs --json FILE, the results to continue")
    if args.json:
        Path(args.json).touch()  # a file that cannot be written fails here, before the measurement
    try:
        if args.own_cost:
            return _own_cost(args)
        return _loads(args)
    except EngineFailure as failure:
        raise ValueError(f"no server could be measured: {failure}") from failure


def _loads(args: argparse.Namespace) -> int:
    from nanoinfer.bench.machine import Checkpoint
    from nanoinfer.bench.markdown import fitted
    from nanoinfer.bench.serve.conversations import Lengths
    from nanoinfer.bench.serve.figures import Goodput
    from nanoinfer.bench.serve.report import format_serve
    from nanoinfer.bench.serve.servers import NULL_SERVER, parse_server
    from nanoinfer.bench.serve.session import measure_serve
    from nanoinfer.bench.serve.settings import OURS, ServeSettings, continued, start_results
    from nanoinfer.model.loader import resolve_model_path

    if args.streams is not None:
        raise ValueError("--streams: goes with --own-cost only")
    given = {"clients": args.concurrency, "shares": args.rates, "seconds": args.seconds, "rounds": args.rounds}
    settings = ServeSettings(
        args.model,
        [OURS, *map(parse_server, args.compare), NULL_SERVER],
        threads=args.threads,
        seed=args.seed,
        lengths=Lengths() if args.new_tokens is None else Lengths(new_tokens=args.new_tokens),
        goodput=Goodput.parse(args.goodput),
        timeout=args.timeout,
        **{name: value for name, value in given.items() if value is not None},
    )
    fresh = start_results(settings, Checkpoint.read(resolve_model_path(args.model)))
    results = measure_serve(settings, continued(args.json, fresh) if args.resume else fresh, _keeper(args))
    print(fitted(format_serve(results), room()))
    return 0


def _own_cost(args: argparse.Namespace) -> int:
    from nanoinfer.bench.markdown import fitted
    from nanoinfer.bench.serve.own_cost import OwnCostSettings, measure_own_cost, start_own_cost
    from nanoinfer.bench.serve.own_cost_report import format_own_cost
    from nanoinfer.bench.serve.settings import continued

    for option, value in (
        ("--compare", args.compare),
        ("--concurrency", args.concurrency),
        ("--rates", args.rates),
        ("--seconds", args.seconds),
    ):
        if value:
            raise ValueError(f"{option}: does not go with --own-cost")
    given = {"rounds": args.rounds, "streams": args.streams, "new_tokens": args.new_tokens}
    settings = OwnCostSettings(
        args.model,
        threads=args.threads,
        seed=args.seed,
        timeout=args.timeout,
        **{name: value for name, value in given.items() if value is not None},
    )
    fresh = start_own_cost(settings)
    results = measure_own_cost(settings, continued(args.json, fresh) if args.resume else fresh, _keeper(args))
    print(fitted(format_own_cost(results), room()))
    return 0


def _keeper(args: argparse.Namespace) -> Any:
    """Writes the results to the file of --json, if there is one."""
    from nanoinfer.bench.settings import write_results

    def keep(results: dict[str, Any]) -> None:
        if args.json:
            write_results(args.json, results)

    return keep
