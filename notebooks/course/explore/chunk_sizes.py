"""How large should a chunk be? A long prompt holds up a running request; in chunks it does so less, but takes longer."""

from dataclasses import dataclass

from nanoinfer.llm import LLM
from nanoinfer.viz.words import count
from notebooks.course.explore import Bar, Bars, Control, Frame, InteractiveFigure, Lanes
from notebooks.course.explore.runs import Arrival, Moment, Run, moments, serve
from notebooks.course.explore.shown import lanes_of
from notebooks.course.prompts import HELLO, STORY

SIZES = (16, 32, 64, 128, None)
SLOTS = 512
ARRIVALS = (Arrival(0, HELLO, 20), Arrival(4, STORY, 4))
RUNNING, LONG = 0, 1  # the request that is held up, and the one with the long prompt
# Time, in units of one token's computation: every pass reads all weights first, which takes as long as so many tokens.
READING_WEIGHTS = 8
PHASES = (
    ("extend", "extends (how many tokens)"),
    ("decode", "decodes"),
    ("idle", "running, not in this pass"),
    ("waiting", "waits"),
)


@dataclass
class Times:
    """A run in units of time. `passes`: of each pass. `gap`: the longest time between two tokens of the running request,
    over the passes `gap_start` to `gap_end - 1`. `first_token`: from the long prompt's arrival to its first token."""

    passes: list[int]
    gap: int
    gap_start: int
    gap_end: int
    first_token: int


def record_chunk_sizes(llm: LLM) -> dict[int | None, Run]:
    """The same two requests, served with each chunk size."""
    return {size: serve(llm, ARRIVALS, SLOTS, chunked_prefill_size=size) for size in SIZES}


def times_of(run: Run, shown: list[Moment]) -> Times:
    """What the passes of a run cost and how long the requests waited, from the tokens that the trace says were computed."""
    passes = [READING_WEIGHTS + moment.num_tokens for moment in shown]
    now = last = last_step = gap = gap_start = gap_end = first_token = 0
    arrival = sum(passes[: ARRIVALS[LONG].step])
    for moment, cost in zip(shown, passes, strict=True):
        now += cost
        for entry in run.trace.step(moment.step).batch:
            if not entry.tokens:
                continue
            if entry.request == RUNNING:
                if last and now - last > gap:
                    gap, gap_start, gap_end = now - last, last_step, moment.step
                last, last_step = now, moment.step
            elif not first_token:
                first_token = now - arrival
    return Times(passes, gap, gap_start, gap_end, first_token)


def chunk_sizes(llm: LLM) -> InteractiveFigure:
    """chunked_prefill_size → the timeline, the longest gap between a running request's tokens, the time to first token."""
    runs = record_chunk_sizes(llm)
    shown = {size: moments(run) for size, run in runs.items()}
    times = {size: times_of(run, shown[size]) for size, run in runs.items()}
    widest = max(sum(each.passes) for each in times.values())
    longest = max(max(each.gap, each.first_token) for each in times.values())
    prompt = len(runs[None].trace.requests[LONG].prompt)
    frames = {}
    for i, size in enumerate(SIZES):
        lanes, each = lanes_of(runs[size].trace, shown[size]), times[size]
        frames[(i,)] = Frame(
            [
                Lanes(
                    "Two requests; the wider a column, the longer its pass takes",
                    len(shown[size]),
                    lanes,
                    legend=PHASES,
                    widths=each.passes,
                    whole=widest,
                    scale=("time →", f"{widest} units"),
                    at=each.gap_start,
                    until=each.gap_end - 1,
                    note="Time is counted, not measured: one unit per token that a pass computes, and "
                    f"{READING_WEIGHTS} more for every pass, because it reads all weights of the model first.",
                ),
                Bars(
                    f"Longest gap between two tokens of request {RUNNING}",
                    [gap_bar(other, times[other].gap, other == size) for other in SIZES],
                    longest,
                ),
                Bars(
                    f"Time to the first token of request {LONG}, whose prompt has {prompt} tokens",
                    [gap_bar(other, times[other].first_token, other == size) for other in SIZES],
                    longest,
                ),
            ],
            sentence(size, each, shown[size], prompt),
        )
    return InteractiveFigure(
        "How large should a chunk of a long prompt be?",
        f"Request {RUNNING} is producing tokens when request {LONG} arrives with a long prompt. While a pass computes a "
        f"chunk of that prompt, request {RUNNING} gets no token. Look at the frame: it is around its longest wait.",
        [
            Control(
                "chunked_prefill_size",
                "chunked_prefill_size",
                [0 if size is None else size for size in SIZES],
                [label(size) for size in SIZES],
                start=1,
                slider=True,
            )
        ],
        frames,
        height=1060,
    )


def label(size: int | None) -> str:
    return "none" if size is None else str(size)


def gap_bar(size: int | None, value: int, chosen: bool) -> Bar:
    name = "no chunks" if size is None else f"chunks of {size}"
    return Bar(name, value, f"{value} units", look="highlight" if chosen else "in-use")


def sentence(size: int | None, each: Times, shown: list[Moment], prompt: int) -> str:
    """What there is to see."""
    chunks = sum(LONG in moment.computed and moment.mode == "EXTEND" for moment in shown)
    if size is None:
        return (
            f"The whole prompt is computed in one pass. That is the quickest way to its first token, {each.first_token} "
            f"units, but request {RUNNING} gets no token for {each.gap} units (the frame): its reader sees the text stop."
        )
    return (
        f"The prompt of {prompt} tokens is computed in {count(chunks, 'chunk')}, and request {RUNNING} gets a token after "
        f"each of them: its longest gap (the frame) is {each.gap} units. Request {LONG} has its first token after "
        f"{each.first_token} units: it pays for the passes in between."
    )
