"""A busy machine, and engines with quantized weights: what they change in a session and in its tables."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nanoinfer.bench.load import Load
from nanoinfer.bench.remarks import remarks
from nanoinfer.bench.report import format_results, main_table, main_tables
from nanoinfer.bench.session import measure_model
from nanoinfer.bench.settings import new_results
from nanoinfer.bench.workloads import WORKLOADS, describe, make_job
from nanoinfer.cli.main import main
from tests.helpers.fake_sessions import fake_session, fake_settings
from tests.helpers.waiting import until


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# --- a busy machine -------------------------------------------------------------------------------------------------


def test_the_other_processes_end_with_the_block_even_if_it_fails() -> None:
    pids: list[int] = []

    def interrupted() -> None:
        with Load(2) as load:
            pids.extend(load.pids)
            assert all(map(is_running, pids))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(pids) == 2
    assert not any(map(is_running, pids))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_the_other_processes_compute() -> None:
    def ticks(pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])

    with Load(1) as load:
        (pid,) = load.pids
        until(lambda: ticks(pid) > 1, "a process that computes")


def test_a_busy_workload_has_the_same_lengths_and_arrivals_but_tokens_that_are_not_cached() -> None:
    for name in ("single", "staggered"):
        plain, busy = (make_job(WORKLOADS[each], 3, 4096, 1000, 0.01).requests for each in (name, f"{name}-busy"))
        for one, other in zip(plain, busy, strict=True):
            assert (len(one.prompt), one.new_tokens, one.arrival) == (
                len(other.prompt),
                other.new_tokens,
                other.arrival,
            )
            assert one.prompt[:8] != other.prompt[:8]
    assert describe(WORKLOADS["single-busy"], 4096, 0.01, busy=3).endswith("128 out, beside 3 busy processes")


def test_only_busy_workloads_run_beside_others(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    class Recorded(Load):
        def __init__(self, count: int):
            started.append(count)
            super().__init__(count)

    monkeypatch.setattr("nanoinfer.bench.session.Load", Recorded)
    settings = fake_settings(["single", "single-busy"], 1, {"ours": {}, "peer": {}}, busy=2)
    results = new_results(settings)
    model = measure_model(checkpoint(), None, settings)
    results["models"].append(model)
    assert started == [2, 2], "for each engine anew"
    assert [run.get("busy") for run in model["runs"]] == [None, None, 2, 2]
    text = format_results(results)
    assert "beside 2 busy processes" in text
    assert "| single-busy, ms per token" in text


def test_load_on_purpose_does_not_count_as_a_disturbance() -> None:
    runs = [
        {"round": 0, "workload": "single-busy", "engine": "ours", "cores_elsewhere": 1.9, "busy": 2},
        {"round": 0, "workload": "single", "engine": "ours", "cores_elsewhere": 0.0},
    ]
    model = {"decode_bytes": 1, "dtype": "float32", "engines": [{"name": "ours", "ours": True}], "runs": runs}
    assert "shared the machine" not in remarks(model)
    runs[1]["cores_elsewhere"] = 1.0
    assert "1 of 1 runs shared the machine" in remarks(model)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--busy", "0"], "--busy 0: must be in 1..100"),
        (["--busy", "2", "--workloads", "offline"], "--busy 2: there is no busy form of offline"),
    ],
)
def test_a_busy_machine_has_bounds(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *argv]) == 2
    assert message in capsys.readouterr().err


# --- kinds of weights -----------------------------------------------------------------------------------------------


def test_engines_with_quantized_weights_have_tables_and_ratios_of_their_own(checkpoint: Callable[..., Path]) -> None:
    results = fake_session(
        checkpoint(),
        ["single"],
        1,
        ours={},
        ours8={"quantization": "int8", "off_by": 1},
        ours8_other={"quantization": "int8", "off_by": 1, "page_size": 16},
        peer={},
        peer8={"weights": "int8"},
        peer4={"weights": "int4"},
    )
    (model,) = results["models"]
    plain, eight, four = main_tables(model)

    def head(table: str) -> list[str]:
        line = next(line for line in table.splitlines() if line.startswith("|"))
        return [cell.strip() for cell in line.split("|")[2:-1]]

    assert head(plain) == ["ours", "peer", "nanoinfer / best peer"]
    assert head(eight) == ["ours8", "ours8_other", "peer8", "nanoinfer / best peer"]
    assert eight.startswith("Weights in int8:")
    assert eight.splitlines()[-1].split("|")[-2].strip().endswith("peer8")
    assert head(four) == ["peer4"], "no ratio without nanoinfer"
    same = {run["engine"]: run["same_requests"][0] for run in model["runs"] if "same_requests" in run}
    assert same == {"ours": 1, "peer": 1, "ours8": 1, "ours8_other": 1, "peer8": 0}, "compared within a kind"
    text = remarks(model)
    assert "ours8_other: tokens equal to nanoinfer's" in text
    assert "ours8: " not in text


def test_tables_of_older_files_have_one_kind_of_weights() -> None:
    runs = [{"round": 0, "workload": "single", "engine": "nanoinfer", "ms_per_token": 2.0}]
    model = {"engines": [{"name": "nanoinfer", "ours": True}], "workloads": {"single": {}}, "runs": runs}
    assert main_tables(model) == [main_table(model)]
