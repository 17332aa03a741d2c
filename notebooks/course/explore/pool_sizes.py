"""What happens when the pool is small? Requests wait, cached tokens are evicted, and requests are retracted."""

from nanoinfer.frontends.llm import LLM
from nanoinfer.trace.phases import WAITING
from nanoinfer.viz.words import count
from notebooks.course.explore.control import Control
from notebooks.course.explore.explorable import Explorable, Frame
from notebooks.course.explore.panels.lanes import Flag, Lanes
from notebooks.course.explore.panels.numbers import Number, Numbers
from notebooks.course.explore.runs import Arrival, Moment, Run, moments, serve
from notebooks.course.explore.shown import NAMES, lanes_of, look_of, occupancy, prompts_note
from notebooks.course.prompts import BEAR, FOX, HELLO, RIVER

SIZES = (40, 48, 56, 64, 80, 112)
BOLD = 0.1  # schedule_conservativeness: admission sets little aside, so that requests meet in a pool that is too small
ARRIVALS = (Arrival(0, FOX, 20), Arrival(0, BEAR, 16), Arrival(2, RIVER, 12), Arrival(5, HELLO, 14))
PHASES = (
    ("waiting", "waits"),
    ("extend", "extends (how many tokens)"),
    ("decode", "decodes"),
    ("idle", "running, not in this pass"),
    ("retracted", "retracted, waits again"),
)


def record_pool_sizes(llm: LLM | str = "story") -> dict[int, Run]:
    """The same requests, served from pools of each size."""
    return {size: serve(llm, ARRIVALS, size, schedule_conservativeness=BOLD) for size in SIZES}


def pool_sizes(llm: LLM | str = "story") -> Explorable:
    """Slots in the pool → what every request does in every step, the pool's occupancy above, and where it ran out."""
    runs = record_pool_sizes(llm)
    steps = {size: moments(run) for size, run in runs.items()}
    width = max(map(len, steps.values()))
    frames = {}
    for i, (size, run) in enumerate(runs.items()):
        shown = steps[size]
        looks = [*((look_of(k), f"request {k}'s") for k in range(len(ARRIVALS))), ("locked", NAMES["locked"])]
        frames[(i,)] = Frame(
            [
                Lanes(
                    f"Four requests and a pool of {size} slots, step by step",
                    width,
                    lanes_of(run.trace, shown),
                    occupancy(shown, size, width),
                    legend=[*looks, ("tree", NAMES["tree"]), ("free", "free"), *PHASES],
                    flags=[Flag(moment.step - 1, cause(moment)) for moment in shown if moment.retracted],
                    note=prompts_note(run.trace),
                ),
                Numbers("The whole run", numbers(run, shown)),
            ],
            sentence(size, shown),
        )
    return Explorable(
        "What happens when the pool is too small?",
        "Each column is one step. The strip on top shows how many slots each request and the tree hold after it. "
        "Look at the marks (!): there the running requests needed more slots than were free or evictable, and one of them "
        "had to give way.",
        [Control("slots", "slots in the pool", list(SIZES), start=2)],
        frames,
        height=1220,
    )


def cause(moment: Moment) -> str:
    """Why requests were retracted in this step."""
    room = moment.room
    return (
        f"step {moment.step}: the next pass needs {count(room.needed, 'slot')}, {room.obtainable or 'none'} available; "
        f"{' and '.join(f'request {i}' for i in moment.retracted)} retracted"
    )


def numbers(run: Run, shown: list[Moment]) -> list[Number]:
    stats, computed = run.stats[-1], sum(moment.num_tokens for moment in shown)
    waited = sum(moment.phases.get(i) == WAITING for moment in shown for i in range(len(ARRIVALS)))
    return [
        Number("steps until all have ended", str(len(shown)), strong=True),
        Number("retractions", str(stats.retractions), strong=True),
        Number("steps spent waiting for the first admission", str(waited)),
        Number("cached tokens evicted", str(sum(moment.evicted for moment in shown))),
        Number("tokens computed", str(computed)),
    ]


def sentence(size: int, shown: list[Moment]) -> str:
    """What there is to see."""
    retracted = [moment for moment in shown if moment.retracted]
    waiting = sorted({i for moment in shown for i, phase in moment.phases.items() if phase == WAITING})
    evicted = sum(moment.evicted for moment in shown)
    said = []
    if retracted:
        first, had = retracted[0], retracted[0].room.obtainable
        said.append(
            f"In step {first.step} the running requests need {count(first.room.needed, 'slot')} for their next tokens, and "
            f"{f'only {had}' if had else 'none'} {'is' if had == 1 else 'are'} available, even with eviction: "
            f"{' and '.join(f'request {i}' for i in first.retracted)} gives back its slots and waits."
        )
        if len(retracted) > 1:
            said.append(f"It happens again in step {retracted[1].step}.")
    if waiting:
        said.append(f"{' and '.join(f'Request {i}' for i in waiting)} cannot even start until others have ended.")
    if evicted and not retracted:
        said.append(f"No request has to give way: eviction of {count(evicted, 'cached token')} makes the room.")
    if not said:
        said.append(f"{size} slots are enough: no request waits, none is retracted, and nothing is evicted.")
    return " ".join(said)
