"""A second engine that serves what an explorable has recorded: tests look at it directly."""

from collections.abc import Callable, Iterator
from typing import Any

from nanoinfer import LLM, Engine
from nanoinfer.config import EngineConfig
from nanoinfer.frontends.llm import make_engine
from nanoinfer.requests.sampling_params import SamplingParams
from notebooks.course.explore.runs import CONTEXT, ROWS, Arrival

Recorded = Callable[[Callable[[LLM], Any]], Any]  # of the fixture `recorded`


def live(story: LLM, arrivals: tuple[Arrival, ...], slots: int, **config: Any) -> Iterator[Engine]:
    """A second engine that serves the same, without a trace: yielded after every step."""
    fields = {"max_running_requests": ROWS, "max_total_tokens": slots, "max_context_len": CONTEXT, **config}
    engine, waiting, steps = make_engine(story.model, EngineConfig(**fields)), list(arrivals), 0
    while waiting or engine.has_unfinished():
        while waiting and (waiting[0].step <= steps or not engine.has_unfinished()):
            _, prompt, tokens = waiting.pop(0)
            engine.add_request(prompt, SamplingParams(max_new_tokens=tokens, temperature=0, ignore_eos=True))
        engine.step()
        steps += 1
        yield engine
