"""What an engine tells about itself: stats and the log line of a step."""

import logging
import re
from types import SimpleNamespace
from typing import Any

import pytest

from nanoinfer import SamplingParams
from nanoinfer.engine.stats import RECENT_STEPS, StepMeter
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.kernels import Selection, TorchKernels
from nanoinfer.model.kernels.select import selected
from tests.helpers.engines import Clock, greedy, make_engine, model_of, step

LINE = re.compile(
    r"step=(\d+) mode=(EXTEND|DECODE) reqs=(\d+) tokens=(\d+) running=(\d+) waiting=(\d+) free=(\d+) evictable=(\d+)"
    r" protected=(\d+) retracted=(\d+) ms=(\d+\.\d)"
)


@pytest.mark.parametrize("choice", [Selection("torch", "not cpp: dtype float16; not onednn: dtype float16"), None])
def test_stats_name_what_computes_and_why_nothing_faster_does(choice: Selection | None) -> None:
    engine = make_engine()
    if choice is not None:
        model_of(engine).kernels = selected(TorchKernels(), choice.name, choice.reason)  # type: ignore[attr-defined]
    expected = choice or Selection("CountingModel", "")
    stats = engine.stats()
    assert (stats.kernels, stats.kernels_reason) == (expected.name, expected.reason)
    assert (stats["attention_backend"], stats["attention_reason"]) == ("TorchNativeBackend", "")


def test_every_step_logs_one_line_in_one_format(caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine(rows=2, slots=20, schedule_conservativeness=0.001, chunked_prefill_size=8)
    with caplog.at_level(logging.INFO, logger="nanoinfer.engine"):
        for base in (5, 50):
            engine.add_request([base] * 6, greedy(10))
        while engine.has_unfinished():
            step(engine)
    lines = [LINE.fullmatch(record.getMessage()) for record in caplog.records[1:]]
    assert all(lines)
    logged = [line.groups() for line in lines if line is not None]
    assert [int(line[0]) for line in logged] == list(range(1, len(logged) + 1))
    assert logged[0][1:9] == ("EXTEND", "2", "8", "2", "0", "12", "0", "8")
    assert logged[1][1:4] == ("DECODE", "1", "1")
    assert sum(int(line[9]) for line in logged) == engine.stats().retractions > 0
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_slots_add_up_to_all_there_are_and_each_kind_is_named() -> None:
    engine = make_engine(slots=64, page_size=4)
    engine.add_request(list(range(9)), greedy(2))
    while engine.has_unfinished():
        step(engine)
    engine.add_request([*range(8), 90, 91], greedy(9))
    step(engine)
    step(engine)
    stats = engine.stats()
    assert (stats.protected_slots, stats.evictable_slots, stats.request_slots, stats.free_slots) == (8, 0, 4, 52)
    assert (stats.prompt_tokens, stats.cached_tokens, stats.hit_rate) == (19, 8, 8 / 19)


def test_times_are_those_of_the_engines_clock() -> None:
    clock = Clock()
    engine = make_engine(clock=clock)
    model = model_of(engine)
    seconds = iter((4.0, 1.0, 2.0))

    def slow(*args: object) -> object:
        clock.now += next(seconds)
        return type(model).__call__(model, *args)  # type: ignore[arg-type]

    engine.model_runner.model = slow  # type: ignore[assignment]
    for base in (5, 50):
        engine.add_request([base], greedy(3))
    while engine.has_unfinished():
        step(engine)
    stats = engine.stats()
    assert (stats.extend_step_seconds, stats.decode_step_seconds, stats.longest_step_seconds) == (4.0, 1.5, 4.0)
    assert stats.tokens_per_second == 6 / 7


def test_times_of_several_completions_are_to_the_first_token_of_any_and_to_the_end_of_all() -> None:
    """One runs at a time, one second per step: their tokens come after 1, 2 and 3, 4 and 5, 6 seconds."""
    clock = Clock()
    engine = make_engine(rows=1, clock=clock)
    rid = engine.add_request([5], SamplingParams(max_new_tokens=2, n=3, top_k=1))
    seen = []
    while engine.has_unfinished():
        clock.now += 1
        seen.append(step(engine)[rid])
    assert [output.ttft for output in seen] == [1.0] * 6
    assert [output.latency for output in seen] == [None] * 5 + [6.0]


def a_pass(mode: ForwardMode, tokens: int) -> Any:
    return SimpleNamespace(forward_mode=mode, input_ids=range(tokens))


def test_only_recent_steps_count_for_speed_and_all_for_sums() -> None:
    meter = StepMeter()
    meter.add(a_pass(ForwardMode.EXTEND, 50), 5, 1000.0)
    meter.add(a_pass(ForwardMode.EXTEND, 2), 5, 1000.0)
    for _ in range(RECENT_STEPS):
        meter.add(a_pass(ForwardMode.DECODE, 2), 2, 0.5)
    assert meter.recent() == {
        "tokens_per_second": 4.0,
        "extend_step_seconds": 0.0,
        "decode_step_seconds": 0.5,
        "longest_step_seconds": 0.5,
    }
    assert (meter.extend_steps, meter.decode_steps) == (2, RECENT_STEPS)
