"""A run that was stopped continues where it was; one with other settings is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.bench.session import measure_model
from nanoinfer.bench.settings import find_model, new_results, put_model, resumed_results, write_results
from nanoinfer.cli.main import main
from tests.helpers.fake_sessions import fake_settings

ENGINES: dict[str, dict[str, Any]] = {"ours": {}, "peer": {}}


class Stopped(Exception):
    pass


def stopped_run(file: Path, path: Path, blocks: int, rounds: int = 2, **engines: dict[str, Any]) -> None:
    """A run of two workloads that is stopped after so many workloads; `file` is what it leaves."""
    settings = fake_settings(["offline", "single"], rounds, engines or ENGINES)
    results = new_results(settings)
    kept = []

    def keep(model: dict[str, Any]) -> None:
        put_model(results, model)
        write_results(str(file), results)
        kept.append(model)
        if len(kept) == blocks:
            raise Stopped

    with pytest.raises(Stopped):
        measure_model(path, None, settings, keep=keep)


def continued(file: Path, path: Path, rounds: int = 2, **engines: dict[str, Any]) -> dict[str, Any]:
    settings = fake_settings(["offline", "single"], rounds, engines or ENGINES)
    results = resumed_results(str(file), settings)
    earlier = find_model(results, path.name, "float32")
    put_model(results, measure_model(path, None, settings, earlier))
    return json.loads(json.dumps(results))


def test_what_was_measured_is_kept_and_the_rest_is_measured(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    path, file = checkpoint(), tmp_path / "run.json"
    stopped_run(file, path, blocks=3)
    left = json.loads(file.read_text())["models"][0]["runs"]
    results = continued(file, path)
    (model,) = results["models"]
    assert len(left) == 6
    assert model["runs"][:6] == left, "not measured again"
    assert [(run["round"], run["workload"]) for run in model["runs"][::2]] == [
        (number, workload) for number in (0, 1) for workload in ("offline", "single")
    ]
    assert [engine["name"] for engine in model["engines"]] == ["ours", "peer"]
    digests = {(run["round"], run["workload"]): run["digest"] for run in model["runs"]}
    assert len(set(digests.values())) == 4, "each round has tokens of its own"


def test_a_finished_run_loads_nothing_and_may_get_more_rounds(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    path, file = checkpoint(), tmp_path / "run.json"
    stopped_run(file, path, blocks=4)
    before = json.loads(file.read_text())["models"][0]
    assert len(before["runs"]) == 8
    assert continued(file, path)["models"] == [before], "not even the bandwidth is measured again"
    more = continued(file, path, rounds=3)
    assert more["rounds"] == more["settings"]["rounds"] == 3
    assert len(more["models"][0]["runs"]) == 12


def test_an_engine_that_is_done_is_not_loaded_again(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    path, file = checkpoint(), tmp_path / "run.json"
    settings = fake_settings(["single"], 1, {"ours": {}, "slow": {}}, once=("slow",))
    results = new_results(settings)
    put_model(results, measure_model(path, None, settings))
    write_results(str(file), results)
    again = fake_settings(["single"], 2, {"ours": {}, "slow": {"refuse": True}}, once=("slow",))
    results = resumed_results(str(file), again)
    model = measure_model(path, None, again, results["models"][0])
    assert "error" not in model["engines"][1]


def test_another_version_of_an_engine_is_refused(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    path, file = checkpoint(), tmp_path / "run.json"
    stopped_run(file, path, blocks=1)
    with pytest.raises(ValueError, match=r"peer is python [\d.]+ fake 2\.0 now, but .* ran with python .* fake 1\.0"):
        continued(file, path, ours={}, peer={"release": "2.0"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workloads": ["offline"]}, r"workloads is \['offline'\], but \['offline', 'single'\] in the file"),
        ({"engines": {"ours": {}}}, r"engines is \['ours'\], but \['ours', 'peer'\] in the file"),
        ({"seed": 7}, "seed is 7, but 0 in the file"),
        ({"threads": 5}, "threads is 5, but 1 in the file"),
        ({"busy": 3}, "busy is 3, but 0 in the file"),
        ({"once": ("peer",)}, r"once is \['peer'\], but \[\] in the file"),
        ({"rounds": 1}, "rounds is 1, but 2 in the file"),
    ],
)
def test_settings_that_differ_are_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    file, first = tmp_path / "run.json", {"workloads": ["offline", "single"], "rounds": 2, "engines": ENGINES}
    write_results(str(file), new_results(fake_settings(**first)))
    with pytest.raises(ValueError, match=message):
        resumed_results(str(file), fake_settings(**{**first, **changes}))


def test_another_machine_is_refused(tmp_path: Path) -> None:
    settings = fake_settings(["single"], 1, ENGINES)
    results = new_results(settings)
    results["machine"]["cpu"] = "Another 1000"
    write_results(str(tmp_path / "run.json"), results)
    with pytest.raises(ValueError, match=r"cpu is .*, but Another 1000 in the file"):
        resumed_results(str(tmp_path / "run.json"), settings)


def test_a_file_is_whole_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.json"
    write_results(str(file), {"old": 1})

    class Killed(type(file)):  # type: ignore[misc]
        def replace(self, target: Any) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr("nanoinfer.bench.settings.Path", Killed)
    with pytest.raises(KeyboardInterrupt):
        write_results(str(file), {"new": 2})
    assert json.loads(file.read_text()) == {"old": 1}


@pytest.mark.slow
def test_the_command_continues_a_file(
    checkpoint: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nanoinfer.bench.session.read_bandwidth", lambda threads, size: 25.0)
    file = tmp_path / "run.json"
    argv = ["bench", "--model", str(checkpoint()), "--workloads", "single", "--threads", "1", "--json", str(file)]
    assert main([*argv, "--rounds", "1"]) == 0
    (first,) = json.loads(file.read_text())["models"][0]["runs"]
    assert main([*argv, "--rounds", "2", "--resume"]) == 0
    runs = json.loads(file.read_text())["models"][0]["runs"]
    assert (len(runs), runs[0]) == (2, first)
    assert main([*argv, "--rounds", "2", "--resume", "--seed", "3"]) == 2
    assert "seed is 3, but 0 in the file" in capsys.readouterr().err
    assert main([*argv[:-2], "--resume"]) == 2
    assert "--resume: needs --json FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("settings",), [], "settings is missing or of another kind"),
        (("settings", "rounds"), "x", "settings: is damaged; rounds"),
        (("machine", "cpu"), None, "machine: is damaged; cpu"),
        (("models",), "x", "models is missing or of another kind"),
        (("models", 0), {}, r"models\[0\]: is damaged; name"),
        (("models", 0, "engines"), [{}], r"models\[0\].engines: is damaged; name"),
        (("models", 0, "runs"), [{}], r"models\[0\].runs: is damaged; round"),
    ],
)
def test_a_damaged_file_is_refused_by_what_is_missing(
    place: tuple[Any, ...], value: Any, message: str, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    path, file = checkpoint(), tmp_path / "run.json"
    stopped_run(file, path, blocks=1)
    results: Any = json.loads(file.read_text())
    part = results
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    file.write_text(json.dumps(results))
    with pytest.raises(ValueError, match=message):
        continued(file, path)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_bytes(b"\xff\xfe\0a")
    with pytest.raises(ValueError, match=r"run\.json: this is not JSON"):
        resumed_results(str(file), fake_settings(["single"], 1, ENGINES))


def test_another_checkpoint_of_the_same_name_is_refused(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    path, file = checkpoint(), tmp_path / "run.json"
    stopped_run(file, path, blocks=1)
    results = json.loads(file.read_text())
    real, results["models"][0]["parameters"] = results["models"][0]["parameters"], 1
    file.write_text(json.dumps(results))
    with pytest.raises(ValueError, match=f"parameters is {real}, but 1 where the run is to be continued"):
        continued(file, path)
