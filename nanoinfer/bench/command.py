"""`python -m nanoinfer bench`: its options and its commands."""

import argparse
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoinfer.bench.texts import MAKERS, text_workload
from nanoinfer.bench.workloads import WORKLOADS, decode_workload

if TYPE_CHECKING:
    from nanoinfer.bench.session import Settings

SETUPS = ("threads", "sleep")  # of bench.cluster, which loads torch: help does without
POLICY_NAMES = ("round-robin", "least-loaded", "prefix-hash", "prefix")


def _number(default: Any, help: str) -> dict[str, Any]:
    """An option whose type follows from its default, which may be a list of several."""
    first, shown = (default[0], " ".join(map(str, default))) if isinstance(default, list) else (default, default)
    several = {"nargs": "+", "metavar": "N"} if isinstance(default, list) else {}
    return {"type": type(first), "default": default, "help": f"{help} (default: {shown})", **several}


FILE: dict[str, Any] = {"type": os.path.expanduser, "metavar": "FILE"}
OPTIONS: dict[str, dict[str, Any]] = {
    "file": {"nargs": "+", "type": os.path.expanduser, "help": "a file that bench run --json wrote"},
    "--model": {"default": "story", "help": "bundled name, checkpoint directory or Hub name (default: story)"},
    "--workloads": {
        "nargs": "+",
        "default": [*WORKLOADS],
        "metavar": "NAME",
        "help": f"any of {', '.join(WORKLOADS)} (default: these); or of {', '.join(('decode', *MAKERS))}, with so many "
        "requests at a time: copying@4",
    },
    "--dtype": {"choices": ["float32", "bfloat16"], "help": "default: the checkpoint's"},
    "--device": {"default": "cpu", "help": "where nanoinfer and transformers compute (default: cpu)"},
    "--threads": {"type": int, "help": "threads per engine (default: the number of cores; for serve: 1)"},
    "--compare": {
        "nargs": "+",
        "action": "extend",
        "default": [],
        "metavar": "NAME[:option=value,...][=PROGRAM]",
        "help": "another engine, run with the Python PROGRAM if given: transformers, vllm, openvino, llamacpp or a file "
        "PEER.py; or nanoinfer with other options (nanoinfer:quantization=int8); for serve: vllm, llama-server=BINARY, "
        "SERVER.py, nanoinfer",
    },
    "--json": {**FILE, "help": "also write all runs to FILE, after each"},
    "--resume": {"action": "store_true", "help": "continue the run that wrote the file of --json"},
    "--text": {**FILE, "help": "also score the documents of this file, one JSON object a line"},
    "--setup": {"choices": SETUPS, "action": "append", "help": "only this one; may be given again"},
    "--policy": {"choices": POLICY_NAMES, "action": "append", "help": "only this one; may be given again"},
    "--rounds": _number(3, "number of rounds; figures are medians"),
    "--seed": _number(0, "seed of the requests"),
    "--timeout": _number(600.0, "seconds until an engine that does not answer has failed"),
    "--concurrency": _number([1, 8, 32, 128], "clients in closed loops"),
    "--rates": _number(
        [0.5, 0.8, 0.95, 1.2], "rates of open loops, as shares of what nanoinfer served in a closed loop"
    ),
    "--seconds": {"type": float, "default": 5.0, "help": "for how long requests begin (default: 5; for cluster: 12)"},
    "--ttft-ms": _number(500.0, "milliseconds to the first token that a request must meet to count for goodput"),
    "--tpot-ms": _number(100.0, "milliseconds per token after it, likewise"),
    "--new-tokens": _number(32, "tokens of an answer"),
    "--tokens": _number(20_000, "tokens of each kind of text"),
    "--ranks": _number([8, 64], "ranks of adapters"),
    "--adapters": _number([1, 4, 16], "numbers of distinct adapters in a batch of 16 requests"),
    "--conversations": _number([4, 16, 64], "how many chats there are, over a pool for 4"),
    "--first-tokens": _number(256, "tokens with which a chat begins"),
}
KEPT = "--json --resume"
USUAL = "--rounds --seed --timeout"


