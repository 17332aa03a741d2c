"""How often may a waiting request be overtaken? An unpopular prompt in a stream of popular ones."""

from nanoinfer.frontends.llm import LLM
from notebooks.course.explore.control import Control
from notebooks.course.explore.explorable import Explorable, Frame
from notebooks.course.explore.panels.bars import Bar, Bars
from notebooks.course.explore.panels.lanes import Lane, Lanes
from notebooks.course.explore.panels.numbers import Number, Numbers
from notebooks.course.explore.runs import Arrival, Moment, Run, moments, serve
from notebooks.course.explore.shown import lanes_of
from notebooks.course.prompts import FOX, HELLO

BOUNDS = (1, 2, 4, 8, 64)  # max_overtakes
# How the popular prompts arrive: so many at a time, with so many steps in between. Each takes two passes, and the engine is
# never idle in between.
BURSTS = ((1, 1), (1, 2), (4, 9))
TOPICS = ("fox", "bear", "ball", "sun", "rain", "tree", "boat", "kite", "moon", "cat", "dog", "bird")
LONELY = 2  # the request that shares nothing with the others: two came before it
SLOTS, NEW_TOKENS = 256, 2
PHASES = (
    ("waiting", "waits"),
    ("extend", "extends (how many tokens)"),
    ("decode", "decodes"),
)


def arrivals(size: int, every: int) -> list[Arrival]:
    """`size` popular prompts every so many steps, and HELLO just after the second of them."""
    popular = [Arrival(every * (i // size), f"{FOX} Lily saw a {topic}.", NEW_TOKENS) for i, topic in enumerate(TOPICS)]
    return [*popular[:LONELY], Arrival(popular[LONELY - 1].step, HELLO, NEW_TOKENS), *popular[LONELY:]]


def record_overtaking(llm: LLM | str = "story") -> dict[tuple[int, tuple[int, int]], Run]:
    """The stream, one request at a time, longest cached prefix first, with each bound and each way to arrive."""
    settings = {"schedule_policy": "lpm", "max_running_requests": 1}
    return {
        (bound, burst): serve(llm, arrivals(*burst), SLOTS, max_overtakes=bound, **settings)
        for bound in BOUNDS
        for burst in BURSTS
    }


def overtakes(run: Run) -> int:
    """How many later requests were admitted before HELLO."""
    admitted = [admission.request for event in run.trace.events for admission in event.admitted]
    return sum(other > LONELY for other in admitted[: admitted.index(LONELY)])


def first_token(shown: list[Moment]) -> int:
    """The step in which HELLO got its first token."""
    return next(moment.step for moment in shown if LONELY in moment.computed)


def overtaking(llm: LLM | str = "story") -> Explorable:
    """max_overtakes and the arrival of the popular prompts → the timeline, and when HELLO gets its first token."""
    runs = record_overtaking(llm)
    shown = {setting: moments(run) for setting, run in runs.items()}
    width = max(map(len, shown.values()))
    latest = max(map(first_token, shown.values()))
    frames = {}
    for (bound, burst), run in runs.items():
        steps = shown[bound, burst]
        frames[BOUNDS.index(bound), BURSTS.index(burst)] = Frame(
            [
                Lanes(
                    "One request runs at a time; the one with the longest cached prefix goes first",
                    width,
                    [Lane(name(i), lane.spans, ends=lane.ends) for i, lane in enumerate(lanes_of(run.trace, steps))],
                    legend=PHASES,
                ),
                Bars(
                    "The step in which HELLO gets its first token",
                    [bound_bar(each, first_token(shown[each, burst]), each == bound) for each in BOUNDS],
                    latest,
                ),
                Numbers("The whole run", numbers(run, steps)),
            ],
            sentence(bound, burst, run, steps),
        )
    return Explorable(
        "How often may a waiting request be overtaken?",
        "Twelve prompts about Lily share their beginning, and HELLO shares nothing with them. Under lpm, the prompt with "
        "the most cached tokens goes first. Look at HELLO's line: how long does it wait, and what does the bound change?",
        [
            Control("max_overtakes", "max_overtakes", list(BOUNDS), start=4),
            Control("arrivals", "prompts about Lily arrive", [arriving(*burst) for burst in BURSTS]),
        ],
        frames,
        height=1300,
    )


def name(request: int) -> str:
    """What a request asks about."""
    if request == LONELY:
        return "HELLO"
    return f"Lily, {TOPICS[request - (request > LONELY)]}"


def arriving(size: int, every: int) -> str:
    return f"{'one' if size == 1 else 'four'} every {'step' if every == 1 else f'{every} steps'}"


def times_of(times: int) -> str:
    return {1: "once", 2: "twice"}.get(times, f"{times} times")


def bound_bar(bound: int, step: int, chosen: bool) -> Bar:
    return Bar(f"max_overtakes {bound}", step, f"step {step}", look="highlight" if chosen else "in-use")


def numbers(run: Run, steps: list[Moment]) -> list[Number]:
    waited = sum(phase == "waiting" for moment in steps for phase in moment.phases.values())
    return [
        Number("steps until all have ended", str(len(steps))),
        Number("HELLO's first token", f"step {first_token(steps)}", strong=True),
        Number("later requests that were admitted before HELLO", str(overtakes(run)), strong=True),
        Number("steps spent waiting, all requests together", str(waited)),
        Number("tokens computed", str(sum(moment.num_tokens for moment in steps))),
    ]


def sentence(bound: int, burst: tuple[int, int], run: Run, steps: list[Moment]) -> str:
    """What there is to see."""
    times, step = overtakes(run), first_token(steps)
    said = f"HELLO is overtaken {times_of(times)}"
    if times == bound:
        said += ", as often as the bound allows. Then it goes first, and"
    else:
        said += ". Then no other request waits, and it"
    way = f"{arriving(*burst).capitalize()}, max_overtakes={bound}"
    return f"{way}: {said} gets its first token in step {step}."
