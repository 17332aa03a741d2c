"""A session: rounds through all engines, what is kept of each run, failures included, and the tables made of it."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from nanoinfer.bench.engines import EngineFailure, EngineSpec, Worker, parse_engine
from nanoinfer.bench.machine import Checkpoint, read_bandwidth
from nanoinfer.bench.metrics import advantage, against_best, first_difference, same_requests, summary
from nanoinfer.bench.remarks import remarks
from nanoinfer.bench.report import format_results, main_table
from nanoinfer.bench.session import measure_model, reported
from nanoinfer.bench.settings import Settings, new_results
from nanoinfer.bench.workloads import INPUT_SPEED, OUTPUT_SPEED, TOKEN_TIME, WORKLOADS, Request
from nanoinfer.cli.main import main
from tests.helpers.fake_sessions import FAKE, fake_session


def test_every_round_goes_through_all_engines_in_shuffled_order(checkpoint: Callable[..., Path]) -> None:
    results = fake_session(checkpoint(), ["offline", "shared"], 4, ours={}, a={}, b={})
    runs = results["models"][0]["runs"]
    blocks = [runs[i : i + 3] for i in range(0, len(runs), 3)]
    assert [(block[0]["round"], block[0]["workload"]) for block in blocks] == [
        (number, workload) for number in range(4) for workload in ("offline", "shared")
    ]
    orders = [tuple(run["engine"] for run in block) for block in blocks]
    assert all(set(order) == {"ours", "a", "b"} for order in orders)
    assert len(set(orders)) > 2
    assert len({run["digest"] for run in runs if run["round"] == 0 and run["workload"] == "offline"}) == 1
    assert len({run["digest"] for run in runs}) == 8, "other tokens in every round and workload"


def test_an_engine_may_take_part_in_the_first_round_only(checkpoint: Callable[..., Path]) -> None:
    results = fake_session(checkpoint(), ["offline"], 3, once=("slow",), ours={}, slow={})
    runs = results["models"][0]["runs"]
    assert sorted((run["round"], run["engine"]) for run in runs) == [(0, "ours"), (0, "slow"), (1, "ours"), (2, "ours")]


def test_all_of_a_run_is_kept(checkpoint: Callable[..., Path]) -> None:
    results = fake_session(checkpoint(), ["offline", "single"], 1, ours={}, peer={})
    assert set(results) == {"format", "date", "command", "machine", "threads", "rounds", "seed", "settings", "models"}
    assert set(results["machine"]) == {"cpu", "cores", "memory_gib", "system", "python"}
    (model,) = results["models"]
    assert model["dtype"] == "float32"
    assert model["workloads"]["offline"]["scaled"]
    assert len(model["bandwidth_gb_s"]) == 2
    assert model["engines"][1]["versions"]["fake"] == "1.0"
    offline = next(run for run in model["runs"] if run["workload"] == "offline")
    assert set(offline) == {
        *("round", "workload", "engine", "place", "wall_s", "output_tok_s", "input_tok_s", "ttft_s", "ttft_each_s"),
        *("ms_per_token", "tpot_ms", "peak_memory_mb", "cached_tokens", "cores_elsewhere", "digest"),
        *("same_requests", "first_difference"),
    }
    assert offline["same_requests"] == [16, 16]
    single = [run for run in model["runs"] if run["workload"] == "single"]
    assert all(len(run["bandwidth_gb_s"]) == 2 and min(run["bandwidth_gb_s"]) > 0 for run in single)


def test_failures_are_in_the_table_and_no_other_engine_suffers(checkpoint: Callable[..., Path]) -> None:
    results = fake_session(
        checkpoint(),
        ["prefill", "single"],
        2,
        ours={},
        fails={"when": 32, "trouble": "fail"},
        dies={"when": 255, "trouble": "die"},
        absent={"refuse": True},
    )
    (model,) = results["models"]
    assert model["workloads"]["prefill"]["lengths"] == [[255, 1]]
    table = {line.split("|")[1].strip(): line for line in main_table(model).splitlines()}
    prefill, single = (table[key].split("|")[2:6] for key in ("prefill, input tok/s", "single, ms per token"))
    assert [cell.strip() == "failed" for cell in prefill] == [False, False, True, True]
    assert [cell.strip() == "failed" for cell in single] == [False, True, True, True]
    text = remarks(model)
    assert "FAILED: absent while loading: FileNotFoundError" in text
    assert "FAILED: dies in prefill (round 1): ended with exit code 7 | first line | the last words" in text
    assert "FAILED: fails in single (round 1), single (round 2): MemoryError: no room" in text
    assert "FAILED: ours" not in text


def test_no_worker_is_left_behind_by_who_interrupts_its_warm_up(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def interrupted(worker: Worker, message: object) -> None:
        asked.append(worker.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(Worker, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fake_session(checkpoint(), ["single"], 1, ours={})
    with pytest.raises(ProcessLookupError):
        os.kill(asked[0], 0)


def test_engines_without_a_prefix_cache_have_no_cached_figure(checkpoint: Callable[..., Path]) -> None:
    results = fake_session(checkpoint(), ["shared-cached"], 1, ours={}, plain={"prefix_cache": False})
    (model,) = results["models"]
    row = main_table(model).splitlines()[2].split("|")
    assert row[3].strip() == "–"
    assert row[4].strip() == "–", "no ratio without a peer's figure"
    assert "FAILED" not in remarks(model)


def test_different_tokens_of_another_setting_of_nanoinfer_are_reported(checkpoint: Callable[..., Path]) -> None:
    results = fake_session(checkpoint(), ["single"], 1, ours={}, ours_same={}, ours_other={"off_by": 1}, peer={})
    text = remarks(results["models"][0])
    assert "ours_same: tokens equal to nanoinfer's on every workload (1 runs)" in text
    assert "ours_other: TOKENS DIFFER from nanoinfer's in 1 of 1 runs, first in single, round 1, request 0" in text
    assert "output token 0" in text


def test_ratios_are_taken_round_by_round_against_the_best_of_that_round() -> None:
    ours = {0: 10.0, 1: 40.0, 2: 30.0}
    peers = {"a": {0: 20.0, 1: 10.0, 2: 15.0}, "b": {0: 5.0, 1: 20.0}}
    assert against_best(ours, peers, OUTPUT_SPEED) == ([0.5, 2.0, 2.0], "a")
    assert against_best(ours, peers, TOKEN_TIME) == ([0.5, 0.25, 0.5], "a")
    assert against_best(ours, {"a": {}}, INPUT_SPEED) is None
    assert advantage(2.0, 4.0, OUTPUT_SPEED) == 0.5
    assert advantage(2.0, 4.0, TOKEN_TIME) == 2.0


def test_a_run_in_figures() -> None:
    requests = [Request([1] * 10, 3), Request([1] * 30, 2, arrival=1.0)]
    answer = {
        "tokens": [[1, 2, 3], [4, 5]],
        "times": [[0.5, 0.6, 0.8], [1.2, 1.6]],
        "wall_s": 2.0,
        "cached_tokens": [4, 8],
        "peak_memory_mb": 5,
        "cores_elsewhere": 0.0,
    }
    figures = summary(requests, answer)
    assert figures["output_tok_s"] == 2.5
    assert figures["input_tok_s"] == 20
    assert figures["ttft_s"] == pytest.approx((0.5 + 0.2) / 2)
    assert figures["tpot_ms"]["p50"] == pytest.approx(200)  # of 100, 200 and 400
    assert figures["tpot_ms"]["p99"] == pytest.approx(396)
    assert figures["ms_per_token"] == pytest.approx((150 + 400) / 2)
    assert figures["cached_tokens"] == 12
    one = {**answer, "tokens": [[1]], "times": [[0.5]], "cached_tokens": [None]}
    figures = summary([Request([1], 1)], one)
    assert (figures["tpot_ms"], figures["ms_per_token"], figures["cached_tokens"]) == (None, None, None)


def test_first_difference_names_request_and_position() -> None:
    assert first_difference([[1, 2], [3, 4]], [[1, 2], [3, 5]]) == (1, 1)
    assert first_difference([[1, 2]], [[1, 2]]) is None
    assert same_requests([[1, 2], [3, 4]], [[1, 2], [3, 5]]) == 1


def test_the_share_of_memory_bandwidth_is_weights_read_a_second_over_bytes_read_a_second() -> None:
    run = {"round": 0, "workload": "single", "engine": "nanoinfer", "ms_per_token": 20.0, "bandwidth_gb_s": [30, 50]}
    model = {
        "decode_bytes": 600_000_000,
        "dtype": "float32",
        "engines": [{"name": "nanoinfer", "ours": True}],
        "runs": [run],
    }
    assert "nanoinfer 0.75" in remarks(model)  # 0.6 GB / 20 ms = 30 GB/s of 40


@pytest.mark.parametrize("tied", [False, True])
def test_a_checkpoint_is_weighed_without_loading_it(checkpoint: Callable[..., Path], tied: bool) -> None:
    import transformers

    path = checkpoint("llama", tie_word_embeddings=tied)
    facts = Checkpoint.read(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    assert facts.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert facts.decode_parameters == facts.parameters - (0 if tied else 320 * 64)
    assert facts.layer_parameters == facts.parameters - (1 if tied else 2) * 320 * 64
    assert facts.decode_bytes("float32", "int8") == facts.decode_parameters
    assert facts.decode_bytes("bfloat16", "int4") == facts.decode_parameters * 4.5 // 8
    assert facts.decode_bytes("bfloat16") * 2 == facts.decode_bytes("float32") == facts.decode_parameters * 4
    assert (facts.vocab_size, facts.context_len, facts.dtype) == (320, 256, "float32")


def test_a_tied_head_that_is_stored_again_weighs_nothing(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    path = checkpoint("llama", tie_word_embeddings=True)
    tensors = load_file(path / "model.safetensors")
    twice = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    save_file(twice, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    plain, again = Checkpoint.read(path), Checkpoint.read(tmp_path)
    assert (again.parameters, again.decode_parameters) == (plain.parameters, plain.decode_parameters)


def test_a_checkpoint_has_the_name_of_its_folder_or_of_its_repository(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    assert Checkpoint.read(checkpoint()).name == checkpoint().name
    snapshot = tmp_path / "models--owner--some-model" / "snapshots" / "0f3a"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(checkpoint())
    assert Checkpoint.read(snapshot).name == "owner/some-model"


def test_a_config_without_sizes_is_named(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(checkpoint() / "model.safetensors")
    (tmp_path / "config.json").write_text('{"vocab_size": 320}')
    with pytest.raises(ValueError, match=r"config\.json: has no max_position_embeddings"):
        Checkpoint.read(tmp_path)


def test_reading_memory_takes_time() -> None:
    assert 0 < read_bandwidth(1, size=2**20, reads=3) < 1e5


@pytest.mark.slow
def test_nanoinfer_and_transformers_measured_for_real(
    checkpoint: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nanoinfer.bench.session.read_bandwidth", lambda threads, size: 25.0)  # or it takes seconds
    file = tmp_path / "results.json"
    argv = ["bench", "--model", str(checkpoint()), "--rounds", "1", "--workloads", "shared-cached", "single"]
    argv += ["--compare", "transformers", "--threads", "1", "--gap", "0.01", "--json", str(file)]
    assert main(argv) == 0
    printed = capsys.readouterr().out
    results = json.loads(file.read_text())
    runs = {(run["workload"], run["engine"]): run for run in results["models"][0]["runs"]}
    assert runs["single", "transformers"]["same_requests"] == [1, 1], "an independent engine, the same tokens"
    cached = runs["shared-cached", "nanoinfer"]["cached_tokens"]
    assert cached == 16 * results["models"][0]["workloads"]["shared-cached"]["shared"]
    assert runs["shared-cached", "transformers"]["skipped"] == "has no prefix cache"
    assert format_results(results).rstrip() == printed.rstrip()
    assert main(["bench", "table", str(file), "--main-only"]) == 0
    short = capsys.readouterr().out
    assert main_table(results["models"][0]) in short
    assert len(short) < len(printed)
    assert main(["bench", "table", str(file), str(file)]) == 0
    assert capsys.readouterr().out.count(main_table(results["models"][0])) == 2


def test_a_converted_file_is_not_taken_for_another_dtype(checkpoint: Callable[..., Path]) -> None:
    settings = Settings([WORKLOADS["single"]], [parse_engine("llamacpp")], 1, bandwidth_bytes=2**20)
    (engine,) = measure_model(checkpoint(), "bfloat16", settings)["engines"]
    assert engine["error"] == "dtype bfloat16: this engine reads a converted file, whose dtype is float32"


def test_recorded_failures_name_no_folders_of_this_machine(
    checkpoint: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoint()
    (engine,) = fake_session(path, ["single"], 1, absent={"refuse": True})["models"][0]["engines"]
    assert engine["error"].startswith(f"FileNotFoundError: {path.name}.fake: not found; make it")
    assert f"{path}.fake: not found" in capsys.readouterr().err, "printed in full while it runs"
    message = reported(
        EngineSpec("x", FAKE), EngineFailure('File "/a/b/d.py", line 3: https://x.org/a/b ./c/d a/b 1/2')
    )
    assert message == 'File "d.py", line 3: https://x.org/a/b ./c/d a/b 1/2'


@pytest.mark.parametrize("name", ["llamacpp", "openvino"])
def test_a_missing_converted_file_names_the_command_that_makes_it(name: str, checkpoint: Callable[..., Path]) -> None:
    settings = Settings([WORKLOADS["single"]], [parse_engine(name)], 1, bandwidth_bytes=2**20)
    (engine,) = measure_model(checkpoint(), None, settings)["engines"]
    assert "not found; make it with python -m nanoinfer.bench.make_models" in engine["error"]


def test_the_recorded_command_names_no_folders_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = [
        "nanoinfer",
        "bench",
        "--model",
        "/data/models/small-float32",
        "models/mid",
        "--compare",
        "vllm=/x/bin/python",
    ]
    monkeypatch.setattr("sys.argv", argv)
    command = new_results(Settings([], []))["command"]
    assert command == "python -m nanoinfer bench --model small-float32 models/mid --compare vllm=python"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--workloads", "offline", "W2"], "--workloads W2: must be one of offline"),
        (["--dtype", "int8"], "--dtype int8: must be one of float32"),
        (["--rounds", "0"], "--rounds 0: must be at least 1"),
        (["--once", "vllm"], "--once vllm: must be one of nanoinfer"),
        (["--threads", "-1"], "--threads -1: must be at least 1"),
        (["--gap", "0"], "--gap 0.0: must be above 0"),
        (["--compare", "vllm", "--compare", "vllm"], "--compare vllm: given twice"),
        (["--compare", "nanoinfer"], "--compare nanoinfer: given twice"),
        (["--model", "no-such"], "no-such"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_loaded(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *argv]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_holds_no_results_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content, message in (("{}", "not written by bench run"), ("[1", "not JSON")):
        (tmp_path / "x.json").write_text(content)
        assert main(["bench", "table", str(tmp_path / "x.json")]) == 2
        assert message in capsys.readouterr().err
