"""`bench serve`: sessions, servers that fail, and the command. No times."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.processes import EngineFailure
from nanoinfer.bench.results import continued, write_results
from nanoinfer.bench.serve import session as session_module
from nanoinfer.bench.serve.report import format_serve
from nanoinfer.bench.serve.servers import MODEL, NULL_SERVER, ServerSpec, parse_server
from nanoinfer.bench.serve.session import ServeSettings, measure_serve, start_results
from nanoinfer.bench.serve.traffic import Lengths
from nanoinfer.cli.main import main
from nanoinfer.model.loader import resolve_model_path
from tests.helpers.bench_serve import FAKE, GOOD, NEW_TOKENS, Ticking, fake

STORY = resolve_model_path("story")


def small(*servers: ServerSpec, **more: Any) -> ServeSettings:
    """Settings for a quick run."""
    given: dict[str, Any] = {"clients": (1, 3), "shares": (0.5,), "seconds": 0.1, "rounds": 1, "goodput": GOOD, **more}
    return ServeSettings(servers, lengths=Lengths(new_tokens=NEW_TOKENS), **given)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loops have the same number of requests on any machine."""
    Ticking(monkeypatch)


def measured(settings: ServeSettings, path: Path = STORY) -> dict[str, Any]:
    """The results, as a file has them."""
    return json.loads(json.dumps(measure_serve(settings, path, start_results(settings, path))))


# --- servers ---------------------------------------------------------------------------------------------------------


def test_servers_are_named_with_options_and_programs(tmp_path: Path) -> None:
    checkpoint, program = Checkpoint.read(STORY), tmp_path / "program"
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
    command = parse_server(f"llama-server:weights=int8,parallel=4={program}").command(converted, 1, 80)
    assert command[0] == str(program)
    assert str(tmp_path / "model.int8.gguf") in command
    assert "--weights" not in command
    with pytest.raises(EngineFailure, match=r"model\.gguf"):
        parse_server(f"llama-server={program}").command(converted, 1, 80)
    assert parse_server(str(FAKE)).command(checkpoint, 1, 80)[1] == str(FAKE)


@pytest.mark.parametrize("text", ["sglang", "vllm=/nowhere/python", "llama-server", "nanoinfer:int8", "missing.py"])
def test_a_server_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_server(text)


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"clients": (0,)}, "--concurrency 0"),
        ({"clients": ()}, "--concurrency"),
        ({"shares": (0.0,)}, "--rates 0"),
        ({"seconds": float("nan")}, "--seconds nan"),
        ({"servers": [NULL_SERVER, NULL_SERVER]}, "--compare"),
    ],
)
def test_settings_out_of_range_are_named(changes: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        ServeSettings(**changes)


def test_a_model_whose_context_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="1024"):
        start_results(ServeSettings(lengths=Lengths(new_tokens=1000)), STORY)


# --- a session -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_servers_have_every_load_and_the_rates_are_shares_of_what_the_first_one_served() -> None:
    results = measured(small(fake("first"), NULL_SERVER, rounds=2))
    loads = ["closed 1", "closed 3", "open 0.5"]
    found = [(run["round"], run["load"], run["server"]) for run in results["runs"]]
    assert sorted(found) == sorted((r, load, name) for r in (0, 1) for load in loads for name in ("first", "null"))
    closed = [run["requests_s"] for run in results["runs"] if run["server"] == "first" and run["round"] == 0][:2]
    assert results["capacity"] == max(closed) > 0
    rates = {run["rate"] for run in results["runs"] if run["load"] == "open 0.5"}
    assert rates == {0.5 * results["capacity"]}
    assert all(run["finished"] and not run["errors"] for run in results["runs"])
    text = format_serve(results)
    assert "A prompt has 9 tokens, of which first had 4 cached." in text
    assert f"| 50%: {results['capacity'] / 2:.1f}/s" in text


