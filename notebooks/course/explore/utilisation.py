"""How long do requests wait? Arrivals at random, one served at a time: what waits, and what p50 and p99 become."""

import random
from itertools import accumulate
from math import ceil

from notebooks.course.explore import Bars, Control, Frame, InteractiveFigure, Number, Numbers, bars_of
from notebooks.course.explore.panels.lanes import Lane, Lanes, Span, Strip

UTILISATIONS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
MANY, SEED = 100_000, 21  # requests behind the percentiles; the seed of those that are drawn
SECONDS, COLUMNS = 24, 5  # that are drawn, and columns per second


def arrivals_of(rate: float, number: int, seed: int = 16) -> list[float]:
    """When requests arrive that do not know of each other: `rate` per second on average."""
    rng = random.Random(seed)
    return list(accumulate(rng.expovariate(rate) for _ in range(number)))


def begins_of(arrivals: list[float], service: float = 1.0) -> list[float]:
    """When a server that serves one after the other begins with each."""
    begins, free_at = list[float](), 0.0
    for arrival in arrivals:
        begins.append(max(arrival, free_at))
        free_at = begins[-1] + service
    return begins


def percentile(values: list[float], percent: float) -> float:
    """The value that so many percent of the values do not exceed."""
    return sorted(values)[ceil(len(values) * percent / 100) - 1]


def times_at(load: float) -> list[float]:
    """Seconds from arrival to answer, each with one second of work."""
    arrivals = arrivals_of(load, MANY)
    return [begin + 1 - arrival for arrival, begin in zip(arrivals, begins_of(arrivals), strict=True)]


def timeline(load: float) -> Lanes:
    """The first seconds, a lane per request, and above them how many wait."""
    arrivals = [at for at in arrivals_of(load, 2 * SECONDS, SEED) if at < SECONDS]
    width, lanes, waiting = SECONDS * COLUMNS, list[Lane](), [0] * (SECONDS * COLUMNS)
    for i, (arrival, begin) in enumerate(zip(arrivals, begins_of(arrivals), strict=True), 1):
        came, began, ended = (min(round(COLUMNS * at), width) for at in (arrival, begin, begin + 1))
        spans = [Span(came, began, "waiting"), Span(began, ended, "decode")]
        lanes.append(Lane(f"request {i}", [span for span in spans if span.end > span.start]))
        for column in range(came, began):
            waiting[column] += 1
    return Lanes(
        f"The first {SECONDS} seconds: how many wait, and what each request does",
        width,
        lanes,
        Strip("requests waiting", 6, [[("highlight", min(each, 6))] for each in waiting]),
        legend=[("waiting", "waits"), ("decode", "is served, for one second")],
        widths=[1 / COLUMNS] * width,
        whole=SECONDS,
        scale=("0 s", f"{SECONDS} s"),
    )


def name_of(load: float) -> str:
    return f"utilisation {load:g}"


def utilisation(_: object = None) -> InteractiveFigure:
    """The share of the time in which the server is busy → a timeline, p50 and p99 from arrival to answer."""
    times = {load: times_at(load) for load in UTILISATIONS}
    half, slow = ({load: percentile(each, percent) for load, each in times.items()} for percent in (50, 99))
    texts = {name_of(load): (round(slow[load], 1), f"{slow[load]:.1f} s (p50: {half[load]:.1f} s)") for load in times}

    def show(load: float) -> Frame:
        late = sum(each > 1 for each in times[load]) / MANY
        mean = sum(times[load]) / MANY - 1
        numbers = [
            Number("arrive per second, where one per second can be served", f"{load:g}"),
            Number("must wait", f"{late:.0%}"),
            Number("mean wait, of all requests", f"{mean:.1f} s", strong=True),
            Number("p99, from arrival to answer", f"{slow[load]:.1f} s", strong=True),
        ]
        said = (
            f"The server is idle {1 - load:.0%} of the time; {late:.0%} of the requests wait. The mean wait of all "
            f"is {mean:.1f} s. Half have their answer within {half[load]:.1f} s; one in a hundred needs more than "
            f"{slow[load]:.1f} s."
        )
        bars = Bars(f"p99 from arrival to answer, of {MANY:,} requests each", bars_of(texts, name_of(load)), 52)
        return Frame([timeline(load), bars, Numbers("At this utilisation", numbers)], said)

    return InteractiveFigure(
        "How long do requests wait for a server that is not always busy?",
        "Each request is one second of work, one is served at a time, and they arrive at random. Drag the utilisation, the "
        "share of the time in which the server is busy. Look at the strip on top: it says how many wait.",
        [Control("utilisation", "utilisation", UTILISATIONS, start=1)],
        show,
        still=(UTILISATIONS.index(0.9),),
        height=1130,
        source="Computed: arrivals at random, and one second of work for each.",
    )
