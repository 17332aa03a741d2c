"""How small may the pool be, how much should be set aside, and who gives way? Requests wait, or are retracted, by these."""

from collections.abc import Callable, Sequence
from itertools import product
from unittest.mock import patch

from nanoinfer.llm import LLM
from nanoinfer.requests.req import Req
from nanoinfer.scheduler import scheduler
from nanoinfer.scheduler.retraction import INITIAL_RATIO, first_to_retract
from nanoinfer.viz.trace.phases import RETRACTED, WAITING
from nanoinfer.viz.words import count
from notebooks.course.explore import Bars, Control, Flag, Frame, InteractiveFigure, Lanes, Number, Numbers, bars_of
from notebooks.course.explore.runs import (
    NAMES,
    Arrival,
    Moment,
    Run,
    lanes_of,
    look_of,
    moments,
    occupancy,
    prompts_note,
    serve,
)
from notebooks.course.prompts import BEAR, FOX, HELLO, RIVER

SIZES = (40, 48, 56, 64, 80)
# The share that admission sets aside at first → the schedule_conservativeness that begins with it. Retractions raise it.
SHARES = {0: 1e-3, 0.5: 0.5 / INITIAL_RATIO, 1: 11.0}
RULES: dict[str, Callable[[Sequence[Req]], Req]] = {
    "fewest output tokens": first_to_retract,
    "first to arrive": lambda reqs: min(reqs, key=lambda req: req.ticket),
    "most slots": lambda reqs: max(reqs, key=lambda req: (req.allocated_len, req.ticket)),
}
POLICY = "fcfs"  # in order of arrival: other orders come only in the next notebook
ARRIVALS = (Arrival(0, FOX, 20), Arrival(0, BEAR, 16), Arrival(2, RIVER, 12), Arrival(5, HELLO, 14))
PHASES = (
    ("waiting", "waits"),
    ("extend", "extends (how many tokens)"),
    ("decode", "decodes"),
    ("idle", "running, not in this pass"),
    ("retracted", "retracted, waits again"),
)
Setting = tuple[int, float, str]


def record_pool_sizes(llm: LLM) -> dict[Setting, Run]:
    """The same requests, served from pools of each size, with each share set aside at first, retracted by each rule."""
    runs = {}
    for (name, rule), size, share in product(RULES.items(), SIZES, SHARES):
        with patch.object(scheduler, "first_to_retract", rule):
            settings = {"schedule_policy": POLICY, "schedule_conservativeness": SHARES[share]}
            runs[size, share, name] = serve(llm, ARRIVALS, size, **settings)
    return runs


def pool_sizes(llm: LLM) -> InteractiveFigure:
    """Slots in the pool, share set aside and who gives way → what every request does in every step, the pool's occupancy
    above, where it ran out, and how many steps each share and each rule take."""
    runs = record_pool_sizes(llm)
    steps = {setting: moments(run) for setting, run in runs.items()}
    width = max(map(len, steps.values()))
    looks = [*((look_of(k), f"request {k}'s") for k in range(len(ARRIVALS))), ("locked", NAMES["locked"])]

    def bars(title: str, chosen: str, others: dict[str, Setting]) -> Bars:
        texts = {name: (len(steps[each]), steps_text(runs[each], len(steps[each]))) for name, each in others.items()}
        return Bars(title, bars_of(texts, chosen), width)

    def show(size: int, share: float, rule: str) -> Frame:
        run, shown = runs[size, share, rule], steps[size, share, rule]
        shares = {percent_of(each): (size, each, rule) for each in SHARES}
        panels = [
            Lanes(
                f"Four requests and a pool of {size} slots, step by step",
                width,
                lanes_of(run.trace, shown),
                occupancy(shown, size, width),
                legend=[*looks, ("tree", NAMES["tree"]), ("free", "free"), *PHASES],
                flags=[Flag(moment.step - 1, cause(moment)) for moment in shown if moment.retracted],
                note=prompts_note(run.trace),
            ),
            bars("Steps until all have ended, by the share set aside", percent_of(share), shares),
            bars("The same, by who gives way", rule, {each: (size, share, each) for each in RULES}),
            Numbers("The whole run", numbers(run, shown)),
        ]
        return Frame(panels, sentence(size, share, shown))

    return InteractiveFigure(
        "How small may the pool be, how much should be set aside, and who gives way?",
        "Each column is one step. The strip on top shows how many slots each request and the tree hold after it. "
        "At a mark (!) the running requests needed more slots than were free or evictable, so one of them was retracted: "
        "choose which. The share says how much of what a request may still produce is set aside when another one asks "
        "to be admitted.",
        [
            Control("slots", "slots in the pool", list(SIZES), start=2),
            Control("share", "share set aside at first", list(SHARES), [percent_of(share) for share in SHARES]),
            Control("rule", "who gives way", [*RULES]),
        ],
        show,
        height=1570,
    )


def percent_of(share: float) -> str:
    return f"{100 * share:.0f} %"


def steps_text(run: Run, steps: int) -> str:
    retractions = run.stats[-1].retractions
    return f"{steps} steps" + (f", {count(retractions, 'retraction')}" if retractions else "")


def cause(moment: Moment) -> str:
    """Why requests were retracted in this step."""
    room = moment.room
    return (
        f"step {moment.step}: the next pass needs {count(room.needed, 'slot')}, {room.obtainable or 'none'} available; "
        f"{' and '.join(f'request {i}' for i in moment.retracted)} retracted"
    )


def numbers(run: Run, shown: list[Moment]) -> list[Number]:
    stats, computed = run.stats[-1], sum(moment.num_tokens for moment in shown)
    waited, stopped = (
        sum(phase == each for moment in shown for phase in moment.phases.values()) for each in (WAITING, RETRACTED)
    )
    return [
        Number("steps until all have ended", str(len(shown)), strong=True),
        Number("retractions", str(stats.retractions), strong=True),
        Number("steps spent waiting for the first admission", str(waited)),
        Number("steps spent waiting again, in the middle of an answer", str(stopped)),
        Number("tokens computed", str(computed)),
    ]


def sentence(size: int, share: float, shown: list[Moment]) -> str:
    """What there is to see."""
    retracted = [moment for moment in shown if moment.retracted]
    if retracted:
        said = f"In {cause(retracted[0])}." + " It happens again." * (len(retracted) > 1)
    elif any(WAITING in moment.phases.values() for moment in shown):
        said = "No request has to give way, but some must wait before they start."
    else:
        said = "No request waits, and none has to give way."
    return f"With {size} slots and {percent_of(share)} set aside: {len(shown)} steps. {said}"
