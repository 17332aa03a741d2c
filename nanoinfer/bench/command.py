"""`python -m nanoinfer bench`: its options and its commands."""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nanoinfer.bench.cluster.command import add_cluster
from nanoinfer.bench.drafts_command import add_drafts
from nanoinfer.bench.run_command import add_run
from nanoinfer.bench.serve.command import add_serve
from nanoinfer.bench.tiers_command import add_tiers
from nanoinfer.terminal import room


def add_commands(bench: argparse.ArgumentParser, engine_options: Callable[[argparse.ArgumentParser], None]) -> None:
    """`bench run`, `bench decode` and so on; `engine_options` adds `--model` and LLM's options."""
    commands = bench.add_subparsers(
        dest="what", required=True, metavar="what", parser_class=type(bench), help="default: run"
    )
    add_run(commands.add_parser("run", help="run all workloads on nanoinfer and the engines to compare it with"))

    decode = commands.add_parser(
        "decode", help="compare decoding one session at a time, as a padded batch, and from pools"
    )
    decode.set_defaults(run=_decode)
    decode.add_argument("--requests", type=int, default=16, help="requests decoded together (default: 16)")
    decode.add_argument("--new-tokens", type=int, default=64, help="tokens per request (default: 64)")
    decode.add_argument("--rounds", type=int, default=5, help="number of rounds; times are their medians (default: 5)")
    decode.add_argument("--json", type=os.path.expanduser, metavar="FILE", help="also write the figures to FILE")
    engine_options(decode)

    add_cluster(commands.add_parser("cluster", help="compare ways to route requests to replicas, on Ray Serve"))

    quality = commands.add_parser(
        "quality", help="score text with quantized weights and K/V, here and in other engines: what quantization costs"
    )
    quality.set_defaults(run=_quality)
    quality.add_argument("--model", default="story", help="bundled name, checkpoint directory or Hub name")
    quality.add_argument("--tokens", type=int, default=20_000, help="tokens of each kind of text (default: 20000)")
    quality.add_argument(
        "--text",
        type=os.path.expanduser,
        metavar="FILE",
        help="also score the documents of this file, one JSON object per line (data/build/valid.jsonl)",
    )
    quality.add_argument("--seed", type=int, default=0, help="seed of the sampled text (default: 0)")
    quality.add_argument(
        "--compare", action="append", default=[], metavar="NAME[:option=value,...][=PYTHON]", help="as in bench run"
    )
    quality.add_argument("--threads", type=int, help="threads (default: the number of cores)")

    startup = commands.add_parser("startup", help="time the way from starting Python to the first token")
    startup.set_defaults(run=_startup)
    startup.add_argument("--model", default="story", help="bundled name, checkpoint directory or Hub name")
    startup.add_argument("--rounds", type=int, default=5, help="number of rounds; times are their medians (default: 5)")
    startup.add_argument("--threads", type=int, help="threads per engine (default: the number of cores)")
    startup.add_argument(
        "--compare", action="append", default=[], metavar="NAME[=PYTHON]", help="another engine: transformers or vllm"
    )
    startup.add_argument(
        "--timeout", type=float, default=600, help="seconds until a start counts as failed (default: 600)"
    )
    startup.add_argument("--json", type=os.path.expanduser, metavar="FILE", help="also write all times to FILE")

    adapters = commands.add_parser(
        "adapters", help="serve a batch with the base model and with one or many LoRA adapters: what they cost"
    )
    adapters.set_defaults(run=_adapters)
    adapters.add_argument("--model", default="story", help="bundled name, checkpoint directory or Hub name")
    adapters.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: the checkpoint's")
    adapters.add_argument("--ranks", type=int, nargs="+", default=[8, 64], help="ranks of adapters (default: 8 64)")
    adapters.add_argument(
        "--adapters",
        type=int,
        nargs="+",
        default=[1, 4, 16],
        metavar="NUMBER",
        help="numbers of distinct adapters in a batch of 16 requests (default: 1 4 16)",
    )
    adapters.add_argument("--rounds", type=int, default=5, help="rounds per rank; figures are medians (default: 5)")
    adapters.add_argument("--threads", type=int, help="threads per engine (default: the number of cores)")
    adapters.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="NAME[:option=value,...][=PYTHON]",
        help="another engine: peft or vllm; or nanoinfer with other options",
    )
    adapters.add_argument("--seed", type=int, default=0, help="seed of token ids and adapters (default: 0)")
    adapters.add_argument(
        "--timeout", type=float, default=600, help="seconds until an engine counts as failed (default: 600)"
    )
    adapters.add_argument("--json", type=os.path.expanduser, metavar="FILE", help="also write all runs to FILE")

    parallel = commands.add_parser(
        "parallel", help="serve the same requests from one process, and from several that split the model"
    )
    parallel.set_defaults(run=_parallel)
    parallel.add_argument("--model", default="story", help="bundled name, checkpoint directory or Hub name")
    parallel.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: the checkpoint's")
    parallel.add_argument("--quantization", choices=["int8", "int4"], help="default: as in the checkpoint")
    parallel.add_argument("--requests", type=int, default=4, help="requests decoded together (default: 4)")
    parallel.add_argument("--prompt-tokens", type=int, default=256, help="tokens per prompt (default: 256)")
    parallel.add_argument("--new-tokens", type=int, default=32, help="tokens per request (default: 32)")
    parallel.add_argument("--rounds", type=int, default=5, help="number of rounds; times are medians (default: 5)")
    parallel.add_argument("--json", type=os.path.expanduser, metavar="FILE", help="also write the figures to FILE")

    add_drafts(
        commands.add_parser("drafts", help="serve the same requests with and without drafts: what each drafter brings")
    )

    add_serve(
        commands.add_parser(
            "serve", help="put servers under load, and see them from their clients: time to the first token, throughput"
        )
    )

    add_tiers(
        commands.add_parser(
            "tiers",
            help="chats of several turns over a small pool, and after a restart: what host memory and files bring",
        )
    )

    table = commands.add_parser("table", help="print the tables of files that bench run --json wrote")
    table.set_defaults(run=_table)
    table.add_argument("file", nargs="+", type=os.path.expanduser, help="a file written by bench run --json")
    table.add_argument("--main-only", action="store_true", help="leave out the tables with all figures")


