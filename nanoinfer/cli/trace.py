"""`python -m nanoinfer trace`: describes a run step by step, and writes a page that plays it."""

import argparse
import os
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments. Without prompts, it serves the example of trace_example.py."""
    parser.add_argument(
        "prompt", nargs="*", help="texts to continue, all at the same time (default: an example in a small pool)"
    )
    parser.add_argument(
        "--model", default="story", help="bundled name, checkpoint directory or Hub name (default: story)"
    )
    parser.add_argument(
        "--load",
        type=os.path.expanduser,
        metavar="FILE",
        help="serve nothing: open a trace that --json, Trace.save or the server's page wrote",
    )
    parser.add_argument("--max-new-tokens", "--max-tokens", type=int, default=24, help="for each prompt (default: 24)")
    parser.add_argument("--out", type=os.path.expanduser, help="write the player to this .html file")
    parser.add_argument("--json", type=os.path.expanduser, help="write the trace to this file, for Trace.load")
    parser.add_argument("--perfetto", type=os.path.expanduser, help="write the trace to this file, for ui.perfetto.dev")
    parser.add_argument("--png", type=os.path.expanduser, help="write a picture of the run to this .png file")
    parser.add_argument("--title", help="title of the page and the picture")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Serve, describe, write."""
    from nanoinfer.cli.options import check_tokenizer
    from nanoinfer.cli.trace_example import SETTINGS, run_example
    from nanoinfer.frontends.llm import LLM
    from nanoinfer.requests.sampling_params import SamplingParams
    from nanoinfer.trace.trace import Trace

    if args.load is not None and args.prompt:
        raise ValueError(f"--load {args.load}: serves no prompts, but {len(args.prompt)} are given")
    for path, ending in ((args.out, ".html"), (args.png, ".png")):
        if path is not None and Path(path).suffix != ending:
            raise ValueError(f"{path}: must end in {ending}")
    written = [path for path in (args.json, args.perfetto, args.out, args.png) if path is not None]
    for path in written:
        if not Path(path).parent.is_dir():
            raise ValueError(f"{path}: there is no folder {Path(path).parent}")
    if args.out is not None or args.png is not None:
        _check_matplotlib()
    if args.load is not None:
        trace: Trace | None = Trace.load(args.load)
    elif args.prompt:
        llm = LLM(args.model, trace=True)
        check_tokenizer(llm)
        llm.generate(args.prompt, SamplingParams(max_new_tokens=args.max_new_tokens, temperature=0), use_tqdm=False)
        trace = llm.trace
    else:
        trace = run_example(LLM(args.model, **SETTINGS))
    assert trace is not None
    print(trace.describe())
    if args.json is not None:
        trace.save(args.json)
    if args.perfetto is not None:
        trace.to_perfetto(args.perfetto)
    if args.out is not None:
        trace.player(args.title).save(args.out)
    if args.png is not None:
        from nanoinfer.trace.final import final_state

        final_state(trace, title=args.title).save(args.png)
    for path in written:
        print(f"written: {path}" + (" (open it in a browser)" if path == args.out else ""))


def _check_matplotlib() -> None:
    """ValueError if matplotlib is missing. Called before anything is computed."""
    try:
        import nanoinfer.viz  # noqa: F401
    except ImportError as error:
        raise ValueError(str(error)) from error
