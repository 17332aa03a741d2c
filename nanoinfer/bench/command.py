"""`python -m nanoinfer bench`: its options and its commands."""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoinfer.terminal import room

if TYPE_CHECKING:
    from nanoinfer.bench.session import Settings

# For help without torch.
WORKLOAD_NAMES = ("offline", "shared", "shared-cached", "single", "prefill", "staggered")
TEXT_NAMES = ("copying", "again", "json", "stories")
SETUPS = ("threads", "sleep")
POLICY_NAMES = ("round-robin", "least-loaded", "prefix-hash", "prefix")
WITHOUT_DEFAULT: dict[str, dict[str, Any]] = {  # options of several commands
    "--dtype": {"choices": ["float32", "bfloat16"], "help": "default: the checkpoint's"},
    "--threads": {"type": int, "help": "threads per engine (default: the number of cores)"},
    "--compare": {
        "nargs": "+",
        "action": "extend",
        "default": [],
        "metavar": "NAME[:option=value,...][=PROGRAM]",
        "help": "another engine, run with the Python PROGRAM if given: transformers, vllm, openvino, llamacpp or a file "
        "PEER.py; or nanoinfer with other options (nanoinfer:quantization=int8); for serve: vllm, llama-server=BINARY, "
        "SERVER.py, nanoinfer",
    },
    "--json": {"type": os.path.expanduser, "metavar": "FILE", "help": "also write all runs to FILE, after each"},
    "--resume": {"action": "store_true", "help": "continue the run that wrote the file of --json"},
}
MODEL = {"--model": ("story", "bundled name, checkpoint directory or Hub name")}
SEED = {"--seed": (0, "seed of the requests")}
WAIT = {"--timeout": (600.0, "seconds until an engine that does not answer has failed")}
NEW_TOKENS = {"--new-tokens": (32, "tokens of an answer")}
ROUNDS = {"--rounds": (3, "number of rounds; figures are medians")}
USUAL = {**ROUNDS, **SEED, **WAIT}
COMPARING = "--threads --compare --json"


def add_commands(bench: argparse.ArgumentParser, engine_options: Callable[[argparse.ArgumentParser], None]) -> None:
    """`bench run`, `bench decode` and so on; `engine_options` adds `--model` and LLM's options."""
    commands = bench.add_subparsers(
        dest="what", required=True, metavar="what", parser_class=type(bench), help="default: run"
    )

    def add(name: str, run: Any, help: str, shared: str = "", options: Mapping[str, tuple[Any, str]] = {}) -> Any:
        """A command with options of `WITHOUT_DEFAULT`, and others with their defaults, from which types follow."""
        parser = commands.add_parser(name, help=help)
        parser.set_defaults(run=run)
        for option in shared.split():
            parser.add_argument(option, **WITHOUT_DEFAULT[option])
        for option, (default, text) in options.items():
            several = isinstance(default, list)
            kind, shown = type(default[0] if several else default), " ".join(map(str, default)) if several else default
            more: dict[str, Any] = {"nargs": "+", "metavar": "NAME" if kind is str else "N"} if several else {}
            parser.add_argument(option, type=kind, default=default, help=f"{text} (default: {shown})", **more)
        return parser

    names = (
        f"any of {', '.join(WORKLOAD_NAMES)}; or of {', '.join(TEXT_NAMES)}, with so many requests at a time: copying@4"
    )
    run_options = {
        "--model": (["story"], "bundled names, checkpoint directories or Hub names"),
        "--workloads": ([*WORKLOAD_NAMES], names),
        "--device": ("cpu", "where nanoinfer and transformers compute"),
    }
    help = "run all workloads on nanoinfer and the engines to compare it with"
    add("run", _run, help, f"--dtype --resume {COMPARING}", {**run_options, **USUAL})

    table = add("table", _table, "print the tables of files that bench run --json wrote")
    table.add_argument("file", nargs="+", type=os.path.expanduser, help="a file written by bench run --json")

    loads = {
        "--concurrency": ([1, 8, 32, 128], "clients in closed loops"),
        "--rates": ([0.5, 0.8, 0.95, 1.2], "rates of open loops, as shares of what nanoinfer served in a closed loop"),
        "--seconds": (5.0, "for how long requests are begun in a run"),
        "--ttft-ms": (500.0, "milliseconds to the first token that a request must meet to count for goodput"),
        "--tpot-ms": (100.0, "milliseconds per token after it, likewise"),
        "--threads": (1, "threads per server; clients need a core, too"),
    }
    help = "put servers under load, and see them from their clients: time to the first token, throughput"
    add("serve", _serve, help, "--compare --json --resume", {**MODEL, **loads, **NEW_TOKENS, **USUAL})

    requests = {"--requests": (16, "requests decoded together"), "--new-tokens": (64, "tokens per request")}
    help = "compare decoding one session at a time, as a padded batch, and from pools"
    engine_options(add("decode", _decode, help, "--json", {**requests, **ROUNDS}))

    help = "score text with quantized weights and K/V, here and in other engines"
    tokens = {"--tokens": (20_000, "tokens of each kind of text")}
    quality = add("quality", _quality, help, "--threads --compare", {**MODEL, **tokens, **SEED, **WAIT})
    text = "also score the documents of this file, one JSON object per line (data/build/valid.jsonl)"
    quality.add_argument("--text", type=os.path.expanduser, metavar="FILE", help=text)

    help = "serve a batch with the base model and with one or many LoRA adapters: what they cost"
    counts = {
        "--ranks": ([8, 64], "ranks of adapters"),
        "--adapters": ([1, 4, 16], "numbers of distinct adapters in a batch of 16 requests"),
    }
    add("adapters", _adapters, help, f"--dtype {COMPARING}", {**MODEL, **counts, **USUAL})

    help = "chats of several turns over a small pool, and after a restart: what host memory and files bring"
    sizes = {
        "--conversations": ([4, 16, 64], "how many chats there are, over a pool for 4"),
        "--turns": (3, "turns of a chat, the last one after a restart"),
        "--first-tokens": (256, "tokens with which a chat begins"),
    }
    add("tiers", _tiers, help, f"--dtype {COMPARING}", {**MODEL, **sizes, **NEW_TOKENS, **USUAL})

    seconds = {"--seconds": (12.0, "seconds of each workload's arrivals")}
    help = "compare ways to route requests to replicas, on Ray Serve"
    cluster = add("cluster", _cluster, help, "--json --resume", {**MODEL, **seconds, **USUAL})
    cluster.add_argument("--setup", choices=SETUPS, action="append", help="only this one; may be given again")
    cluster.add_argument("--policy", choices=POLICY_NAMES, action="append", help="only this one; may be given again")


