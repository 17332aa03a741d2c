"""`python -m nanoinfer simulate`: runs, files of results, tables and pictures."""

from pathlib import Path

import pytest

from nanoinfer.cli.main import main
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.simulate.sweep import read_results

SHORT = ["--seconds", "2", "--rate", "8", "--slots", "20000", "--trace", "shared"]


def simulate(*words: object) -> int:
    return main(["simulate", *map(str, words)])


def test_it_prints_a_line_per_policy_and_writes_and_draws_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, figure = tmp_path / "runs.json", tmp_path / "runs.png"
    assert (
        simulate("--replicas", 2, 3, "--policy", "prefix", "round-robin", *SHORT, "--out", out, "--figure", figure) == 0
    )
    printed = capsys.readouterr().out
    content = read_results(str(out))
    assert list(content["runs"]) == ["2 prefix", "2 round-robin", "3 prefix", "3 round-robin"]
    assert all(f"| {name} " in printed for name in content["runs"])
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert simulate("show", "--out", out, "--figure", figure) == 0
    assert capsys.readouterr().out in printed


def test_processes_give_the_same_results(tmp_path: Path) -> None:
    words = ["sweep", "--replicas", 1, 2, "--policy", "round-robin", *SHORT]
    for count in (1, 2):
        assert simulate(*words, "--processes", count, "--out", tmp_path / f"{count}.json") == 0
    assert read_results(str(tmp_path / "1.json")) == read_results(str(tmp_path / "2.json"))


def test_a_policy_under_which_nothing_ends_is_told_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, figure = tmp_path / "sweep.json", tmp_path / "sweep.png"
    words = [
        "--seconds",
        0.02,
        "--warm-up",
        0.01,
        "--rate",
        200,
        "--slots",
        20_000,
        "--policy",
        "prefix",
        "round-robin",
    ]
    assert simulate("sweep", "--replicas", 1, *words, "--out", out, "--figure", figure) == 0
    printed = capsys.readouterr().out
    assert "2/2 1 round-robin: no measured request has ended" in printed
    assert printed.count("|        0 |    – |") == 2
    assert {run["requests"] for run in read_results(str(out))["runs"].values()} == {0}


def test_all_traces_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--trace", "help") == 0
    assert "mooncake: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trace", "nothing"], "trace='nothing'"),
        (["--policy", "magic"], "policy='magic'"),
        (["--costs", "abacus"], "costs='abacus'"),
        (["--replicas", "0"], "replicas=0"),
        (["show"], "show: needs --out"),
        (["calibrate"], "calibrate: needs --out"),
        (["--processes", "0"], "--processes 0"),
        (["--out", "/nowhere/at/all.json"], "/nowhere/at"),
        (["--warm-up", "9", "--seconds", "3"], "warm_up=9.0"),
    ],
)
def test_what_cannot_be_simulated_is_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(*words) == 2
    assert message in capsys.readouterr().err


def test_costs_that_were_measured_are_used(tmp_path: Path) -> None:
    found = []
    for name, factor in (("fast", 1), ("slow", 10)):
        PassCosts(1e-3 * factor, 1e-6 * factor, 1e-5, 1e-8).save(tmp_path / name)
        out = tmp_path / f"{name}.json"
        assert simulate("--replicas", 1, "--policy", "prefix", *SHORT, "--costs", tmp_path / name, "--out", out) == 0
        found.append(read_results(str(out))["runs"]["1 prefix"]["ttft_mean"])
    assert 5 < found[1] / found[0] < 20


def test_another_file_is_no_file_of_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.json").write_text("{}")
    assert simulate("show", "--out", tmp_path / "other.json") == 2
    assert "other.json" in capsys.readouterr().err
