"""`python -m nanoinfer bench run`: its options, and what it does with them."""

import argparse
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoinfer.terminal import room

if TYPE_CHECKING:
    from nanoinfer.bench.settings import Settings

# For help without torch. Those of the second row are measured only if they are named, or with --busy.
WORKLOAD_NAMES = (
    *("offline", "shared", "shared-cached", "single", "prefill", "staggered"),
    *("single-busy", "staggered-busy"),
)


def add_run(run: argparse.ArgumentParser) -> None:
    """Add the options of `bench run`."""
    run.set_defaults(run=_run)
    run.add_argument(
        "--model",
        nargs="+",
        default=["story"],
        help="bundled name, checkpoint directories or Hub names (default: story)",
    )
    run.add_argument("--dtype", nargs="+", metavar="DTYPE", help="float32, bfloat16 (default: as in each checkpoint)")
    run.add_argument(
        "--workloads",
        nargs="+",
        metavar="NAME",
        help=f"any of {', '.join(WORKLOAD_NAMES)} (default: all, those that end in -busy only with --busy)",
    )
    run.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="number of rounds; every figure is their median (default: 3)",
    )
    run.add_argument(
        "--device", default="cpu", help="where nanoinfer and transformers compute: cpu, cuda, npu (default: cpu)"
    )
    run.add_argument("--threads", type=int, help="threads per engine (default: the number of cores)")
    run.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="NAME[:option=value,...][=PYTHON]",
        help="another engine: transformers, vllm, openvino or llamacpp, run with PYTHON if given; or nanoinfer with other "
        "options (nanoinfer:quantization=int8); may be given several times",
    )
    run.add_argument(
        "--once", action="append", default=[], metavar="NAME", help="run this engine in the first round only"
    )
    run.add_argument(
        "--busy",
        type=int,
        metavar="N",
        help="also measure single and staggered while N other processes keep the cores busy (for workloads that end in "
        "-busy, default: the number of cores)",
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
    run.add_argument(
        "--json", type=os.path.expanduser, metavar="FILE", help="also write all runs to FILE, after every workload"
    )
    run.add_argument(
        "--resume",
        action="store_true",
        help="continue the run that wrote the file of --json, and do not repeat what it has measured",
    )


def _run(args: argparse.Namespace) -> None:
    from nanoinfer.bench.machine import Checkpoint
    from nanoinfer.bench.markdown import fitted
    from nanoinfer.bench.report import format_results
    from nanoinfer.bench.session import measure_model
    from nanoinfer.bench.settings import find_model, new_results, put_model, resumed_results, write_results
    from nanoinfer.model.loader import resolve_model_path

    settings = _settings(args)
    paths = [resolve_model_path(model) for model in args.model]
    if args.resume and not args.json:
        raise ValueError("--resume: needs --json FILE, the results to continue")
    results = resumed_results(args.json, settings) if args.resume else new_results(settings)
    if args.json:
        Path(args.json).touch()  # a file that cannot be written fails here, before the measurement

    def keep(model: dict[str, Any]) -> None:
        put_model(results, model)
        if args.json:
            write_results(args.json, results)

    for path in paths:
        checkpoint = Checkpoint.read(path)
        for dtype in args.dtype or [checkpoint.dtype]:
            earlier = find_model(results, checkpoint.name, dtype) if args.resume else None
            model = measure_model(path, dtype, settings, earlier, keep)
            keep(model)
    print(fitted(format_results(results), room()))


def _settings(args: argparse.Namespace) -> "Settings":
    """The settings that the options describe. ValueError naming the option that is wrong."""
    from nanoinfer.bench.engines import parse_engine
    from nanoinfer.bench.machine import DTYPES, describe_machine
    from nanoinfer.bench.settings import Settings
    from nanoinfer.bench.workloads import BUSY, WORKLOADS

    for name, values, allowed in (
        ("--workloads", args.workloads or [], list(WORKLOADS)),
        ("--dtype", args.dtype or [], list(DTYPES)),
    ):
        for value in values:
            if value not in allowed:
                raise ValueError(f"{name} {value}: must be one of {', '.join(allowed)}")
    cores = describe_machine()["cores"]
    threads = cores if args.threads is None else args.threads
    for name, number, least in (("--rounds", args.rounds, 1), ("--threads", threads, 1)):
        if number < least:
            raise ValueError(f"{name} {number}: must be at least {least}")
    if args.busy is not None and not 1 <= args.busy <= 100:
        raise ValueError(f"--busy {args.busy}: must be in 1..100")
    for name, number in (("--gap", args.gap), ("--timeout", args.timeout)):
        if number is not None and not 0 < number < math.inf:
            raise ValueError(f"{name} {number}: must be above 0 and finite")
    engines = [parse_engine(text) for text in ("nanoinfer", *args.compare)]
    if args.device != "cpu":
        engines = [engine.on(args.device) for engine in engines]
    names = [engine.name for engine in engines]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"--compare {twice[0]}: given twice (nanoinfer itself is always measured)")
    for name in args.once:
        if name not in names:
            raise ValueError(f"--once {name}: must be one of {', '.join(names)}")
    workloads = list(dict.fromkeys(args.workloads or (name for name in WORKLOADS if not name.endswith(BUSY))))
    if args.busy:
        more = [name + BUSY for name in workloads if name + BUSY in WORKLOADS]
        workloads += [name for name in more if name not in workloads]
    wants_busy = any(WORKLOADS[name].busy for name in workloads)
    if args.busy and not wants_busy:
        raise ValueError(f"--busy {args.busy}: there is no busy form of {', '.join(workloads)}")
    return Settings(
        workloads=[WORKLOADS[name] for name in workloads],
        engines=engines,
        rounds=args.rounds,
        once=args.once,
        threads=threads,
        seed=args.seed,
        gap=args.gap,
        timeout=args.timeout,
        busy=(args.busy or cores) if wants_busy else 0,
    )
