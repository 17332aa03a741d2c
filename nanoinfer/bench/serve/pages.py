"""What watching costs: the same requests to a server while the live page is open in many browsers, and in none.

A round has three runs: no page, many pages, no page once more. The cost is by how much longer the run with pages takes than
the two others on average; how much these two differ is noise. The pages are connections of a process of their own, which
throws away what it reads. Time and processor time are compared: where browsers run on other machines, the server's
processor time is what they cost it.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median

from tqdm.auto import tqdm

from nanoinfer.bench.engines import EngineFailure
from nanoinfer.bench.frozen_heap import frozen_heap
from nanoinfer.bench.machine import describe_machine
from nanoinfer.bench.markdown import table
from nanoinfer.bench.serve.conversations import Conversations
from nanoinfer.bench.serve.own_cost import OwnCostSettings, over_http
from nanoinfer.bench.serve.process import ServerProcess, cpu_seconds, launched
from nanoinfer.bench.serve.session import Session
from nanoinfer.bench.serve.settings import OURS
from nanoinfer.bench.serve.stalls import ATTEMPTS, STALL_S

AIM = 0.03
NONE, PAGES, AGAIN = "no page", "pages", "no page, once more"


@dataclass
class Run:
    """Seconds of a run, the server's processor time if it is known, and the frames that all pages together got."""

    seconds: float
    cpu: float | None
    frames: int = 0


Round = dict[str, Run]


def measure_pages(settings: OwnCostSettings, pages: int) -> list[Round]:
    """Serve `settings.streams` requests at the same time, with and without `pages`, in turns. EngineFailure if it fails."""
    if not 1 <= pages <= 64:
        raise ValueError(f"--pages {pages}: must be in 1..64")
    session = Session(settings.serve_settings())
    rounds = []
    with ExitStack() as stack:
        server = session.start(OURS)
        stack.callback(server.close)
        stack.enter_context(frozen_heap())
        for number in tqdm(range(-1, settings.rounds), desc="bench pages", unit="round"):
            runs = {
                name: _run(session, settings, server, f"{number}/{name}", pages if name == PAGES else 0)
                for name in (NONE, PAGES, AGAIN)
            }
            if number >= 0:  # the first one is to warm up
                rounds.append(runs)
    return rounds


def _run(session: Session, settings: OwnCostSettings, server: ServerProcess, seed: str, pages: int) -> Run:
    run = Run(0.0, None)
    for attempt in range(ATTEMPTS):
        conversations = Conversations(session.writer, str(settings.seed), f"{seed}/{attempt}", settings.streams)
        prompts = [conversations.prompt(i) for i in range(settings.streams)]
        with server, _watched(server.port, run, pages) if pages else nullcontext():
            before = cpu_seconds(server.pid)
            run.seconds, stall_s, _ = asyncio.run(over_http(session, settings, server, prompts))
            after = cpu_seconds(server.pid)
        run.cpu = None if before is None or after is None else after - before
        if stall_s < STALL_S:
            break
    return run


@contextmanager
def _watched(port: int, run: Run, pages: int) -> Iterator[None]:
    command = [sys.executable, "-m", "nanoinfer.bench.serve.pages_reader", str(port), str(pages)]
    reader = subprocess.Popen(launched(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert reader.stdout is not None
        if reader.stdout.readline() != "ready\n":
            raise EngineFailure("the pages got no frame")
        yield
        told, _ = reader.communicate()
        run.frames = int(told)
    finally:
        reader.kill()
        reader.communicate()


def format_pages(rounds: Sequence[Round], settings: OwnCostSettings, pages: int) -> str:
    """Tokens per second of each kind of run, and what the pages cost."""
    tokens = settings.streams * settings.new_tokens
    rows = []
    for name in (NONE, PAGES, AGAIN):
        runs = [each[name] for each in rounds]
        cpu = [run.cpu for run in runs if run.cpu is not None]
        rows.append(
            [f"{pages} {name}" if name == PAGES else name, f"{tokens / median(run.seconds for run in runs):.0f}"]
        )
        rows[-1] += [f"{1e6 * median(cpu) / tokens:.0f}" if cpu else "", str(round(median(run.frames for run in runs)))]
    lines = [
        f"With {pages} pages, the same tokens take {_span(_costs(rounds))} more time; the aim is at most {AIM:.0%}."
    ]
    lines.append(
        f"Noise, no page against no page: {_span([runs[AGAIN].seconds / runs[NONE].seconds - 1 for runs in rounds])}."
    )
    if cpu_costs := _cpu_costs(rounds):
        lines.append(f"They take {_span(cpu_costs)} more of the server's processor time.")
    machine, streams = describe_machine(), f"{settings.streams} streams of {settings.new_tokens} tokens"
    head = f"{machine['cpu']}, {machine['cores']} cores; {settings.threads} threads; {streams}"
    return "\n\n".join([head, table(["", "tok/s", "µs of processor time per token", "frames"], rows), " ".join(lines)])


def _costs(rounds: Sequence[Round]) -> list[float]:
    return [runs[PAGES].seconds / ((runs[NONE].seconds + runs[AGAIN].seconds) / 2) - 1 for runs in rounds]


def _cpu_costs(rounds: Sequence[Round]) -> list[float]:
    cpus = [(runs[NONE].cpu, runs[PAGES].cpu, runs[AGAIN].cpu) for runs in rounds]
    return [pages / ((none + again) / 2) - 1 for none, pages, again in cpus if none and pages and again]


def _span(values: Sequence[float]) -> str:
    """The median, and the lower and upper quarter."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    return f"{median(ordered):+.1%} ({low:+.1%}..{high:+.1%})"
