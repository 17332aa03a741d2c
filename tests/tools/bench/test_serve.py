"""`bench serve`: sessions, servers that fail, and the command. No times."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.bench import serve as serve_module
from nanoinfer.bench.load import Lengths
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.processes import EngineFailure
from nanoinfer.bench.serve import Loads, format_serve, measure_serve, start_results
from nanoinfer.bench.servers import MODEL, ServerSpec, parse_server
from nanoinfer.bench.session import Settings
from nanoinfer.cli.main import main
from nanoinfer.model.loader import resolve_model_path
from tests.helpers.bench_serve import FAKE, GOOD, NEW_TOKENS, Ticking, fake

STORY, SHORT = resolve_model_path("story"), Lengths(new_tokens=NEW_TOKENS)


def small(**changes: Any) -> Loads:
    """Loads for a quick run."""
    return Loads(**{"clients": (1, 3), "shares": (0.5,), "seconds": 0.1, "goodput": GOOD, "lengths": SHORT, **changes})


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loops have the same number of requests on any machine."""
    Ticking(monkeypatch)


def measured(loads: Loads, *servers: ServerSpec, rounds: int = 1, path: Path = STORY) -> dict[str, Any]:
    """The results, as a file has them."""
    settings = Settings(servers, rounds)
    return json.loads(json.dumps(measure_serve(path, loads, settings, start_results(path, loads, settings))))


def runs_by_server(results: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    names = results["settings"]["engines"]
    return {name: [run for run in results["runs"] if run["engine"] == name] for name in names}


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


# --- a session -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_servers_have_every_load_and_the_rates_are_shares_of_what_the_first_one_served() -> None:
    results = measured(small(), fake("first"), fake("other"), rounds=2)
    loads = ["closed 1", "closed 3", "open 0.5"]
    found = [(run["round"], run["workload"], run["engine"]) for run in results["runs"]]
    assert sorted(found) == sorted((r, load, name) for r in (0, 1) for load in loads for name in ("first", "other"))
    closed = [run["requests_s"] for run in runs_by_server(results)["first"] if run["round"] == 0][:2]
    assert results["capacity"] == max(closed) > 0
    assert {run.get("rate") for run in results["runs"]} == {None, 0.5 * results["capacity"]}
    assert all(run["finished"] and not run["errors"] for run in results["runs"])
    text = format_serve(results)
    assert "A prompt has 9 tokens, of which 4 were cached." in text
    assert f"| 50%: {results['capacity'] / 2:.1f}/s" in text


@pytest.mark.slow
def test_a_server_that_fails_is_reported_and_the_others_are_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_module, "WARM_UP_S", 0.0)  # so that the mortal one dies in a run
    troubled = [fake("absent", trouble="start"), fake("angry", trouble="500"), fake("mortal", trouble="die", after=1)]
    results = measured(small(), fake("first"), *troubled)
    runs = runs_by_server(results)
    assert not any("error" in run for run in runs["first"])
    assert all("cannot read the model" in run["error"] for run in runs["absent"])
    assert all("no room" in run["error"] for run in runs["angry"])
    text = format_serve(results)
    for words in ("absent", "angry", "no room", "ended with exit code 7 | first line | the last words"):
        assert words in text.partition("FAILED")[2]
    assert "the last words" in capsys.readouterr().err
    assert str(Path.home()) not in json.dumps(results["runs"])


def test_some_errors_are_counted_and_the_first_is_told() -> None:
    results = measured(small(clients=(2,), shares=()), fake("first", trouble="short", every=2))
    assert results["runs"][0]["errors"] > 0
    assert "- errors: first, closed 2: the answer has 3 tokens instead of 4" in format_serve(results)


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_measures_the_real_server(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "serve.json"
    argv = ["bench", "serve", "--concurrency", "2", "--rates", "0.5", "--seconds", "0.3", "--rounds", "1"]
    assert main([*argv, "--new-tokens", "3", "--json", str(file)]) == 0
    results = json.loads(file.read_text())
    ours = results["runs"]
    assert [run["workload"] for run in ours] == ["closed 2", "open 0.5"]
    assert all(run["finished"] and not run["errors"] and run["cached_tokens"] for run in ours)
    assert format_serve(results) in capsys.readouterr().out