def with_default_command(argv: Sequence[str]) -> list[str]:
    """`bench` alone, or followed by options, means `bench run`."""
    if list(argv[:1]) == ["bench"] and (len(argv) == 1 or (argv[1][:1] == "-" and argv[1] not in ("-h", "--help"))):
        return ["bench", "run", *argv[1:]]
    return list(argv)


def _show(text: str) -> None:
    from nanoinfer.bench.tables import fitted

    print(fitted(text, room()))


def _path(args: argparse.Namespace) -> Path:
    from nanoinfer.model.loader import resolve_model_path

    return resolve_model_path(args.model)


def _settings(args: argparse.Namespace, engines: Sequence[Any] | None = None) -> "Settings":
    """The settings that the options describe. `engines`: instead of nanoinfer and those of --compare. ValueError naming an
    option that is wrong."""
    from nanoinfer.bench.engines import parse_engines
    from nanoinfer.bench.machine import describe_machine
    from nanoinfer.bench.session import Settings

    threads = getattr(args, "threads", None)
    threads = describe_machine()["cores"] if threads is None else threads
    rounds = getattr(args, "rounds", 1)
    for name in ("rounds", "threads", "tokens", "ranks", "adapters", "conversations"):
        given = getattr(args, name, None)
        for number in given if isinstance(given, list) else [] if given is None else [given]:
            if number < 1:
                raise ValueError(f"--{name} {number}: must be at least 1")
    chosen = parse_engines(args.compare) if engines is None else engines
    return Settings(chosen, rounds, threads, args.seed, args.timeout)


def _run(args: argparse.Namespace) -> None:
    from dataclasses import replace

    from nanoinfer.bench.machine import Checkpoint
    from nanoinfer.bench.report import format_results
    from nanoinfer.bench.results import RUN_FORMAT, new_results
    from nanoinfer.bench.session import measure_model
    from nanoinfer.bench.texts import text_workload
    from nanoinfer.bench.workloads import WORKLOADS
    from nanoinfer.model.loader import resolve_model_path

    workloads = []
    for name in dict.fromkeys(args.workloads):
        workload = WORKLOADS.get(name) or text_workload(name)
        if workload is None:
            names = ", ".join((*WORKLOADS, *(f"{each}@N" for each in TEXT_NAMES)))
            raise ValueError(f"--workloads {name}: must be one of {names}")
        workloads.append(workload)
    settings = _settings(args)
    if args.device != "cpu":
        settings = replace(settings, engines=[each.with_options(device=args.device) for each in settings.engines])
    paths = [resolve_model_path(model) for model in args.model]
    fresh = new_results(RUN_FORMAT, {"workloads": [str(each) for each in workloads], **settings.as_dict()}, models=[])
    results, keep = _begun(args, fresh)
    for path in paths:
        name, stored = Checkpoint.read(path).name, Checkpoint.read(path).dtype
        for dtype in args.dtype or [stored]:
            models = results["models"]
            earlier = next((each for each in models if (each["name"], each["dtype"]) == (name, dtype)), None)
            others = [each for each in models if each is not earlier]

            def keep_model(model: dict[str, Any], others: Sequence[dict[str, Any]] = others) -> None:
                results["models"] = [*others, model]
                keep(results)

            keep_model(measure_model(path, dtype, workloads, settings, earlier, keep_model))
    _show(format_results(results))


