"""`bench serve`: sessions, servers that fail, and the command. No times."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.bench.engines import EngineFailure
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.serve import session as session_module
from nanoinfer.bench.serve.client import Exchange
from nanoinfer.bench.serve.conversations import Lengths
from nanoinfer.bench.serve.report import format_serve
from nanoinfer.bench.serve.servers import NULL_SERVER, ServerSpec, parse_server
from nanoinfer.bench.serve.session import Session, measure_serve
from nanoinfer.bench.serve.settings import ServeSettings, continued, start_results
from nanoinfer.bench.serve.start_commands import MODEL
from nanoinfer.bench.serve.traffic import Traffic
from nanoinfer.bench.settings import write_results
from nanoinfer.cli.main import main
from nanoinfer.model.loader import resolve_model_path
from tests.helpers.bench_serve import FAKE, GOOD, NEW_TOKENS, Ticking, fake, pieces_of


def small(*servers: ServerSpec, **more: Any) -> ServeSettings:
    """Settings for a quick run."""
    given: dict[str, Any] = {"clients": (1, 3), "shares": (0.5,), "seconds": 0.1, "rounds": 1, "goodput": GOOD, **more}
    return ServeSettings("story", servers, lengths=Lengths(new_tokens=NEW_TOKENS), **given)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loops have the same number of requests on any machine."""
    Ticking(monkeypatch)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint.read(resolve_model_path("story"))


def measured(settings: ServeSettings, checkpoint: Checkpoint) -> dict[str, Any]:
    """The results, as a file has them."""
    return json.loads(json.dumps(measure_serve(settings, start_results(settings, checkpoint))))


# --- servers ---------------------------------------------------------------------------------------------------------


def test_servers_are_named_with_options_and_programs(checkpoint: Checkpoint, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.touch(mode=0o755)
    vllm = parse_server(f"vllm:max_num_seqs=64,enforce_eager=true={program}")
    assert (vllm.name, vllm.program) == ("vllm:max_num_seqs=64,enforce_eager=true", str(program))
    assert vllm.command(checkpoint, 2, 80)[-3:] == ["--max-num-seqs", "64", "--enforce-eager"]
    assert "PYTHONPATH" not in vllm.environment(2)
    ours = parse_server("nanoinfer:max_running_requests=128").command(checkpoint, 1, 80)
    assert ours[1:4] == ["-m", "nanoinfer", "serve"]
    assert ours[-2:] == ["--max-running-requests", "128"]
    assert ours[ours.index("--served-model-name") + 1] == MODEL
    converted = replace(checkpoint, path=str(tmp_path / "model"))
    (tmp_path / "model.int8.gguf").touch()
    for text in (f"llama-server:weights=int8,parallel=4={program}", f"llamacpp:weights=int8={program}"):
        command = parse_server(text).command(converted, 1, 80)
        assert command[0] == str(program)
        assert str(tmp_path / "model.int8.gguf") in command
        assert "--weights" not in command
        with pytest.raises(EngineFailure, match=r"model\.gguf: not found; make it with"):
            parse_server(text.replace("weights=int8", "flag=1")).command(converted, 1, 80)
    assert parse_server(str(FAKE)).command(checkpoint, 1, 80)[1] == str(FAKE)


def test_each_server_is_asked_for_exactly_as_many_tokens_in_its_own_words() -> None:
    bodies = {
        name: ServerSpec(name, name).body("hi", 5, 2) for name in ("nanoinfer", "vllm", "llama-server", "llamacpp")
    }
    assert all(body["max_tokens"] == 5 and body["temperature"] == 0 and body["stream"] for body in bodies.values())
    assert [name for name, body in bodies.items() if body.get("ignore_eos")] == ["nanoinfer", "vllm", "llama-server"]
    assert bodies["llamacpp"]["logit_bias"] == {"2": -100}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sglang", "must be one of nanoinfer, vllm, llamacpp, llama-server"),
        ("vllm=/nowhere/python", "'/nowhere/python' must be an executable"),
        ("llama-server", "must say where the binary is"),
        ("nanoinfer:int8", "must be option=value"),
        ("missing.py", "must be one of"),
    ],
)
def test_a_server_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_server(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": (0,)}, "--concurrency 0"),
        ({"clients": ()}, "--concurrency"),
        ({"shares": (0.0,)}, "--rates 0"),
        ({"seconds": float("nan")}, "--seconds nan"),
        ({"rounds": 0}, "--rounds 0"),
        ({"threads": 0}, "--threads 0"),
        ({"timeout": 0}, "--timeout 0"),
        ({"servers": [NULL_SERVER, NULL_SERVER]}, "--compare null: given twice"),
    ],
)
def test_settings_out_of_range_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ServeSettings(**changes)