def add_commands(bench: argparse.ArgumentParser) -> None:
    """`bench run`, `bench serve` and so on; the first line of their functions is their help."""
    commands = bench.add_subparsers(
        dest="what", required=True, metavar="what", parser_class=type(bench), help="default: run"
    )
    for run, options in COMMANDS.items():
        parser = commands.add_parser(run.__name__.strip("_"), help=run.__doc__)
        for option in options.split():
            parser.add_argument(option, **OPTIONS[option])
        parser.set_defaults(run=run)
    commands.choices["run"].add_argument("--model", nargs="+", default=["story"], help="one or several; or GGUF files")
    commands.choices["serve"].set_defaults(threads=1)
    commands.choices["cluster"].set_defaults(seconds=12.0)


def with_default_command(argv: Sequence[str]) -> list[str]:
    """`bench` alone, or followed by options, means `bench run`."""
    if list(argv[:1]) == ["bench"] and (len(argv) == 1 or (argv[1][:1] == "-" and argv[1] not in ("-h", "--help"))):
        return ["bench", "run", *argv[1:]]
    return list(argv)


def _path(args: argparse.Namespace) -> Path:
    from nanoinfer.model.loader import resolve_model_path

    if (path := resolve_model_path(args.model)).is_file():
        raise ValueError(f"--model {args.model}: must be a checkpoint folder here; bench run takes a GGUF file, too")
    return path


def _settings(args: argparse.Namespace, engines: Sequence[Any]) -> "Settings":
    """The settings that the options describe. ValueError naming an option that is wrong: all numbers must be positive."""
    from nanoinfer.bench.machine import describe_machine
    from nanoinfer.bench.session import Settings

    for name, given in vars(args).items():
        for number in given if isinstance(given, list) else [given]:
            if isinstance(number, int | float) and name != "seed" and not isinstance(number, bool) and not number > 0:
                raise ValueError(f"--{name.replace('_', '-')} {number:g}: must be above 0")
    threads = getattr(args, "threads", None) or describe_machine()["cores"]
    return Settings(engines, getattr(args, "rounds", 1), threads, args.seed, args.timeout)


def _begun(args: argparse.Namespace, fresh: dict[str, Any]) -> tuple[dict[str, Any], Callable[[Any], None]]:
    """The results of --resume, or `fresh` ones, and what writes them to the file of --json."""
    from nanoinfer.bench.results import continued, keeper

    if args.resume and not args.json:
        raise ValueError("--resume: needs --json FILE, the results to continue")
    return continued(args.json, fresh) if args.resume else fresh, keeper(args.json)


def _run(args: argparse.Namespace) -> None:
    """run all workloads on nanoinfer and the engines to compare it with"""
    from nanoinfer.bench.engines import parse_all, parse_engine
    from nanoinfer.bench.machine import Checkpoint
    from nanoinfer.bench.report import format_results
    from nanoinfer.bench.results import RUN_FORMAT, new_results
    from nanoinfer.bench.session import measure_model
    from nanoinfer.model.loader import resolve_model_path

    workloads = []
    for name in dict.fromkeys(args.workloads):
        workload = WORKLOADS.get(name) or decode_workload(name) or text_workload(name)
        if workload is None:
            names = ", ".join((*WORKLOADS, *(f"{each}@N" for each in ("decode", *MAKERS))))
            raise ValueError(f"--workloads {name}: must be one of {names}")
        workloads.append(workload)
    engines = parse_all(args.compare, parse_engine)
    if args.device != "cpu":
        engines = [each.with_options(device=args.device) for each in engines]
    settings = _settings(args, engines)
    checkpoints = [Checkpoint.read(resolve_model_path(model)) for model in args.model]
    fresh = new_results(RUN_FORMAT, {"workloads": [str(each) for each in workloads], **settings.as_dict()}, models=[])
    results, keep = _begun(args, fresh)
    for checkpoint in checkpoints:
        dtype, models = args.dtype or checkpoint.dtype, results["models"]
        earlier = next((each for each in models if (each["name"], each["dtype"]) == (checkpoint.name, dtype)), None)
        others = [each for each in models if each is not earlier]

        def keep_model(model: dict[str, Any], others: Sequence[dict[str, Any]] = others) -> None:
            results["models"] = [*others, model]
            keep(results)

        keep_model(measure_model(Path(checkpoint.path), dtype, workloads, settings, earlier, keep_model))
    print(format_results(results))


