"""The command line: demo, generate, chat, bench, trace, info. An error is one line on standard error, exit code 2."""

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NoReturn

from nanoinfer.bench.command import add_commands as add_bench_commands
from nanoinfer.bench.command import with_default_command
from nanoinfer.commands.terminal import styled
from nanoinfer.commands.trace import add_arguments as add_trace_arguments

if TYPE_CHECKING:
    from nanoinfer import LLM, RequestOutput, SamplingParams, StreamPiece

ENGINE_OPTIONS: dict[str, dict[str, Any]] = {
    "dtype": {"help": "float32, bfloat16 or float16 (default: as in the checkpoint)"},
    "device": {"default": "cpu", "help": "cpu, cuda, npu or auto (default: cpu)"},
    "max_total_tokens": {"type": int, "help": "slots for K/V (default: by memory)"},
    "max_running_requests": {
        "type": int,
        "default": 32,
        "help": "requests that hold K/V at the same time (default: 32)",
    },
    "max_context_len": {"type": int, "help": "prompt plus output tokens of a request (default: the model's limit)"},
    "page_size": {"type": int, "default": 1, "help": "slots per page of K/V (default: 1)"},
    "schedule_policy": {"default": "lpm", "help": "lpm, fcfs, random or dfs-weight (default: lpm)"},
    "disable_radix_cache": {"action": "store_true", "help": "compute every prompt from its first token"},
    "attention_backend": {
        "default": "auto",
        "help": "cpp, torch_native or auto: the fastest available (default: auto)",
    },
    "kernels": {"default": "auto", "help": "cpp, onednn, torch or auto: the fastest available (default: auto)"},
}
SAMPLING_OPTIONS: dict[str, dict[str, Any]] = {
    "max_new_tokens": {"type": int, "default": 128, "help": "generate at most this many tokens (default: 128)"},
    "temperature": {"type": float, "default": 0.7, "help": "0 always takes the likeliest token (default: 0.7)"},
    "top_p": {"type": float, "default": 1.0, "help": "nucleus sampling (default: 1.0, off)"},
    "top_k": {"type": int, "default": -1, "help": "sample from the k likeliest (default: -1, off)"},
    "min_p": {"type": float, "default": 0.0, "help": "drop tokens below this share of the likeliest (default: 0, off)"},
    "repetition_penalty": {"type": float, "default": 1.0, "help": "default: 1.0, off"},
    "seed": {"type": int, "help": "same seed, same text"},
    "stop": {"action": "append", "default": [], "help": "end at this text; may be given several times"},
}


