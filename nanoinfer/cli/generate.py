"""`python -m nanoinfer generate`: prints prompts and completions on standard output, and notes on standard error."""

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from nanoinfer.cli.options import (
    GRAMMARS,
    SAMPLING,
    add_engine_options,
    add_sampling_options,
    check_grammar,
    load,
    sampling_params,
)
from nanoinfer.cli.terminal import styled

if TYPE_CHECKING:
    from nanoinfer import FinishReason


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("prompt", nargs="+", help="text to continue; - reads the text from standard input")
    parser.set_defaults(run=run)
    add_sampling_options(parser, (*SAMPLING, "n", *GRAMMARS))
    add_engine_options(parser)


def run(args: argparse.Namespace) -> None:
    """Complete each prompt, with each adapter if there are some. A single completion is printed while it is computed,
    several after all have ended."""
    if args.prompt.count("-") > 1:
        raise ValueError("prompt -: given twice, but standard input can be read only once")
    prompts = [_standard_input() if prompt == "-" else prompt for prompt in args.prompt]
    params = sampling_params(args)
    llm = load(args, needs_text=True)
    check_grammar(llm, args, params)
    adapters: list[str | None] = list(llm.adapters) or [None]
    prompts, each = [prompt for prompt in prompts for _ in adapters], adapters * len(prompts)
    if len(prompts) == 1 and params.n == 1:
        pieces = llm.stream(prompts[0], params, adapter=each[0])
        print(styled(prompts[0], "dim"), end="", flush=True)
        for piece in pieces:
            print(piece.text, end="", flush=True)
        print()
        print(f"[{note(piece.prompt_tokens, piece.cached_tokens, piece.finish_reason)}]", file=sys.stderr)
        return
    for prompt, name, output in zip(prompts, each, llm.generate(prompts, params, adapter=each), strict=True):
        for i, completion in enumerate(output.outputs):
            print(styled(prompt, "dim") + completion.text, flush=True)
            which = f"adapter {name}: " if len(adapters) > 1 else ""
            which += f"completion {i + 1} of {params.n}: " if params.n > 1 else ""
            text = note(output.prompt_tokens, completion.cached_tokens, completion.finish_reason)
            print(f"[{which}{text}]", file=sys.stderr)


def note(prompt_tokens: int, cached_tokens: int, finish_reason: "FinishReason | None") -> str:
    """How much of the prompt was cached, and whether a limit cut the text off."""
    cut = ", cut off (--max-new-tokens)" if finish_reason == "length" else ""
    return f"{prompt_tokens} prompt tokens, {cached_tokens} cached{cut}"


def read_text(read: Callable[[], str]) -> str:
    """What `read` reads from standard input. ValueError if it is not text in the input's encoding, usually UTF-8."""
    try:
        text = read()
        text.encode()  # some locales let other bytes through as surrogates
    except UnicodeError as error:
        raise ValueError("standard input is not UTF-8 text") from error
    return text


def _standard_input() -> str:
    """All of it except the final newline, which ends the text but is not part of it."""
    return read_text(sys.stdin.read).removesuffix("\n").removesuffix("\r")