def _table(args: argparse.Namespace) -> None:
    """print the tables of files that bench run --json wrote"""
    from nanoinfer.bench.report import format_results
    from nanoinfer.bench.results import RUN_FORMAT, read_results

    print("\n\n".join(format_results(read_results(file, RUN_FORMAT)) for file in args.file))


def _serve(args: argparse.Namespace) -> None:
    """put servers under load, and see them from their clients: time to the first token, throughput"""
    from nanoinfer.bench.engines import parse_all
    from nanoinfer.bench.load import Lengths
    from nanoinfer.bench.serve import Goodput, Loads, format_serve, measure_serve, start_results
    from nanoinfer.bench.servers import parse_server

    settings, path = _settings(args, parse_all(args.compare, parse_server)), _path(args)
    goodput = Goodput(args.ttft_ms, args.tpot_ms)
    loads = Loads(args.concurrency, args.rates, args.seconds, Lengths(new_tokens=args.new_tokens), goodput)
    results, keep = _begun(args, start_results(path, loads, settings))
    print(format_serve(measure_serve(path, loads, settings, results, keep)))


def _quality(args: argparse.Namespace) -> None:
    """score text with quantized weights and K/V, here and in other engines"""
    from nanoinfer.bench.engines import parse_engine
    from nanoinfer.bench.machine import Checkpoint
    from nanoinfer.bench.quality import OURS, SAMPLED, format_quality, measure_quality, sampled_texts, written_texts

    settings, path = _settings(args, [parse_engine(name) for name in (*OURS, *args.compare)]), _path(args)
    dtype = Checkpoint.read(path).dtype
    written = {Path(args.text).name: written_texts(path, Path(args.text), args.tokens)} if args.text else {}
    texts = {SAMPLED: sampled_texts(path, args.tokens, args.seed), **written}
    print(format_quality(*measure_quality(path, dtype, texts, settings)))


def _adapters(args: argparse.Namespace) -> None:
    """serve a batch with the base model and with one or many LoRA adapters: what they cost"""
    from nanoinfer.bench.adapters import format_adapters, measure_adapters
    from nanoinfer.bench.engines import parse_all, parse_engine
    from nanoinfer.bench.results import keeper

    settings = _settings(args, parse_all(args.compare, parse_engine))
    results = measure_adapters(_path(args), args.dtype, settings, args.ranks, args.adapters, keeper(args.json))
    print(format_adapters(results))


def _tiers(args: argparse.Namespace) -> None:
    """chats of several turns over a small pool, and after a restart: what host memory and files bring"""
    from nanoinfer.bench.results import keeper
    from nanoinfer.bench.tiers import Chats, format_tiers, measure_tiers, tier_engines

    settings = _settings(args, tier_engines(args.compare))
    chats = [Chats(count, first_tokens=args.first_tokens, new_tokens=args.new_tokens) for count in args.conversations]
    print(format_tiers(measure_tiers(_path(args), args.dtype, settings, chats, keeper(args.json))))


def _cluster(args: argparse.Namespace) -> None:
    """compare ways to route requests to replicas, on Ray Serve"""
    if find_spec("ray") is None:
        raise ValueError("bench cluster: needs Ray: pip install nanoinfer[cluster]")
    from nanoinfer.bench.cluster import format_cluster, measure_cluster, setups, start_results

    settings, known = _settings(args, []), setups(args.model, args.seconds)
    chosen, policies = [known[name] for name in args.setup or SETUPS], args.policy or POLICY_NAMES
    results, keep = _begun(args, start_results(chosen, policies, settings))
    print(format_cluster(measure_cluster(chosen, policies, settings, results, keep)))


COMMANDS: dict[Callable[[argparse.Namespace], None], str] = {
    _run: f"--workloads --dtype --device --resume --threads --compare --json {USUAL}",
    _table: "file",
    _serve: f"--model --concurrency --rates --seconds --ttft-ms --tpot-ms --new-tokens --threads --compare {KEPT} {USUAL}",
    _quality: "--model --tokens --text --threads --compare --seed --timeout",
    _adapters: f"--model --ranks --adapters --dtype --threads --compare --json {USUAL}",
    _tiers: f"--model --conversations --first-tokens --new-tokens --dtype --threads --compare --json {USUAL}",
    _cluster: f"--model --seconds --setup --policy --json --resume {USUAL}",
}
