"""The live page's tape: the last minutes of a watched engine as a file, bounded, and secret where prompts are."""

import json
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import Engine, SamplingParams
from nanoinfer.server.live.limits import Limits
from nanoinfer.server.live.tape import Tape, document
from nanoinfer.trace import Trace, record
from nanoinfer.trace.recorder import recorder_of
from tests.helpers.engines import Clock, greedy, make_engine, serve
from tests.helpers.traces import assert_same


def taped(limits: Limits | None = None, **options: Any) -> tuple[Engine, Tape]:
    engine = make_engine(slots=96, **options)
    return engine, Tape(engine, limits or Limits(), lambda engine: None)


def read(tape: Tape, folder: Path, show_prompts: bool = True) -> Trace:
    """What somebody who saves the file and opens it gets."""
    trace = tape.trace()
    assert trace is not None
    (folder / "trace.json").write_text(document(trace, show_prompts), encoding="utf-8")
    return Trace.load(folder / "trace.json")


@pytest.mark.parametrize("options", [{}, {"drafter": "ngram"}, {"host_cache_tokens": 128}])
def test_a_tape_is_a_trace_of_what_the_engine_has_and_begins_anew_when_it_is_full(
    options: dict[str, Any], tmp_path: Path
) -> None:
    engine, tape = taped(Limits(tape_steps=7), rows=3, chunked_prefill_size=5, adaptive_drafts=False, **options)
    kept = []
    for i, prompt in enumerate(("abcdefgh", "abcxyz", "abcdqr", "zzzzzzzz", "abcdefghijk", "klm") * 2):
        params = SamplingParams(max_new_tokens=9, temperature=float(i % 2), seed=1, n=1 + i % 2)
        engine.add_request(prompt, params, extra_key=[None, "a"][i % 2])
        if i == 4:
            engine.pause(next(iter(engine.open_requests.groups)))
        if i == 8:
            engine.flush_cache()
        for _ in range(3):
            tape.keep_up()
            engine.step()
        trace = read(tape, tmp_path)
        kept.append(len(trace))
        assert_same(trace, engine)
    assert kept != sorted(kept)
    assert max(kept) <= 7 + 3, "a step of the engine may be several passes"


def test_a_file_is_for_both_programs(tmp_path: Path) -> None:
    engine, tape = taped(clock=Clock())
    tape.keep_up()
    serve(engine, "abcdef", max_new_tokens=3)
    trace = read(tape, tmp_path)
    assert trace.text(0) == "abcdefghi"
    written = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    trace.to_perfetto(tmp_path / "perfetto.json")
    assert written["traceEvents"] == json.loads((tmp_path / "perfetto.json").read_text())["traceEvents"]
    assert (tmp_path / "trace.json").read_text(encoding="utf-8").startswith('{"traceEvents":[')


def saved(prompts: tuple[str, ...], key: str, tmp_path: Path) -> bytes:
    """The file of a run with drafts and a step that fails, whose error quotes a prompt."""
    engine, tape = taped(drafter="ngram", adaptive_drafts=False, clock=Clock())
    for prompt in prompts:
        engine.add_request(prompt, greedy(6), extra_key=key)
    engine.step()
    engine.step()
    tape.keep_up()  # it begins with outputs
    model, engine.model_runner.model = (
        engine.model_runner.model,
        lambda *_: (_ for _ in ()).throw(RuntimeError(prompts[0])),
    )
    with pytest.raises(RuntimeError):
        engine.step()
    engine.model_runner.model = model
    serve(engine, prompts[1], max_new_tokens=4)
    trace = read(tape, tmp_path, show_prompts=False)
    assert {event.error for event in trace.events} == {None, "RuntimeError"}
    return (tmp_path / "trace.json").read_bytes()


def test_without_show_prompts_not_a_byte_depends_on_what_was_written(tmp_path: Path) -> None:
    one = saved(("abcdef", "abcxyz"), "secret", tmp_path)
    assert one == saved(("ghijkl", "ghiopq"), "other", tmp_path)
    assert b'"key 1"' in one


def test_without_show_prompts_drafts_are_accepted_as_they_were(tmp_path: Path) -> None:
    engine, tape = taped(drafter="ngram", adaptive_drafts=False)
    tape.keep_up()
    for prompt in ("abcabcabc", "abcdefabcxyzabc"):
        serve(engine, prompt, max_new_tokens=8)
    shown, hidden = read(tape, tmp_path), read(tape, tmp_path, show_prompts=False)
    assert [event.accepted for event in hidden.events] == [event.accepted for event in shown.events]
    assert sum(event.drafted - event.accepted for event in shown.events) > 0
    assert {token for request in hidden.requests for token in request.prompt} == {0}


def test_another_recording_takes_the_tapes_place_and_the_tape_begins_anew() -> None:
    engine, tape = taped()
    tape.keep_up()
    serve(engine, "abc", max_new_tokens=2)
    with record(engine) as trace:
        tape.keep_up()
        serve(engine, "xyz", max_new_tokens=3)
        assert len(trace) == 3
        found = tape.trace()
        assert found is not None
        assert found.num_steps == 3, "what the other recording has"
    assert tape.trace() is None
    tape.keep_up()
    serve(engine, "klm", max_new_tokens=2)
    found = tape.trace()
    assert found is not None
    assert found.num_steps == 2


def test_a_tape_lasts_only_so_long() -> None:
    clock = Clock()
    engine, tape = taped(Limits(tape_seconds=10), clock=clock)
    tape.keep_up()
    first = recorder_of(engine)
    clock.now += 9
    tape.keep_up()
    assert recorder_of(engine) is first
    clock.now += 1
    tape.keep_up()
    assert recorder_of(engine) is not first


def test_nothing_is_left_of_it_when_nobody_watches() -> None:
    engine, tape = taped()
    before = {name: dict(vars(owner)) for name, owner in (("engine", engine), ("scheduler", engine.scheduler))}
    tape.keep_up()
    tape.stop()
    tape.stop()
    assert before == {"engine": vars(engine), "scheduler": vars(engine.scheduler)}
    assert recorder_of(engine) is None
    assert tape.trace() is None


def test_passes_are_told_whoever_makes_them_and_whoever_records() -> None:
    engine, told = make_engine(), []
    tape = Tape(engine, Limits(tape_steps=3), lambda engine: told.append(engine.last_batch.forward_mode.name))
    serve(engine, "abc", max_new_tokens=2)
    tape.keep_up()
    serve(engine, "abc", max_new_tokens=2)
    assert told == ["EXTEND", "DECODE"]
    with record(engine):
        tape.keep_up()
        tape.keep_up()
        serve(engine, "xyz", max_new_tokens=2)
        assert told == ["EXTEND", "DECODE"] * 2
    for _ in range(3):
        tape.keep_up()
        serve(engine, "klm", max_new_tokens=2)
    assert told == ["EXTEND", "DECODE"] * 5
    tape.stop()
    serve(engine, "abc", max_new_tokens=2)
    assert len(told) == 10
