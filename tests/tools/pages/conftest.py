"""What several of these files look at: a run of the trace player, and interactive figures, recorded once."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from nanoinfer import LLM
from nanoinfer.config import EngineConfig
from nanoinfer.engine.engine import Engine
from nanoinfer.llm import make_engine as model_engine
from nanoinfer.sampling_params import SamplingParams
from nanoinfer.viz.trace import Trace, record
from notebooks.course.explore import (
    Bar,
    Bars,
    Cell,
    CellRow,
    Cells,
    Control,
    Frame,
    InteractiveFigure,
    Lane,
    Lanes,
    Node,
    Number,
    Numbers,
    Span,
    Strip,
    Tree,
)
from notebooks.course.explore.runs import CONTEXT, ROWS, Arrival
from notebooks.course.explore.sampling import sampling
from notebooks.course.prompts import FOX
from tests.helpers.engines import greedy, make_engine

T = TypeVar("T")
Recorded = Callable[[Callable[[LLM], Any]], Any]  # of the fixture `recorded`
PROMPT = FOX + " One day she found a"
SLOTS, NAMES = (4, 8, 16), ("few", "many")


def sampled(llm: LLM) -> InteractiveFigure:
    return sampling(llm, PROMPT)


def live(story: LLM, arrivals: tuple[Arrival, ...], slots: int, **config: Any) -> Iterator[Engine]:
    """A second engine that serves the same, without a trace: yielded after every step."""
    fields = {"max_running_requests": ROWS, "max_total_tokens": slots, "max_context_len": CONTEXT, **config}
    engine, waiting, steps = model_engine(story.model, EngineConfig(**fields)), list(arrivals), 0
    while waiting or engine.has_unfinished():
        while waiting and (waiting[0].step <= steps or not engine.has_unfinished()):
            _, prompt, tokens = waiting.pop(0)
            engine.add_request(prompt, SamplingParams(max_new_tokens=tokens, temperature=0, ignore_eos=True))
        engine.step()
        steps += 1
        yield engine


@pytest.fixture(scope="session")
def run() -> Trace:
    """Chunks, a split, evictions, a retraction, an abort and a pause."""
    engine: Engine = make_engine(rows=3, slots=32, chunked_prefill_size=6, schedule_conservativeness=0.1)
    with record(engine) as trace:
        ids = [engine.add_request([97, 98, 99, 100, 101 + i], greedy(12)) for i in range(3)]
        engine.add_request("abcdefabcdef", greedy(6), extra_key="lora")
        for _ in range(12):
            engine.step()
        engine.abort(ids[0])
        engine.pause(ids[1])
        engine.step()
        engine.step()
        engine.resume(ids[1])
        while engine.has_unfinished():
            engine.step()
    return trace


@pytest.fixture(scope="session")
def page_path(run: Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of that run."""
    path = tmp_path_factory.mktemp("player") / "run.html"
    run.player().save(path)
    return path


@pytest.fixture(scope="session")
def recorded(story: LLM) -> Callable[[Callable[[LLM], T]], T]:
    """`recorded(batching)` → what that function records with the bundled model, recorded once."""
    made: dict[Callable[[LLM], T], T] = {}

    def get(make: Callable[[LLM], T]) -> T:
        if make not in made:
            made[make] = make(story)
        return made[make]

    return get


def panels(slots: int, name: str) -> list[Any]:
    """One panel of each kind; the last never changes."""
    used = slots // 2 + (name == "many")
    before = Node("", key="r", children=[Node("abcd", "0..3", 1, key="a")])
    after = [Node("cd", "2..3", 1, was="a"), Node("xy", "8..9", mark="new")]
    return [
        Bars("Bars", [Bar("used", used, f"{used} slots"), Bar("cut", 0, "cut", True, before=2)], most=16),
        Cells(
            "Cells",
            [CellRow("row 0", [Cell("r0", str(i)) for i in range(used)] + [Cell()] * (slots - used))],
            [("r0", "request 0")],
        ),
        Lanes(
            "Lanes",
            4,
            [Lane("request 0", [Span(0, 1, "waiting"), Span(1, 4, "decode")], "r0", 4)],
            Strip("slots", slots, [[("r0", min(used, step))] for step in range(4)]),
            at=2,
            legend=[("decode", "decode"), ("r0", "held by request 0")],
        ),
        Tree("Tree", Node("", children=[Node("ab", "0..1", 1, "split", was="a", children=after)]), before),
        Numbers("Numbers", [Number("always", "the same"), Number("long", "a long sentence that takes space")]),
    ]


def make(**changes: Any) -> InteractiveFigure:
    controls = [Control("slots", "slots", SLOTS, start=1), Control("name", "how many", NAMES)]
    given: dict[str, Any] = {"title": "Which?", "intro": "Look.", "controls": controls}
    given["show"] = lambda slots, name: Frame(panels(slots, name), f"{slots} slots, {name}.")
    return InteractiveFigure(**given | changes)
