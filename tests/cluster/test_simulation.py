"""The simulation: nothing is lost, everything is repeatable, and figures are what an independent count says."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.cli.main import main
from nanoinfer.cluster import PassCosts
from nanoinfer.cluster.simulate.cluster import REPORT_S, ClusterSettings, Simulation
from nanoinfer.cluster.simulate.outcome import EverythingSent, Outcome, Report
from nanoinfer.cluster.simulate.sessions import Segment, Session, Turn
from nanoinfer.cluster.simulate.sweep import read_results
from nanoinfer.cluster.simulate.traces import make_trace
from nanoinfer.config import EngineConfig

COSTS = PassCosts(4e-3, 2e-5, 5e-5, 3e-8, 1e-9)
CONFIG = EngineConfig(32, 60_000, 8192, chunked_prefill_size=512)


def settings(policy: str = "round-robin", replicas: int = 2, **fields: Any) -> ClusterSettings:
    return ClusterSettings(replicas, policy, COSTS, fields.pop("config", CONFIG), **fields)


def simulated(
    one: ClusterSettings, trace: str = "chat", rate: float = 12.0, seconds: float = 5.0, **options: Any
) -> tuple[Simulation, Outcome]:
    simulation = Simulation(one)
    return simulation, simulation.run(make_trace(trace, rate, scale=0.3), seconds, **options)


# --- conservation, and the same again -------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["least-loaded", "prefix"])
@pytest.mark.parametrize("slots", [60_000, 2500])
def test_every_request_ends_once_with_all_its_tokens(policy: str, slots: int) -> None:
    config = replace(CONFIG, max_total_tokens=slots, max_context_len=min(slots, 8192))
    simulation, outcome = simulated(settings(policy, config=config), finish=True)
    assert {simulation.policy.in_flight(name) for name in simulation.replicas} == {0}
    sessions = list(make_trace("chat", 12.0, scale=0.3).sessions(5.0, from_rest=True))
    turns = [turn for session in sessions for turn in session.turns]
    assert outcome.sent == outcome.ended == len(outcome.measured) == len(turns)
    assert outcome.open == 0
    assert sum(each.output_tokens for each in outcome.measured) == sum(turn.answer.length for turn in turns)
    assert sum(each.turn.prompt_tokens for each in outcome.measured) == sum(turn.prompt_tokens for turn in turns)
    assert all(0 <= each.cached_tokens < each.turn.prompt_tokens and each.ttft > 0 for each in outcome.measured)
    for replica in simulation.replicas.values():
        replica.cache.check_integrity(replica.scheduler.running)
        assert replica.cache.token_to_kv_pool.available_size() + replica.cache.radix_cache.total_size() == slots


def test_the_same_seed_gives_the_same_run_and_another_does_not() -> None:
    def run(seed: int) -> tuple[list[float], list[int]]:
        simulation = Simulation(settings("prefix"))
        outcome = simulation.run(make_trace("chat", 12.0, seed, scale=0.3), 2.0)
        return [each.ttft for each in outcome.measured], [each.replica for each in outcome.measured]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_one_replica_that_never_evicts_hits_what_an_unlimited_cache_would() -> None:
    config = replace(CONFIG, max_total_tokens=2_000_000)
    sessions = [make_trace("chat", 1.0, scale=0.3).session(number, 0.0) for number in range(30)]
    turns = [replace(turn, think_s=0.0, after=()) for session in sessions for turn in session.turns]
    # One after another, so that the order of ends is the order of beginnings.
    outcome = Simulation(settings(replicas=1, config=config)).serve(
        [Session(5.0 * place, (turn,)) for place, turn in enumerate(turns)]
    )
    assert outcome.ended == len(turns) > 80
    ideal = sum(each.ideal_tokens for each in outcome.measured)
    assert sum(each.cached_tokens for each in outcome.measured) == pytest.approx(ideal, abs=2 * len(turns))  # chance


# --- how long things take -------------------------------------------------------------------------------------------


def run_turns(turns: Sequence[tuple[float, Turn]], config: EngineConfig = CONFIG) -> Outcome:
    return Simulation(settings(replicas=1, config=config)).serve([Session(at, (turn,)) for at, turn in turns])


def test_a_request_alone_takes_its_passes() -> None:
    outcome = run_turns([(1.0, Turn((Segment(1, 100),), Segment(2, 4)))])
    first = COSTS.extend_seconds(1, 100, 100 * 101 // 2)
    decodes = sum(COSTS.decode_seconds(1, 100 + n) for n in (1, 2, 3))
    assert outcome.measured[0].ttft == pytest.approx(first)
    assert outcome.measured_until == pytest.approx(1.0 + first + decodes + REPORT_S)


def test_a_long_prompt_is_computed_in_chunks_between_decodes() -> None:
    waiting = Turn((Segment(1, 20),), Segment(2, 400))
    long = Turn((Segment(3, 1200),), Segment(4, 1))
    outcome = run_turns([(0.0, waiting), (0.5, long)])
    alone = run_turns([(0.5, long)])
    late = max(each.ttft for each in outcome.measured) - alone.measured[0].ttft
    decode = COSTS.decode_seconds(1, 120)
    assert 2 * decode < late < 3.5 * decode  # the pass that is under way, and one after each full budget of 512


def test_requests_with_the_same_new_prefix_compute_it_once() -> None:
    shared = Segment(1, 300)
    turns = [(0.0, Turn((shared, Segment(10 + n, 20)), Segment(20 + n, 2))) for n in range(4)]
    outcome = run_turns(turns)
    assert sorted(each.cached_tokens for each in outcome.measured) == [0, 300, 300, 300]


def test_a_request_that_can_never_fit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"request 0.*must not exceed 8192"):
        run_turns([(0.0, Turn((Segment(1, 8000),), Segment(2, 300)))])


# --- one infinitely large cache -----------------------------------------------------------------------------------------


def test_one_cache_for_all_finds_what_was_sent_or_answered_before() -> None:
    a, b, c, d = (Segment(number, 10 * number) for number in range(1, 5))
    sent = EverythingSent()
    first = Turn((a, b), c)
    assert sent.send(first) == 0
    assert sent.send(Turn((a, b), d)) == 29  # all but the last token
    assert sent.send(Turn((a, b, c, d), a)) == 30  # its answer is not there yet
    assert sent.send(Turn((b, a), d)) == 0
    sent.end(first)
    assert sent.send(Turn((a, b, c, a), a)) == 60


@pytest.mark.parametrize("trace", ["chat", "shared"])
def test_eight_replicas_find_almost_as_much_as_one_cache_for_all(trace: str) -> None:
    """After the caches are warm: until then, each replica has to compute once what all of them share."""
    config = replace(CONFIG, max_total_tokens=400_000)
    simulation = Simulation(settings("prefix", replicas=8, config=config))
    report = Report.of(simulation.run(make_trace(trace, 60.0, scale=0.3), 24.0, warm_up=16.0))
    assert report.requests > 300
    assert 0.95 * report.ideal_hit_rate <= report.hit_rate <= 1.001 * report.ideal_hit_rate  # chance


# --- the command ---------------------------------------------------------------------------------------------------------

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


@pytest.mark.slow  # two processes import torch
def test_processes_give_the_same_results(tmp_path: Path) -> None:
    words = ["sweep", "--replicas", 1, 2, "--policy", "round-robin", *SHORT]
    for count in (1, 2):
        assert simulate(*words, "--processes", count, "--out", tmp_path / f"{count}.json") == 0
    assert read_results(str(tmp_path / "1.json")) == read_results(str(tmp_path / "2.json"))


def test_a_policy_under_which_nothing_ends_is_told_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, figure = tmp_path / "sweep.json", tmp_path / "sweep.png"
    words = ["--seconds", 0.02, "--warm-up", 0.01, "--rate", 200, "--slots", 20_000, "--out", out, "--figure", figure]
    assert simulate("sweep", "--replicas", 1, *words, "--policy", "prefix", "round-robin") == 0
    printed = capsys.readouterr().out
    assert "2/2 1 round-robin: no measured request has ended" in printed
    assert printed.count("|        0 |    – |") == 2
    assert {run["requests"] for run in read_results(str(out))["runs"].values()} == {0}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trace", "nothing"], "trace='nothing'"),
        (["--policy", "magic"], "policy='magic'"),
        (["--costs", "abacus"], "costs='abacus'"),
        (["show"], "show: needs --out"),
        (["--out", "/nowhere/at/all.json"], "/nowhere/at"),
        (["show", "--out", __file__], "test_simulation.py"),
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