@pytest.mark.slow
def test_other_servers_are_started_by_their_own_programs(tmp_path: Path) -> None:
    program = tmp_path / "program"  # stands for vLLM's Python, and llama-server
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nexec {sys.executable} {FAKE} "$@"\n')
    program.chmod(0o755)
    shutil.copytree(STORY, tmp_path / "story")
    (tmp_path / "story.gguf").touch()
    servers = [parse_server(f"{name}={program}") for name in ("vllm", "llama-server")]
    results = measured(small(*servers, clients=(2,), shares=()), tmp_path / "story")
    assert sorted(run["server"] for run in results["runs"]) == ["llama-server", "vllm"]
    assert all(run.get("finished") for run in results["runs"])
    calls = [line for line in (tmp_path / "calls").read_text().splitlines() if "--port" in line]
    starts = ("-m vllm.entrypoints.cli.main serve", "--model")
    assert [line.startswith(start) for line, start in zip(calls, starts, strict=True)] == [True] * 2


@pytest.mark.slow
def test_a_server_that_fails_is_reported_and_the_others_are_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "WARM_UP_S", 0.0)  # so that the mortal one dies in a run
    troubled = [fake("absent", trouble="start"), fake("angry", trouble="500"), fake("mortal", trouble="die", after=1)]
    results = measured(small(fake("first"), *troubled))
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


def test_if_no_server_starts_the_run_ends() -> None:
    settings = small(fake("absent", trouble="start"))
    with pytest.raises(EngineFailure, match="absent"):
        measure_serve(settings, STORY, start_results(settings, STORY))


@pytest.mark.slow
def test_without_a_closed_loop_of_the_first_server_there_are_no_rates() -> None:
    results = measured(small(fake("angry", trouble="500"), NULL_SERVER))
    errors = [run.get("error", "") for run in results["runs"] if run["load"] == "open 0.5"]
    assert all("angry" in error for error in errors)
    assert "| 50%: 0.0/s" in format_serve(results)


def test_some_errors_are_counted_and_the_first_is_told() -> None:
    results = measured(small(fake("first", trouble="short", every=2), clients=(2,), shares=()))
    (run,) = results["runs"]
    assert run["errors"] > 0
    assert "- errors: first, closed 2: the answer has 3 tokens instead of 4" in format_serve(results)


@pytest.mark.slow
def test_a_stopped_run_continues_where_it_was(tmp_path: Path) -> None:
    settings, file = small(fake("first"), NULL_SERVER), str(tmp_path / "serve.json")
    kept: list[int] = []

    class Stopped(Exception):
        pass

    def keep(results: dict[str, Any]) -> None:
        write_results(file, results)
        kept.append(len(results["runs"]))
        if len(kept) == 3:
            raise Stopped

    with pytest.raises(Stopped):
        measure_serve(settings, STORY, start_results(settings, STORY), keep)
    before = json.loads(Path(file).read_text())["runs"]
    results = measure_serve(settings, STORY, continued(file, start_results(settings, STORY)), keep)
    assert results["runs"][:3] == before
    assert kept == [1, 2, 3, 4, 5, 6]
    for changes, name in (
        ({"seconds": 0.3}, "seconds"),
        ({"servers": [fake("first")]}, "servers"),
        ({"seed": 1}, "seed"),
    ):
        with pytest.raises(ValueError, match=name):
            continued(file, start_results(replace(settings, **changes), STORY))


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "wrong"),
    [
        (["--resume"], "--json"),
        (["--compare", "vllm=/nowhere"], "'/nowhere'"),
        (["--new-tokens", "1"], "--new-tokens 1"),
        (["--rounds", "0"], "--rounds 0"),
        (["--timeout", "0"], "--timeout 0"),
    ],
)
def test_the_command_refuses_what_is_out_of_range(
    argv: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", *argv]) == 2
    assert wrong in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_measures_the_real_server(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "serve.json"
    argv = ["bench", "serve", "--concurrency", "2", "--rates", "0.5", "--seconds", "0.3", "--rounds", "1"]
    assert main([*argv, "--new-tokens", "3", "--json", str(file)]) == 0
    results = json.loads(file.read_text())
    ours = [run for run in results["runs"] if run["server"] == "nanoinfer"]
    assert [run["load"] for run in ours] == ["closed 2", "open 0.5"]
    assert all(run["finished"] and not run["errors"] and run["cached_tokens"] for run in ours)
    assert format_serve(results) in capsys.readouterr().out
