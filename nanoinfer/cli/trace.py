"""`python -m nanoinfer trace`: describes a run step by step, and writes a page that plays it."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoinfer.cli.options import check_folders, load
from nanoinfer.sampling_params import SamplingParams

if TYPE_CHECKING:
    from nanoinfer import LLM
    from nanoinfer.viz.trace import Trace

# The example: a few requests with shared beginnings, in a pool so small that everything happens at least once.
OPENING = "Once upon a time, there was a little fox named Ruby. She lived in a small house near the river."
# Each: the number of steps after which the prompt arrives, the prompt, and how many tokens may be generated.
ARRIVALS = (
    (0, OPENING + " One day,", 24),
    (0, OPENING + " Every morning, she", 20),
    (3, "Max was a clever donkey who lived in a barn. He had a big secret: he could not swim. One day, Max met a small "
        "girl named Lily. She had lost", 20),
    (7, OPENING + " One day, she found a map.", 22),
    (10, "Long ago, a shy dragon lived in a cave in the mountains. He was afraid of the dark, and he told nobody.", 14),
    (24, OPENING + " One day,", 8),
)  # fmt: skip
ABORT = (28, 4)  # after 28 steps request 4 is aborted
SETTINGS: dict[str, Any] = {  # of its LLM: so tight that there are chunks, evictions and retractions
    "max_total_tokens": 128,
    "max_running_requests": 4,
    "chunked_prefill_size": 24,
    "schedule_conservativeness": 0.1,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("prompt", nargs="*", help="texts to continue, all at the same time (default: an example)")
    parser.add_argument("--model", default="story", help="bundled name, checkpoint folder, GGUF file, Hub name (story)")
    parser.add_argument("--max-new-tokens", "--max-tokens", type=int, default=24, help="for each prompt (default: 24)")
    for flag, about in (
        ("--load", "serve nothing: open a trace that --json, Trace.save or the server's page wrote"),
        ("--out", "write the player to this .html file"),
        ("--json", "write the trace to this file, for Trace.load"),
        ("--perfetto", "write the trace to this file, for ui.perfetto.dev"),
        ("--png", "write a picture of the run to this .png file"),
    ):
        parser.add_argument(flag, type=os.path.expanduser, metavar="FILE", help=about)
    parser.add_argument("--title", help="title of the page and the picture")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Serve, describe, write."""
    from nanoinfer.viz.trace import Trace

    if args.load is not None and args.prompt:
        raise ValueError(f"--load {args.load}: serves no prompts, but {len(args.prompt)} are given")
    for path, ending in ((args.out, ".html"), (args.png, ".png")):
        if path is not None and Path(path).suffix != ending:
            raise ValueError(f"{path}: must end in {ending}")
    written = [path for path in (args.json, args.perfetto, args.out, args.png) if path is not None]
    check_folders(*written)
    if args.png is not None:
        from nanoinfer.viz import timeline  # noqa: F401 - fails here, before anything is computed, without matplotlib
    if args.load is not None:
        trace: Trace | None = Trace.load(args.load)
    elif args.prompt:
        llm = load(args, needs_text=True, trace=True)
        llm.generate(args.prompt, SamplingParams(max_new_tokens=args.max_new_tokens, temperature=0), use_tqdm=False)
        trace = llm.trace
    else:
        trace = run_example(load(args, needs_text=True, **SETTINGS))
    assert trace is not None
    print(trace.describe())
    if args.json is not None:
        trace.save(args.json)
    if args.perfetto is not None:
        trace.to_perfetto(args.perfetto)
    if args.out is not None:
        trace.player(args.title).save(args.out)
    if args.png is not None:
        trace.timeline(title=args.title, occupancy=True).save(args.png)
    for path in written:
        print(f"written: {path}" + (" (open it in a browser)" if path == args.out else ""))


def run_example(llm: "LLM") -> "Trace":
    """Serve the arrivals on `llm`, made with SETTINGS, and return the trace."""
    from nanoinfer.viz.trace import record

    engine, arrivals = llm.engine, list(ARRIVALS)
    ids: list[int] = []
    with record(engine) as trace:
        while arrivals or engine.has_unfinished():
            while arrivals and arrivals[0][0] <= len(trace):
                _, prompt, limit = arrivals.pop(0)
                ids.append(engine.add_request(prompt, SamplingParams(max_new_tokens=limit, temperature=0)))
            if len(trace) == ABORT[0] and ABORT[1] < len(ids):
                engine.abort(ids[ABORT[1]])
            engine.step()
    return trace