class OneLineErrorParser(argparse.ArgumentParser):
    """argparse without the usage text in front of an error."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = OneLineErrorParser(
        prog="python -m nanoinfer", description="A small LLM inference engine with a radix cache."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command", parser_class=OneLineErrorParser)

    demo = commands.add_parser("demo", help="show requests that share a prefix: tokens cached and computed, time saved")
    demo.add_argument(
        "what", nargs="?", choices=["paged"], help="paged: block tables and slots, by forward_tensor and advance_step"
    )
    demo.add_argument("--steps", type=int, help="demo paged: decode steps (default: 8)")
    demo.add_argument("--block-size", type=int, help="demo paged: slots per block (default: 4)")
    demo.set_defaults(run=_demo)
    _add_options(demo, "engine", ENGINE_OPTIONS, but=("disable_radix_cache",))

    generate = commands.add_parser("generate", help="complete one or more prompts")
    generate.add_argument("prompt", nargs="+", help="text to continue; - reads it from standard input")
    generate.set_defaults(run=_generate)
    _add_options(generate, "sampling", SAMPLING_OPTIONS)
    _add_options(generate, "engine", ENGINE_OPTIONS)

    chat = commands.add_parser("chat", help="chat with the model; shows how much of each turn was cached")
    chat.add_argument("--system", help="a system message that begins the conversation")
    chat.set_defaults(run=_chat)
    _add_options(chat, "sampling", SAMPLING_OPTIONS)
    _add_options(chat, "engine", ENGINE_OPTIONS)

    bench = commands.add_parser("bench", help="measure workloads, in comparison with other engines and other settings")
    add_bench_commands(bench, lambda parser: _add_options(parser, "engine", ENGINE_OPTIONS))

    add_trace_arguments(
        commands.add_parser("trace", help="show what the engine does step by step, as text or as a page")
    )

    info = commands.add_parser("info", help="show a model's configuration and the memory that serving it takes")
    info.set_defaults(run=_info)
    _add_options(info, "engine", ENGINE_OPTIONS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    args = build_parser().parse_args(with_default_command(sys.argv[1:] if argv is None else argv))
    import transformers

    transformers.utils.logging.set_verbosity_error()
    try:
        code = args.run(args)
    except BrokenPipeError:  # the reader of standard output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        print(f"nanoinfer: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    return code or 0


def _add_options(
    parser: argparse.ArgumentParser, title: str, options: dict[str, dict[str, Any]], but: Sequence[str] = ()
) -> None:
    group = parser.add_argument_group(title)
    if title == "engine":
        group.add_argument(
            "--model", default="story", help="bundled name, checkpoint directory or Hub name (default: story)"
        )
    for name, settings in options.items():
        if name not in but:
            group.add_argument(f"--{name.replace('_', '-')}", **settings)


def _pick(args: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(args, name) for name in options if hasattr(args, name)}


def _load(args: argparse.Namespace) -> "LLM":
    from nanoinfer import LLM

    return LLM(args.model, **_pick(args, ENGINE_OPTIONS))


def _sampling(args: argparse.Namespace) -> "SamplingParams":
    from nanoinfer import SamplingParams

    return SamplingParams(**_pick(args, SAMPLING_OPTIONS))


def _demo(args: argparse.Namespace) -> int:
    options = {"num_steps": args.steps, "block_size": args.block_size}
    given = {name: value for name, value in options.items() if value is not None}
    if args.what == "paged":
        from nanoinfer.commands.paged_demo import run_paged_demo

        return 0 if run_paged_demo(_load(args), **given) else 1
    if given:
        raise ValueError("--steps, --block-size: options of demo paged only")
    from nanoinfer.commands.demo import run_demo

    run_demo(_load(args))
    return 0


def _generate(args: argparse.Namespace) -> None:
    prompts = [sys.stdin.read() if prompt == "-" else prompt for prompt in args.prompt]
    params = _sampling(args)
    llm = _load(args)
    if len(prompts) == 1:
        pieces = llm.stream(prompts[0], params)
        print(styled(prompts[0], "dim"), end="", flush=True)
        for piece in pieces:
            print(piece.text, end="", flush=True)
        print()
        print(_note(piece), file=sys.stderr)
        return
    for prompt, output in zip(prompts, llm.generate(prompts, params), strict=True):
        print(styled(prompt, "dim") + output.text, flush=True)
        print(_note(output), file=sys.stderr)


def _chat(args: argparse.Namespace) -> None:
    params = _sampling(args)
    llm = _load(args)
    interactive = sys.stdin.isatty()
    if interactive:
        print(styled("Chat with the model. An empty line or Ctrl-D ends it.", "dim"))
    messages = [{"role": "system", "content": args.system}] if args.system else []
    while (text := _read_turn(interactive)) is not None:
        messages.append({"role": "user", "content": text})
        prompt = llm.chat_prompt(messages)
        room = min(llm.config.max_context_len, llm.config.max_total_tokens) - len(prompt)
        if room < 1:
            raise ValueError(
                f"this conversation is full: {len(prompt)} tokens, and the context or the pool holds no more"
            )
        reply = ""
        for piece in llm.stream(prompt, replace(params, max_new_tokens=min(params.max_new_tokens, room))):
            reply += piece.text
            print(piece.text, end="", flush=True)
        messages.append({"role": "assistant", "content": reply})
        shorter = f", room for {room} more" if room < params.max_new_tokens else ""
        print(styled(f"\n{_note(piece)}{shorter}", "cyan"))


def _note(output: "RequestOutput | StreamPiece") -> str:
    """How much of the prompt was cached, and whether the text was cut off."""
    cut = ", cut off at max_new_tokens" if output.finish_reason == "length" else ""
    return f"[{output.prompt_tokens} prompt tokens, {output.cached_tokens} cached{cut}]"


def _read_turn(interactive: bool) -> str | None:
    """The user's next turn; None at the end of input or at an empty line."""
    try:
        return input(styled("> ", "bold") if interactive else "").strip() or None
    except EOFError:
        return None


def _info(args: argparse.Namespace) -> None:
    import torch
    import transformers

    import nanoinfer
    from nanoinfer.stats import selections

    llm = _load(args)
    kernels, attention = selections(llm.engine.model_runner)
    model, config = llm.model, llm.model.config
    kv_bytes = model.kv_bytes_per_token(llm.config.kv_cache_dtype)
    print(styled(f"{model.name}  ({model.path})", "bold"))
    rows: list[tuple[str, object]] = [
        ("parameters", f"{model.model.num_parameters:,} in {model.dtype}, on {model.device}".replace("torch.", "")),
        *((field.name, getattr(config, field.name)) for field in fields(config) if field.name != "dtype"),
        ("tokenizer", "yes" if model.tokenizer else "no: serves token ids only"),
        ("K/V of a token", f"{kv_bytes:,} bytes"),
        ("K/V pool", f"{llm.config.max_total_tokens:,} slots, {llm.config.max_total_tokens * kv_bytes / 2**20:,.1f} MiB"),
        *((field.name, getattr(llm.config, field.name)) for field in fields(llm.config)),
        ("computed with", f"kernels {kernels}"),
        ("", f"attention {attention}"),
        ("versions", f"nanoinfer {nanoinfer.__version__}, torch {torch.__version__}, transformers "
         f"{transformers.__version__}, Python {platform.python_version()}"),
    ]  # fmt: skip
    for name, value in rows:
        print(f"  {styled(f'{name:24}', 'cyan')} {_compact(value)}")


def _compact(value: object) -> str:
    """A tuple of equal values as one value and their number."""
    if isinstance(value, tuple) and len(value) > 1 and len(set(value)) == 1:
        return f"{value[0]} in each of {len(value)} layers"
    return str(value)