def _begun(args: argparse.Namespace, fresh: dict[str, Any]) -> tuple[dict[str, Any], Callable[[Any], None]]:
    """The results of --resume, or `fresh` ones, and what writes them to the file of --json."""
    from nanoinfer.bench.results import continued, keeper

    if args.resume and not args.json:
        raise ValueError("--resume: needs --json FILE, the results to continue")
    return continued(args.json, fresh) if args.resume else fresh, keeper(args.json)


def _table(args: argparse.Namespace) -> None:
    from nanoinfer.bench.report import format_results
    from nanoinfer.bench.results import read_results

    several = [read_results(file) for file in args.file]
    _show("\n\n".join(format_results(results) for results in several))


def _serve(args: argparse.Namespace) -> None:
    from nanoinfer.bench.processes import EngineFailure
    from nanoinfer.bench.serve.figures import Goodput
    from nanoinfer.bench.serve.report import format_serve
    from nanoinfer.bench.serve.servers import parse_servers
    from nanoinfer.bench.serve.session import Loads, measure_serve, start_results
    from nanoinfer.bench.serve.traffic import Lengths

    settings, path = _settings(args, parse_servers(args.compare)), _path(args)
    lengths, goodput = Lengths(new_tokens=args.new_tokens), Goodput(args.ttft_ms, args.tpot_ms)
    loads = Loads(args.concurrency, args.rates, args.seconds, lengths, goodput)
    results, keep = _begun(args, start_results(path, loads, settings))
    try:
        _show(format_serve(measure_serve(path, loads, settings, results, keep)))
    except EngineFailure as failure:
        raise ValueError(f"no server could be measured: {failure}") from failure


def _decode(args: argparse.Namespace) -> None:
    from dataclasses import asdict

    from nanoinfer import LLM
    from nanoinfer.bench.decode import bench_decode, format_decode
    from nanoinfer.bench.results import keeper

    keep = keeper(args.json)
    options = {name: value for name, value in vars(args).items() if name not in DECODE_OPTIONS}
    results = bench_decode(LLM(args.model, **options), args.requests, args.new_tokens, args.rounds)
    print(format_decode(results, room()))
    keep([asdict(result) for result in results])


DECODE_OPTIONS = ("command", "what", "run", "model", "requests", "new_tokens", "rounds", "json")


def _quality(args: argparse.Namespace) -> None:
    from nanoinfer.bench.engines import parse_engine
    from nanoinfer.bench.machine import Checkpoint
    from nanoinfer.bench.quality import (
        SAMPLED,
        format_quality,
        measure_quality,
        our_engines,
        sampled_texts,
        written_texts,
    )

    settings = _settings(args, [parse_engine(name) for name in (*our_engines(), *args.compare)])
    path = _path(args)
    written = {Path(args.text).name: written_texts(path, Path(args.text), args.tokens)} if args.text else {}
    texts = {SAMPLED: sampled_texts(path, args.tokens, args.seed), **written}
    _show(format_quality(*measure_quality(path, Checkpoint.read(path).dtype, texts, settings)))


def _adapters(args: argparse.Namespace) -> None:
    from nanoinfer.bench.adapters import format_adapters, measure_adapters
    from nanoinfer.bench.results import keeper

    settings = _settings(args)
    results = measure_adapters(_path(args), args.dtype, settings, args.ranks, args.adapters, keeper(args.json))
    _show(format_adapters(results))


def _tiers(args: argparse.Namespace) -> None:
    from nanoinfer.bench.results import keeper
    from nanoinfer.bench.tiers import Chats, format_tiers, measure_tiers, tier_engines

    settings = _settings(args, tier_engines(args.compare))
    for option, number, least in (("turns", args.turns, 2), ("new-tokens", args.new_tokens, 1)):
        if number < least:
            raise ValueError(f"--{option} {number}: must be at least {least}")
    sizes = {"turns": args.turns, "first_tokens": args.first_tokens, "new_tokens": args.new_tokens}
    chats = [Chats(count, **sizes) for count in args.conversations]
    _show(format_tiers(measure_tiers(_path(args), args.dtype, settings, chats, keeper(args.json))))


def _cluster(args: argparse.Namespace) -> None:
    if find_spec("ray") is None:
        raise ValueError("bench cluster: needs Ray: pip install nanoinfer[cluster]")
    from nanoinfer.bench.cluster.session import format_cluster, measure_cluster, setups, start_results

    if not args.seconds > 0:
        raise ValueError(f"--seconds {args.seconds}: must be above 0")
    settings, known = _settings(args, []), setups(args.model, args.seconds)
    chosen, policies = [known[name] for name in args.setup or SETUPS], args.policy or POLICY_NAMES
    results, keep = _begun(args, start_results(chosen, policies, settings))
    _show(format_cluster(measure_cluster(chosen, policies, settings, results, keep)))
