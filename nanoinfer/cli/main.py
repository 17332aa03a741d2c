"""The command line: demo, generate, chat, serve, bench, simulate, trace, info. An error prints one line on standard
error, and the exit code is 2."""

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, NoReturn

import nanoinfer
from nanoinfer.bench.command import add_commands as add_bench_commands
from nanoinfer.bench.command import with_default_command
from nanoinfer.cli.chat import add_arguments as add_chat_arguments
from nanoinfer.cli.generate import add_arguments as add_generate_arguments
from nanoinfer.cli.options import ENGINE_OPTIONS, HelpWithNames, add_options, llm_options, load
from nanoinfer.cli.ranks import run_other_rank
from nanoinfer.cli.serve import add_arguments as add_serve_arguments
from nanoinfer.cli.simulate import add_arguments as add_simulate_arguments
from nanoinfer.cli.trace import add_arguments as add_trace_arguments
from nanoinfer.terminal import one_line, room, side_by_side, styled


class OneLineErrorParser(argparse.ArgumentParser):
    """argparse without the usage text before an error. Each command reports its own unknown options."""

    def __init__(self, **settings: Any):
        super().__init__(**{"formatter_class": HelpWithNames, **settings})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Like argparse's, except that no unknown arguments are returned: an unknown option ends the program, before its
        value can be taken for another argument."""
        words = list(sys.argv[1:] if args is None else args)
        if self._subparsers is None:  # else the words belong to a command, whose parser gets here too
            for word in words[: words.index("--") if "--" in words else None]:
                self._check_option(word.partition("=")[0])
        known, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def _check_option(self, word: str) -> None:
        options = list(self._option_string_actions)
        known = word in options or (len(word) > len("--n") and any(option.startswith(word) for option in options))
        if not word.startswith("--") or " " in word or known:
            return  # not an option (a text may begin with dashes), or a known one, perhaps abbreviated to several letters
        from nanoinfer.requests.aliases import LLM_ALIASES, LLM_ELSEWHERE, SAMPLING_ALIASES, SAMPLING_ELSEWHERE

        name = word.removeprefix("--").replace("-", "_")
        other = (SAMPLING_ALIASES | LLM_ALIASES).get(name, name)
        ours = f"--{other if isinstance(other, str) else name}".replace("_", "-")
        close = [ours] if ours in options else get_close_matches(ours, options, 1, 0.75)
        advice = [f"did you mean {option}?" for option in close]
        if (elsewhere := (SAMPLING_ELSEWHERE | LLM_ELSEWHERE).get(name)) is not None:
            advice = [elsewhere.sentence]
        self.error("; ".join([f"unrecognized argument: {word}", *advice]))

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = OneLineErrorParser(
        prog="python -m nanoinfer", description="A small LLM inference engine with a radix cache."
    )
    parser.add_argument("--version", action="version", version=f"nanoinfer {nanoinfer.__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(dest="command", metavar="command", parser_class=OneLineErrorParser)

    demo = commands.add_parser(
        "demo",
        help="show requests that share a prefix: which tokens are cached or computed, and the time saved",
        description="Without arguments, demo serves five requests that begin with the same text, one after another, with "
        "and without the radix cache. It shows how many tokens were cached, the times to the first token, the tree and the "
        "texts.",
    )
    demo.add_argument(
        "what",
        nargs="?",
        choices=["adapters", "paged", "restart", "sessions"],
        help="adapters: three styles from one batch, and what they share; paged: block tables, slots and "
        "drafts, with forward_tensor and advance_step (see notebook 18); restart: a chat whose process ends, and a new one "
        "that continues it from files; sessions: the first engine of the notebooks",
    )
    demo.add_argument("--steps", type=int, help="for demo paged: decode steps (default: 8)")
    demo.add_argument("--block-size", type=int, help="for demo paged: slots per block (default: 4)")
    demo.set_defaults(run=_demo)
    add_options(demo, "engine", ENGINE_OPTIONS, but=("disable_radix_cache",))

    add_generate_arguments(commands.add_parser("generate", help="complete one or more prompts"))
    add_chat_arguments(commands.add_parser("chat", help="chat with the model; shows how much of each turn was cached"))
    add_serve_arguments(commands.add_parser("serve", help="serve a model over HTTP, with OpenAI's protocol"))

    bench = commands.add_parser("bench", help="measure workloads, and compare with other engines or settings")
    # bench decode reads what each pass was about from the engine, after each step.
    but = ("num_scheduler_steps", "tensor_parallel_size")
    add_bench_commands(bench, lambda parser: add_options(parser, "engine", ENGINE_OPTIONS, but=but))

    add_simulate_arguments(commands.add_parser("simulate", help="what a cluster of replicas would do, without one"))
    add_trace_arguments(
        commands.add_parser("trace", help="show what the engine does, step by step, as text or as a web page")
    )

    info = commands.add_parser("info", help="show a model's configuration and how much memory it takes to serve it")
    info.set_defaults(run=_info)
    add_options(info, "engine", ENGINE_OPTIONS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = build_parser()
    args = parser.parse_args(with_default_command(sys.argv[1:] if argv is None else argv))
    if args.run is None:  # no command
        parser.print_help()
        return 0
    try:
        if args.command == "serve":
            args.begin(args)
        import transformers  # takes a while, and Ctrl-C may come meanwhile

        transformers.utils.logging.set_verbosity_error()
        code = run_other_rank(args)
        code = args.run(args) if code is None else code
    except BrokenPipeError:  # the reader of standard output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        print(f"nanoinfer: error: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    return code or 0


def _demo(args: argparse.Namespace) -> int:
    options = {"num_steps": args.steps, "block_size": args.block_size}
    given = {name: value for name, value in options.items() if value is not None}
    if args.what == "paged":
        for option, field, number in (
            ("--steps", "num_steps", args.steps),
            ("--block-size", "page_size", args.block_size),
        ):
            if number is not None and number < 1:
                raise ValueError(f"{option} ({field}={number}): must be at least 1")
        from nanoinfer.cli.paged_demo import run_paged_demo

        return 0 if run_paged_demo(load(args), **given) else 1
    if given:
        raise ValueError("--steps, --block-size: only demo paged has these options")
    if args.what == "adapters":
        from nanoinfer.cli.adapters_demo import run_adapters_demo

        run_adapters_demo(load(args))
        return 0
    if args.what == "restart":
        from nanoinfer.cli.restart_demo import run_restart_demo

        return 0 if run_restart_demo(args.model, llm_options(args)) else 1
    if args.what == "sessions":
        from nanoinfer.cli.sessions_demo import run_sessions_demo

        run_sessions_demo(load(args))
        return 0
    from nanoinfer.cli.demo import run_demo

    run_demo(load(args))
    return 0


def _info(args: argparse.Namespace) -> None:
    import torch
    import transformers

    from nanoinfer.engine.stats import captured, selections
    from nanoinfer.model.layers.kept_weights import weight_bytes
    from nanoinfer.model.sampling_defaults import in_words

    llm = load(args)
    runner = llm.engine.model_runner
    kernels, attention = selections(runner)
    if runner.captured is not None:
        runner.captured.try_out()  # some reasons against it show only in a pass
    model, config = llm.model, llm.model.config
    kv_bytes = model.kv_bytes_per_token(llm.config.kv_cache_dtype)
    print(styled(f"{model.name}  ({model.path})", "bold"))
    rows: list[tuple[str, object]] = [
        *([] if model.split is None else [("share of the model", f"that of 1 of {model.split.size} processes")]),
        ("parameters", f"{model.model.num_parameters:,} in {model.dtype}, on {model.device}".replace("torch.", "")),
        ("weights", f"{_quantization(model.model)}, {weight_bytes(model.model) / 2**20:,.1f} MiB"),
        *((field.name, getattr(config, field.name)) for field in fields(config) if field.name != "dtype"),
        ("sampling defaults", in_words(model.sampling_defaults) or "none"),
        ("tokenizer", "yes" if model.tokenizer else "none: takes token ids only"),
        ("K/V per token", f"{kv_bytes:,} bytes"),
        ("K/V pool", f"{llm.config.max_total_tokens:,} slots, {llm.config.max_total_tokens * kv_bytes / 2**20:,.1f} MiB"),
        *((field.name, getattr(llm.config, field.name)) for field in fields(llm.config)),
        ("computed with", f"kernels {kernels}"),
        ("", f"attention {attention}"),
        ("captured passes", captured(runner)),
        *((f"adapter {name}", _adapter(each)) for name, each in llm.adapters.items()),
        ("versions", f"nanoinfer {nanoinfer.__version__}, torch {torch.__version__}, transformers "
         f"{transformers.__version__}, Python {platform.python_version()}"),
    ]  # fmt: skip
    names = [f"  {styled(name, 'cyan')}" for name, _ in rows]
    print(side_by_side([names, [_compact(value) for _, value in rows]], room()))


def _adapter(adapter: Any) -> str:
    ranks = ", ".join(map(str, adapter.ranks))
    return f"rank {ranks}, {len(adapter.parts)} projections, {adapter.num_bytes / 2**20:,.1f} MiB, {adapter.path}"


def _quantization(network: Any) -> str:
    kind = network.quantization
    return f"{kind}, and embeddings and norms as in the checkpoint" if kind.name else "as in the checkpoint"


def _compact(value: object) -> str:
    """A tuple of equal values as one value and their number; "none" for a rope that is not scaled."""
    if getattr(value, "rope_type", None) == "default":
        return "none"
    if isinstance(value, tuple) and len(value) > 1 and len(set(value)) == 1:
        return f"{value[0]} in each of {len(value)} layers"
    return str(value)
