"""`python -m nanoinfer simulate`: runs, files of results, tables and pictures; and real replicas for comparison."""

import json
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.cli.main import main
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.simulate.figure import draw
from nanoinfer.cluster.simulate.results import Results, read_results
from nanoinfer.cluster.simulate.router_speed import router_speed
from nanoinfer.cluster.simulate.table import table
from nanoinfer.cluster.simulate.traces import make_trace
from nanoinfer.cluster.simulate.validate import THINK_SCALE, Case, standard_cases

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
    content = read_results(out)
    assert list(content["runs"]) == ["2 prefix", "2 round-robin", "3 prefix", "3 round-robin"]
    assert all(f"| {name} " in printed for name in content["runs"])
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert {run["level"] for run in content["runs"].values()} == {"exact"}


def test_a_run_that_was_stopped_goes_on_from_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs.json"
    assert simulate("--replicas", 2, "--policy", "round-robin", *SHORT, "--out", out) == 0
    content = json.loads(out.read_text())
    content["runs"]["2 round-robin"]["hit_rate"] = 0.125  # to see that it is not computed again
    out.write_text(json.dumps(content))
    again = ["--replicas", 2, "--policy", "round-robin", "least-loaded", *SHORT, "--out", out, "--resume"]
    assert simulate(*again) == 0
    assert list(read_results(out)["runs"]) == ["2 round-robin", "2 least-loaded"]
    assert "12.5 %" in capsys.readouterr().out
    assert simulate(*again, "--seed", "7") == 2
    assert "was made with seed=0, now it is 7" in capsys.readouterr().err


@pytest.mark.slow
def test_sweeps_and_both_levels_and_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sweep.json"
    assert simulate("sweep", "--replicas", 1, 40, "--policy", "prefix", *SHORT, "--out", out) == 0
    assert {run["level"] for run in read_results(out)["runs"].values()} == {"blocks"}
    capsys.readouterr()
    assert simulate("show", "--out", out, "--figure", tmp_path / "sweep.png") == 0
    assert "| 40 prefix " in capsys.readouterr().out
    assert simulate("levels", "--replicas", 2, *SHORT, "--out", out) == 0
    assert {run["level"] for run in read_results(out)["runs"].values()} == {"exact", "blocks"}


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
    assert {run["requests"] for run in read_results(out)["runs"].values()} == {0}


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
        (["--resume"], "--resume"),
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
        found.append(read_results(out)["runs"]["1 prefix"]["ttft_mean"])
    assert 5 < found[1] / found[0] < 20


def test_costs_that_another_machine_has_fitted_differ_in_the_last_digits_only(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    Results(path, {"costs": {"a": 1.3160217774716692e-05, "source": "x"}, "slots": 3}).once("one", lambda: {"hits": 1})
    assert Results(path, {"costs": {"a": 1.3160217774716701e-05, "source": "x"}, "slots": 3}, resume=True).runs
    for other in ({"a": 1.317e-05, "source": "x"}, {"a": 1.3160217774716692e-05, "source": "y"}, {"source": "x"}):
        with pytest.raises(ValueError, match="was made with costs="):
            Results(path, {"costs": other, "slots": 3}, resume=True)


def test_another_file_is_no_file_of_results(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match=r"other\.json"):
        Results(tmp_path / "other.json", {}, resume=True)


def test_the_routers_speed_is_measured_by_the_size_of_its_index() -> None:
    costs = PassCosts(2e-3, 1e-5, 2e-5, 2e-8)
    small, large = (router_speed(4, prompts, costs, choices=5) for prompts in (2, 20))
    assert (small.blocks, large.blocks) == (37 + 4 * 2 * 56, 37 + 4 * 20 * 56)  # 600 tokens are shared
    assert 0 < small.choice_us < 1e6 / small.choices_per_second
    assert 0 < small.hash_us < 1e6 / small.choices_per_second
    assert large.blocks_per_second > 0


def test_the_picture_and_the_table_of_routers(tmp_path: Path) -> None:
    runs: dict[str, Any] = {
        "one router": router_speed(2, 2, PassCosts(2e-3, 1e-5, 2e-5, 2e-8), choices=2).as_dict(),
        **{
            f"8 replicas, {count} routers, {index}": {
                **dict.fromkeys(("requests", "hit_rate", "ttft_mean", "ttft_p50", "ttft_p99"), 0.5),
                "requests": 10,
                "tokens_per_second": 1.0,
                "imbalance": 1.0,
                "replicas": 8,
                "routers": count,
                "index": index,
            }
            for count in (1, 2)
            for index in ("whole", "slice")
        },
    }
    content = {"settings": {"kind": "routers"}, "runs": runs}
    draw(content, tmp_path / "routers.png")
    assert (tmp_path / "routers.png").stat().st_size > 10_000
    assert "blocks in the index" in table(content)
    with pytest.raises(ValueError, match="kind='nothing'"):
        draw({"settings": {"kind": "nothing"}, "runs": runs}, tmp_path / "none.png")


def test_the_standard_cases_are_those_of_the_page() -> None:
    cases = standard_cases()
    assert [case.replicas for case in cases] == [1, 1, 2, 2, 6, 6, 6, 6]
    assert {case.policy for case in cases[4:]} == {"round-robin", "least-loaded", "prefix-hash", "prefix"}


@pytest.mark.parametrize("case", standard_cases(), ids=lambda case: case.name)
def test_the_longest_conversation_of_a_case_fits_its_replicas(case: Case) -> None:
    trace = make_trace(case.trace, case.rate * case.replicas, case.seed, case.scale, think_scale=THINK_SCALE)
    sessions = trace.sessions(case.seconds, from_rest=True)
    longest = max(turn.prompt_tokens + turn.answer.length for session in sessions for turn in session.turns)
    assert longest <= min(case.spec.options["max_context_len"], case.spec.options["max_total_tokens"])