def test_a_model_whose_context_is_too_short_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(ValueError, match="its context is 1024; must be at least"):
        start_results(ServeSettings(lengths=Lengths(new_tokens=1000)), checkpoint)


# --- a session -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_servers_have_every_load_and_the_rates_are_shares_of_what_the_first_one_served(
    checkpoint: Checkpoint,
) -> None:
    results = measured(small(fake("first"), NULL_SERVER, rounds=2), checkpoint)
    loads = ["closed 1", "closed 3", "open 0.5"]
    found = [(run["round"], run["load"], run["server"]) for run in results["runs"]]
    assert sorted(found) == sorted((r, load, name) for r in (0, 1) for load in loads for name in ("first", "null"))
    closed = [run["requests_s"] for run in results["runs"] if run["server"] == "first" and run["round"] == 0][:2]
    assert results["capacity"] == max(closed) > 0
    rates = {run["rate"] for run in results["runs"] if run["load"] == "open 0.5"}
    assert rates == {0.5 * results["capacity"]}
    assert all(run["finished"] and not run["errors"] for run in results["runs"])
    text = format_serve(results)
    assert text.count("| null") == text.count("| first ") == 3
    assert "A prompt has 9 tokens, of which first had 4 cached." in text
    assert f"Open loop, {results['capacity'] / 2:.1f} requests per second (50%" in text


@pytest.mark.slow
def test_other_servers_are_started_by_their_own_programs(checkpoint: Checkpoint, tmp_path: Path) -> None:
    program = tmp_path / "program"  # stands for vLLM's Python, llama-cpp-python's, and llama-server
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nexec {sys.executable} {FAKE} "$@"\n')
    program.chmod(0o755)
    shutil.copytree(resolve_model_path("story"), tmp_path / "story")
    (tmp_path / "story.gguf").touch()
    servers = [parse_server(f"{name}={program}") for name in ("vllm", "llamacpp", "llama-server")]
    settings = replace(small(*servers, clients=(2,), shares=()), model=str(tmp_path / "story"))
    results = measured(settings, Checkpoint.read(tmp_path / "story"))
    assert sorted(run["server"] for run in results["runs"]) == ["llama-server", "llamacpp", "vllm"]
    assert all(run.get("finished") for run in results["runs"])
    calls = [line for line in (tmp_path / "calls").read_text().splitlines() if "--port" in line]
    starts = ("-m vllm.entrypoints.cli.main serve", "-m llama_cpp.server --model", "--model")
    assert [line.startswith(start) for line, start in zip(calls, starts, strict=True)] == [True] * 3


@pytest.mark.slow
def test_a_server_that_fails_is_reported_and_the_others_are_measured(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "WARM_UP_S", 0.0)  # so that the mortal one dies in a run
    troubled = [fake("absent", trouble="start"), fake("angry", trouble="500"), fake("mortal", trouble="die", after=1)]
    results = measured(small(fake("first"), *troubled), checkpoint)
    assert "cannot read the model" in results["failures"]["absent"]
    runs = {name: [run for run in results["runs"] if run["server"] == name] for name in ("first", "absent", "angry")}
    assert not any("error" in run for run in runs["first"])
    assert {run["error"] for run in runs["absent"]} == {"did not start"}
    assert {run["error"] for run in runs["angry"]} == {"500: no room"}
    text = format_serve(results)
    assert "- FAILED: absent: ended with exit code 1 | cannot read the model | is there one?" in text
    assert "- FAILED: angry, closed 1: 500: no room" in text
    assert "the last words" in capsys.readouterr().err
    assert "ended with exit code 7 | first line | the last words" in text
    assert str(Path.home()) not in json.dumps(results["runs"])


def test_if_no_server_starts_the_run_ends(checkpoint: Checkpoint) -> None:
    settings = small(fake("absent", trouble="start"))
    with pytest.raises(EngineFailure, match="absent: ended with exit code 1"):
        measure_serve(settings, start_results(settings, checkpoint))


@pytest.mark.slow
def test_without_a_closed_loop_of_the_first_server_there_are_no_rates(checkpoint: Checkpoint) -> None:
    results = measured(small(fake("angry", trouble="500"), NULL_SERVER), checkpoint)
    errors = {run["error"] for run in results["runs"] if run["load"] == "open 0.5"}
    assert errors == {"no rate is known: angry served nothing in a closed loop"}
    assert "Open loop, no requests per second" in format_serve(results)


