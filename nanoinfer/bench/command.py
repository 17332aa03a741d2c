"""`python -m nanoinfer bench`: its options and its commands."""

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoinfer.commands.terminal import room

if TYPE_CHECKING:
    from nanoinfer.bench.session import Settings

WORKLOAD_NAMES = ("offline", "shared", "shared-cached", "single", "prefill", "staggered")  # for help without torch


def add_commands(bench: argparse.ArgumentParser, engine_options: Callable[[argparse.ArgumentParser], None]) -> None:
    """`bench run`, `bench decode` and `bench table`; `engine_options` adds `--model` and LLM's options."""
    commands = bench.add_subparsers(
        dest="what", required=True, metavar="what", parser_class=type(bench), help="default: run"
    )
    run = commands.add_parser("run", help="run all workloads on nanoinfer and the engines to compare it with")
    run.set_defaults(run=_run)
    run.add_argument(
        "--model",
        nargs="+",
        default=["story"],
        help="bundled name, checkpoint directories or Hub names (default: story)",
    )
    run.add_argument("--dtype", nargs="+", metavar="DTYPE", help="float32, bfloat16 (default: as in each checkpoint)")
    run.add_argument(
        "--workloads", nargs="+", metavar="NAME", help=f"any of {', '.join(WORKLOAD_NAMES)} (default: all)"
    )
    run.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="number of rounds; every figure is their median (default: 3; with --profile, 0 means only the profile)",
    )
    run.add_argument("--threads", type=int, help="threads per engine (default: the number of cores)")
    run.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="NAME[=PYTHON]",
        help="another engine: transformers, vllm, openvino or llamacpp, run with PYTHON if given; or "
        "nanoinfer:option=value,... for nanoinfer with other options; may be given several times",
    )
    run.add_argument(
        "--once", action="append", default=[], metavar="NAME", help="run this engine in the first round only"
    )
    run.add_argument("--seed", type=int, default=0, help="seed of the token ids (default: 0)")
    run.add_argument(
        "--gap", type=float, help="for staggered: mean seconds between arrivals (default: by the model's size)"
    )
    run.add_argument(
        "--timeout",
        type=float,
        default=600,
        help="seconds to wait for an engine's answer before it counts as failed (default: 600)",
    )
    run.add_argument("--json", type=os.path.expanduser, metavar="FILE", help="also write all runs to FILE")
    run.add_argument("--profile", action="store_true", help="also show where the time goes in nanoinfer's steps")

    decode = commands.add_parser(
        "decode", help="compare decoding one session at a time, as a padded batch, and from pools"
    )
    decode.set_defaults(run=_decode)
    decode.add_argument("--requests", type=int, default=16, help="requests decoded together (default: 16)")
    decode.add_argument("--new-tokens", type=int, default=64, help="tokens per request (default: 64)")
    decode.add_argument("--rounds", type=int, default=5, help="number of rounds; times are their medians (default: 5)")
    decode.add_argument("--json", type=os.path.expanduser, metavar="FILE", help="also write the figures to FILE")
    engine_options(decode)

    table = commands.add_parser("table", help="print the tables of a file that bench run --json wrote")
    table.set_defaults(run=_table)
    table.add_argument("file", type=os.path.expanduser, help="a file written by bench run --json")
    table.add_argument("--main-only", action="store_true", help="leave out the tables with all figures")


def with_default_command(argv: Sequence[str]) -> list[str]:
    """`bench` alone, or followed by options, means `bench run`."""
    if list(argv[:1]) == ["bench"] and (len(argv) == 1 or (argv[1][:1] == "-" and argv[1] not in ("-h", "--help"))):
        return ["bench", "run", *argv[1:]]
    return list(argv)