def with_default_command(argv: Sequence[str]) -> list[str]:
    """`bench` alone, or followed by options, means `bench run`."""
    if list(argv[:1]) == ["bench"] and (len(argv) == 1 or (argv[1][:1] == "-" and argv[1] not in ("-h", "--help"))):
        return ["bench", "run", *argv[1:]]
    return list(argv)


def _decode(args: argparse.Namespace) -> None:
    from nanoinfer import LLM
    from nanoinfer.bench.decode import as_json, bench_decode, format_decode
    from nanoinfer.bench.settings import write_results

    if args.json:
        Path(args.json).touch()
    options = {k: v for k, v in vars(args).items() if k not in DECODE_OPTIONS}
    results = bench_decode(LLM(args.model, **options), args.requests, args.new_tokens, args.rounds)
    print(format_decode(results, room()))
    if args.json:
        write_results(args.json, as_json(results))


DECODE_OPTIONS = ("command", "what", "run", "model", "requests", "new_tokens", "rounds", "json")


def _quality(args: argparse.Namespace) -> None:
    from nanoinfer.bench.machine import Checkpoint, describe_machine
    from nanoinfer.bench.markdown import fitted
    from nanoinfer.bench.quality import (
        SAMPLED,
        format_quality,
        measure_quality,
        quality_engines,
        sampled_texts,
        written_texts,
    )
    from nanoinfer.model.loader import resolve_model_path

    if args.tokens < 2:
        raise ValueError(f"--tokens {args.tokens}: must be at least 2")
    path, engines = resolve_model_path(args.model), quality_engines(args.compare)
    threads = describe_machine()["cores"] if args.threads is None else args.threads
    written = {Path(args.text).name: written_texts(path, Path(args.text), args.tokens)} if args.text else {}
    texts = {SAMPLED: sampled_texts(path, args.tokens, args.seed), **written}
    dtype = Checkpoint.read(path).dtype
    print(fitted(format_quality(*measure_quality(path, dtype, texts, engines, threads)), room()))


def _startup(args: argparse.Namespace) -> None:
    from dataclasses import asdict

    from nanoinfer.bench.engines import parse_engine
    from nanoinfer.bench.machine import describe_machine
    from nanoinfer.bench.markdown import fitted
    from nanoinfer.bench.settings import write_results
    from nanoinfer.bench.startup import format_startup, measure_startup
    from nanoinfer.model.loader import resolve_model_path

    path, engines = resolve_model_path(args.model), [parse_engine(text) for text in ("nanoinfer", *args.compare)]
    threads = describe_machine()["cores"] if args.threads is None else args.threads
    if args.json:
        Path(args.json).touch()
    starts = measure_startup(path, engines, threads, args.rounds, args.timeout)
    print(fitted(format_startup(starts), room()))
    if args.json:
        write_results(args.json, [asdict(start) for start in starts])


def _adapters(args: argparse.Namespace) -> None:
    from nanoinfer.bench.adapters import WORKLOAD, adapter_engines, measure_adapters
    from nanoinfer.bench.adapters_report import format_adapters
    from nanoinfer.bench.machine import describe_machine
    from nanoinfer.bench.markdown import fitted
    from nanoinfer.bench.settings import Settings, write_results
    from nanoinfer.model.loader import resolve_model_path

    path, engines = resolve_model_path(args.model), adapter_engines(args.compare)
    threads = describe_machine()["cores"] if args.threads is None else args.threads
    settings = Settings([WORKLOAD], engines, args.rounds, threads=threads, seed=args.seed, timeout=args.timeout)
    if args.json:
        Path(args.json).touch()

    def keep(results: dict[str, Any]) -> None:
        if args.json:
            write_results(args.json, results)

    print(
        fitted(format_adapters(measure_adapters(path, args.dtype, settings, args.ranks, args.adapters, keep)), room())
    )


def _parallel(args: argparse.Namespace) -> None:
    from nanoinfer.bench.parallel import as_json, bench_parallel, format_parallel
    from nanoinfer.bench.parallel_on_paper import format_paper
    from nanoinfer.bench.settings import write_results

    if args.json:
        Path(args.json).touch()
    sizes = args.requests, args.prompt_tokens, args.new_tokens, args.rounds
    results = bench_parallel(args.model, *sizes, dtype=args.dtype, quantization=args.quantization)
    print(f"{format_parallel(results.measured, room())}\n\n{format_paper(results.on_paper, room())}")
    if args.json:
        write_results(args.json, as_json(results))


def _table(args: argparse.Namespace) -> None:
    from nanoinfer.bench.markdown import fitted
    from nanoinfer.bench.report import format_results
    from nanoinfer.bench.settings import read_results

    several = [read_results(file) for file in args.file]
    print("\n\n".join(fitted(format_results(results, details=not args.main_only), room()) for results in several))