def test_some_errors_are_counted_and_the_first_is_told(checkpoint: Checkpoint) -> None:
    results = measured(small(fake("first", trouble="short", every=2), clients=(2,), shares=()), checkpoint)
    (run,) = results["runs"]
    assert run["errors"] > 0
    assert "- errors: first, closed 2: the answer has 3 tokens instead of 4" in format_serve(results)


@pytest.mark.slow
def test_a_stopped_run_continues_where_it_was(checkpoint: Checkpoint, tmp_path: Path) -> None:
    settings, file = small(fake("first"), NULL_SERVER), str(tmp_path / "serve.json")
    fresh = start_results(settings, checkpoint)
    kept: list[int] = []

    class Stopped(Exception):
        pass

    def keep(results: dict[str, Any]) -> None:
        write_results(file, results)
        kept.append(len(results["runs"]))
        if len(kept) == 3:
            raise Stopped

    with pytest.raises(Stopped):
        measure_serve(settings, fresh, keep)
    before = json.loads(Path(file).read_text())["runs"]
    again = continued(file, start_results(settings, checkpoint))
    results = measure_serve(settings, again, keep)
    assert results["runs"][:3] == before
    assert len(results["runs"]) == 6
    assert kept == [1, 2, 3, 4, 5, 6]
    more = replace(settings, rounds=2)
    assert len(measure_serve(more, continued(file, start_results(more, checkpoint)))["runs"]) == 12
    for changes, message in (
        ({"seconds": 0.3}, r"seconds is 0\.3, but 0\.1 in the file"),
        ({"servers": [fake("first")]}, "servers is"),
        ({"seed": 1}, "seed is 1, but 0"),
    ):
        with pytest.raises(ValueError, match=message):
            continued(file, start_results(replace(settings, **changes), checkpoint))
    write_results(file, {**results, "rounds": 2, "settings": more.as_dict()})
    with pytest.raises(ValueError, match="rounds is 1, but 2 in the file"):
        continued(file, start_results(settings, checkpoint))


@pytest.mark.parametrize("content", ["{", "[]", '{"format": "drafts"}', '{"format": "serve"}'])
def test_a_file_that_is_none_of_ours_is_not_continued(content: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"--resume .*file\.json"):
        continued(str(file), start_results(small(NULL_SERVER), checkpoint))


def test_a_run_in_which_the_client_stood_still_is_measured_again(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(fake("first"), clients=(1,), shares=())
    session = Session(settings)
    stalls, seeds = iter([5.0, 0.0]), []

    def load(number: int, cell: Any, spec: Any, server: Any, rate: Any, seconds: float, attempt: int = 1) -> Traffic:
        seeds.append(attempt)
        traffic = Traffic(1.0, 0.0, [Exchange(0.0, [(0.5, b"".join(pieces_of(NEW_TOKENS)))], 0.5)])
        traffic.wall_s, traffic.stall_s = 1.0, next(stalls)
        return traffic

    monkeypatch.setattr(session, "_load", load)
    found = session.measure(0, settings.cells[0], settings.servers[0], None, None)  # type: ignore[arg-type]
    assert (found["attempts"], found["stall_s"], seeds) == (2, 0.0, [1, 2])


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--resume"], "--resume: needs --json"),
        (["--compare", "vllm=/nowhere"], "'/nowhere' must be an executable"),
        (["--goodput", "fast"], "--goodput fast"),
        (["--streams", "3"], "--streams: goes with --own-cost only"),
        (["--own-cost", "--rates", "0.5"], "--rates: does not go with --own-cost"),
        (["--own-cost", "--streams", "0"], "--streams 0: must be in 1..256"),
        (["--new-tokens", "1"], "--new-tokens 1: must be in 2"),
    ],
)
def test_the_command_refuses_what_is_out_of_range(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", *argv]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_measures_the_real_server(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "serve.json"
    argv = ["bench", "serve", "--concurrency", "2", "--rates", "0.5", "--seconds", "0.3", "--rounds", "1"]
    assert main([*argv, "--new-tokens", "3", "--json", str(file)]) == 0
    results = json.loads(file.read_text())
    ours = [run for run in results["runs"] if run["server"] == "nanoinfer"]
    assert [run["load"] for run in ours] == ["closed 2", "open 0.5"]
    assert all(run["finished"] and not run["errors"] and run["cached_tokens"] for run in ours)
    out = capsys.readouterr().out
    for text in ("Closed loop, 2 clients", "Open loop", "nanoinfer", "null", "TTFT p50 ms"):
        assert text in out