def _run(args: argparse.Namespace) -> None:
    from nanoinfer.bench.engines import parse_engine
    from nanoinfer.bench.machine import DTYPES, describe_machine
    from nanoinfer.bench.markdown import fitted
    from nanoinfer.bench.report import format_results
    from nanoinfer.bench.session import Settings, measure_model, new_results
    from nanoinfer.bench.workloads import WORKLOADS
    from nanoinfer.model.loader import resolve_model_path

    for name, values, allowed in (
        ("--workloads", args.workloads or [], list(WORKLOADS)),
        ("--dtype", args.dtype or [], list(DTYPES)),
    ):
        for value in values:
            if value not in allowed:
                raise ValueError(f"{name} {value}: must be one of {', '.join(allowed)}")
    threads = describe_machine()["cores"] if args.threads is None else args.threads
    for name, number, least in (("--rounds", args.rounds, 0 if args.profile else 1), ("--threads", threads, 1)):
        if number < least:
            raise ValueError(f"{name} {number}: must be at least {least}")
    for name, number in (("--gap", args.gap), ("--timeout", args.timeout)):
        if number is not None and number <= 0:
            raise ValueError(f"{name} {number}: must be above 0")
    engines = [parse_engine(text) for text in ("nanoinfer", *args.compare)]
    names = [engine.name for engine in engines]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"--compare {twice[0]}: given twice (nanoinfer itself is always measured)")
    for name in args.once:
        if name not in names:
            raise ValueError(f"--once {name}: must be one of {', '.join(names)}")
    settings = Settings(
        workloads=[WORKLOADS[name] for name in args.workloads or WORKLOADS],
        engines=engines,
        rounds=args.rounds,
        once=args.once,
        threads=threads,
        seed=args.seed,
        gap=args.gap,
        timeout=args.timeout,
    )
    paths = [resolve_model_path(model) for model in args.model]
    if args.json:
        Path(args.json).touch()  # a file that cannot be written fails here, before the measurement
    results = new_results(settings)
    for path in paths:
        for dtype in args.dtype or [None]:
            model = measure_model(path, dtype, settings)
            if args.profile:
                model["profile"] = _profile(model, path, settings)
            results["models"].append(model)
            _write(args.json, results)  # keeps these results if the next model fails
    print(fitted(format_results(results), room()))


def _profile(model: Mapping[str, Any], path: Path, settings: "Settings") -> dict[str, Any]:
    """Run the workloads again under the profiler, once for each of nanoinfer's settings: engine → workload → kinds of
    step."""
    from nanoinfer.bench.profiler import WARM_UP, profile_model
    from nanoinfer.bench.workloads import make_job, warm_up

    context_len, vocab_size = model["context_len"], model["vocab_size"]
    jobs = {WARM_UP: [warm_up(context_len, vocab_size)]}
    for workload in settings.workloads:
        seed = settings.seed + settings.rounds  # prompts that no round has used
        jobs[workload.name] = [make_job(workload, seed, context_len, vocab_size, model["gap_s"])]
    return {
        engine.name: profile_model(str(path), model["dtype"], settings.threads, jobs, **engine.options)
        for engine in settings.engines
        if engine.is_ours
    }


def _decode(args: argparse.Namespace) -> None:
    from nanoinfer import LLM
    from nanoinfer.bench.decode import as_json, bench_decode, format_decode

    if args.json:
        Path(args.json).touch()
    options = {k: v for k, v in vars(args).items() if k not in DECODE_OPTIONS}
    results = bench_decode(LLM(args.model, **options), args.requests, args.new_tokens, args.rounds)
    print(format_decode(results, room()))
    _write(args.json, as_json(results))


DECODE_OPTIONS = ("command", "what", "run", "model", "requests", "new_tokens", "rounds", "json")


def _table(args: argparse.Namespace) -> None:
    from nanoinfer.bench.markdown import fitted
    from nanoinfer.bench.report import format_results
    from nanoinfer.bench.session import FORMAT

    try:
        results = json.loads(Path(args.file).read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{args.file}: this is not JSON: {error}") from error
    if not isinstance(results, dict) or results.get("format") != FORMAT:
        raise ValueError(f"{args.file}: not written by bench run --json (format {FORMAT})")
    print(fitted(format_results(results, details=not args.main_only), room()))


def _write(file: str | None, results: Mapping[str, Any] | list[Any]) -> None:
    if file:
        Path(file).write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
