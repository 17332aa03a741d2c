"""The command line: demo, generate, chat, serve, bench, simulate, trace, info. An error prints one line on standard
error, and the exit code is 2."""

import argparse
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

import nanoinfer
from nanoinfer.bench.command import add_commands as add_bench_commands
from nanoinfer.bench.command import with_default_command
from nanoinfer.cli import chat, generate, info, serve, simulate, trace
from nanoinfer.cli.options import add_engine_options
from nanoinfer.cli.terminal import one_line

COMMANDS = {
    generate: "complete one or more prompts",
    chat: "chat with the model; shows how much of each turn was cached",
    serve: "serve a model over HTTP, with OpenAI's protocol",
    simulate: "what a cluster of replicas would do, without one",
    trace: "show what the engine does, step by step, as text or as a web page",
    info: "show a model's configuration and how much memory it takes to serve it",
}
SPLIT_COMMANDS = ("generate", "chat", "serve")  # that torchrun may start
DEMOS = {
    "prefix": "five requests that begin with the same text, with and without the radix cache",
    "adapters": "three styles from one batch, and what they share",
    "paged": "block tables and slots, with forward_tensor and advance_step (see notebook 18)",
    "agent": "ten tool calls over HTTP, and how much of each prompt is cached (its model: smollm2 if that is installed)",
    "restart": "a chat whose process ends, and a new one that continues it from files",
    "sessions": "the first engine of the notebooks",
}


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line. Each command reports its own unknown options, with the most similar known one."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            near = get_close_matches(unknown[0].partition("=")[0], self._option_string_actions, 1)
            hints = [f"did you mean {option}?" for option in near]
            hints = hints if unknown[0].startswith("-") else ["a model is given with --model"]
            self.error("; ".join([f"unrecognized arguments: {' '.join(unknown)}", *hints]))
        return known, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = Parser(prog="python -m nanoinfer", description="A small LLM inference engine with a radix cache.")
    parser.add_argument("--version", action="version", version=f"nanoinfer {nanoinfer.__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(dest="command", metavar="command", parser_class=Parser)

    demo = commands.add_parser("demo", help="show requests that share a prefix, and other things that the engine does")
    about = "; ".join(f"{name}: {what}" for name, what in DEMOS.items())
    demo.add_argument("what", nargs="?", choices=DEMOS, default="prefix", help=f"{about} (default: prefix)")
    demo.add_argument("--steps", type=int, help="for demo paged: decode steps (default: 8)")
    add_engine_options(demo, but=("disable_radix_cache",))
    demo.set_defaults(run=_demo, model=None)

    bench = commands.add_parser("bench", help="measure workloads, and compare with other engines or settings")
    add_bench_commands(bench)
    for module, help in COMMANDS.items():
        module.add_arguments(commands.add_parser(module.__name__.rpartition(".")[2], help=help))
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
    except (ValueError, OSError, ImportError) as error:  # a package that is not installed is named
        print(f"nanoinfer: error: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    return code or 0


def _demo(args: argparse.Namespace) -> int | None:
    if args.steps is not None and args.what != "paged":
        raise ValueError(f"--steps {args.steps}: only demo paged has this option")
    if args.model is None:
        from nanoinfer.model.loader import PACKAGED_MODELS

        args.model = "smollm2" if args.what == "agent" and find_spec(PACKAGED_MODELS["smollm2"]) else "story"
    file = f"{args.what}_demo" if args.what in ("agent", "paged", "restart") else "demos"
    code: int | None = getattr(import_module(f"nanoinfer.cli.{file}"), args.what)(args)
    return code


def run_other_rank(args: argparse.Namespace) -> int | None:
    """In a process that is not rank 0: serve rank 0, and return the exit code when that has ended. None in rank 0, and
    without torchrun. ValueError if the command does not run so, or for another `--tensor-parallel-size`.
    """
    from nanoinfer.model.parallel.shard import torchrun_rank

    shard = torchrun_rank()
    if shard is None:
        return None
    command = f"{args.command} {args.what}" if args.command == "bench" else args.command
    if command not in SPLIT_COMMANDS:
        raise ValueError(f"{command}: must not be started by torchrun; {', '.join(SPLIT_COMMANDS)} can be")
    size = getattr(args, "tensor_parallel_size", None)
    if size not in (None, shard.size):
        raise ValueError(f"--tensor-parallel-size {size}: must be torchrun's WORLD_SIZE={shard.size}, or left out")
    if shard.rank == 0:
        return None
    from nanoinfer.model.parallel.rendezvous import Rendezvous
    from nanoinfer.model.parallel.worker import serve_rank

    return serve_rank(Rendezvous.under_torchrun())
