"""`bench run`: rounds through all engines, what is kept of each run, failures included, its tables, and runs that go on."""

import copy
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.peers import llamacpp as llamacpp_peer
from nanoinfer.bench.peers import nanoinfer as nanoinfer_peer
from nanoinfer.bench.peers import transformers as transformers_peer
from nanoinfer.bench.peers import worker
from nanoinfer.bench.report import advantage, against_best, failures, format_results, main_table, main_tables
from nanoinfer.bench.results import continued, keeper, new_results
from nanoinfer.bench.session import summary
from nanoinfer.bench.workloads import INPUT_SPEED, OUTPUT_SPEED, TOKEN_TIME, Request, decode_workload
from nanoinfer.cli.main import main
from tests.helpers.checkpoints import greedy
from tests.helpers.fake_sessions import fake_model, fake_session, fake_settings
from tests.helpers.gguf_files import Kind, write_gguf

Make = Callable[..., Path]

# --- what is measured ------------------------------------------------------------------------------------------------


def test_every_round_goes_through_all_engines_in_shuffled_order(checkpoint: Make) -> None:
    (model,) = fake_session(checkpoint(), ["offline", "shared"], 4, ours={}, a={}, b={})["models"]
    runs = model["runs"]
    blocks = [runs[i : i + 3] for i in range(0, len(runs), 3)]
    assert [(block[0]["round"], block[0]["workload"]) for block in blocks] == [
        (number, workload) for number in range(4) for workload in ("offline", "shared")
    ]
    orders = [tuple(run["engine"] for run in block) for block in blocks]
    assert all(set(order) == {"ours", "a", "b"} for order in orders)
    assert len(set(orders)) > 2
    assert len({run["digest"] for run in runs if run["round"] == 0 and run["workload"] == "offline"}) == 1
    assert len({run["digest"] for run in runs}) == 8, "other tokens in every round and workload"
    assert all(run["same_requests"] == [16, 16] for run in runs)
    assert "tokens" not in runs[0], "they would fill the file"


def test_failures_are_in_the_table_and_no_other_engine_suffers(checkpoint: Make) -> None:
    fails, dies = {"when": 32, "trouble": "fail"}, {"when": 255, "trouble": "die"}
    (model,) = fake_session(
        checkpoint(), ["prefill", "single"], 2, ours={}, fails=fails, dies=dies, absent={"refuse": True}
    )["models"]
    table = {line.split("|")[1].strip(): line for line in main_table(model).splitlines()}
    prefill, single = (table[key].split("|")[2:6] for key in ("prefill, input tok/s", "single, ms per token"))
    assert [cell.strip() == "failed" for cell in prefill] == [False, False, True, True]
    assert [cell.strip() == "failed" for cell in single] == [False, True, True, True]
    text = "\n".join(failures(model))
    for words in (
        "absent, while loading: FileNotFoundError",
        "dies, prefill (round 1): ended with exit code 7 | first line | the last words",
        "fails, single (round 1), single (round 2): MemoryError: no room",
    ):
        assert words in text
    assert "FAILED: ours" not in text


# --- tables ----------------------------------------------------------------------------------------------------------


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
    rest = {"peak_memory_mb": 5, "wall_s": 2.0}
    answer = {
        "tokens": [[1, 2, 3], [4, 5]],
        "times": [[0.5, 0.6, 0.8], [1.2, 1.6]],
        "cached_tokens": [4, 8],
        **rest,
    }
    figures = summary(requests, answer)
    assert figures["output_tok_s"] == 2.5
    assert figures["input_tok_s"] == 20
    assert figures["ttft_s"] == pytest.approx((0.5 + 0.2) / 2)
    assert figures["tpot_ms"]["p50"] == pytest.approx(200)  # of 100, 200 and 400
    assert figures["tpot_ms"]["p99"] == pytest.approx(396)
    assert figures["ms_per_token"] == pytest.approx((150 + 400) / 2)
    assert figures["cached_tokens"] == 12
    figures = summary([Request([1], 1)], {"tokens": [[1]], "times": [[0.5]], "cached_tokens": [None], **rest})
    assert (figures["tpot_ms"], figures["ms_per_token"], figures["cached_tokens"]) == (None, None, None)


def test_engines_with_quantized_weights_have_tables_and_ratios_of_their_own(checkpoint: Make) -> None:
    eight = {"quantization": "int8", "off_by": 1}
    engines: dict[str, dict[str, Any]] = {"ours": {}, "ours8": eight, "ours8_other": {**eight, "page_size": 16}}
    engines |= {"peer": {}, "peer8": {"weights": "int8"}, "peer4": {"weights": "int4"}, "ours_wrong": {"off_by": 2}}
    (model,) = fake_session(checkpoint(), ["single"], 1, **engines)["models"]
    plain, eight_bits, four = main_tables(model)

    def head(table: str) -> list[str]:
        line = next(line for line in table.splitlines() if line.startswith("|"))
        return [cell.strip() for cell in line.split("|")[2:-1]]

    assert head(plain) == ["ours", "peer", "ours_wrong", "nanoinfer / best peer"]
    assert head(eight_bits) == ["ours8", "ours8_other", "peer8", "nanoinfer / best peer"]
    assert eight_bits.splitlines()[-1].split("|")[-2].strip().endswith("peer8")
    assert head(four) == ["peer4"], "no ratio without nanoinfer"
    same = {run["engine"]: run["same_requests"][0] for run in model["runs"] if "same_requests" in run}
    assert same == {"ours": 1, "peer": 1, "ours8": 1, "ours8_other": 1, "peer8": 0, "ours_wrong": 0}


# --- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
def test_a_checkpoint_is_weighed_without_loading_it(checkpoint: Make, tied: bool, tmp_path: Path) -> None:
    import transformers

    path = checkpoint("llama", tie_word_embeddings=tied)
    facts = Checkpoint.read(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    assert facts.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (facts.vocab_size, facts.context_len, facts.dtype, facts.name) == (320, 256, "float32", path.name)
    if tied:  # some checkpoints store the head again
        tensors = load_file(path / "model.safetensors")
        twice = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
        save_file(twice, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text((path / "config.json").read_text())
        assert Checkpoint.read(tmp_path).parameters == facts.parameters


def test_a_gguf_file_is_weighed_as_its_checkpoint_and_engines_use_its_numbers(
    checkpoint: Make, oracle: Callable[[Path], Any], tmp_path: Path
) -> None:
    path, workload = checkpoint("llama"), decode_workload("decode@2")
    assert workload is not None
    file = write_gguf(path, tmp_path / "model.gguf", Kind.F32)
    facts, same = Checkpoint.read(file), Checkpoint.read(path)
    assert (facts.name, facts.dtype) == ("model.gguf", "auto")
    for field in ("parameters", "vocab_size", "context_len"):
        assert getattr(facts, field) == getattr(same, field)
    job = workload.make_job(facts, 0)
    assert [(len(each.prompt), each.new_tokens) for each in job.requests] == [(32, 128)] * 2
    ours = worker.run(nanoinfer_peer.Peer(str(file), facts.dtype, 1), asdict(job))["tokens"]
    assert [each[:8] for each in ours] == [greedy(oracle(path), each.prompt, 8) for each in job.requests]
    with pytest.raises(ValueError, match=r"model\.gguf: must be a checkpoint folder"):
        transformers_peer.Peer(str(file), facts.dtype, 1)
    with pytest.raises(FileNotFoundError, match=r"model\.int8\.gguf: not found"):
        llamacpp_peer.Peer(str(file), facts.dtype, 1, weights="int8")
    assert main(["bench", "quality", "--model", str(file)]) == 2


# --- runs that go on -------------------------------------------------------------------------------------------------


def test_what_was_measured_is_kept_and_the_rest_is_measured(checkpoint: Make) -> None:
    class Stopped(Exception):
        pass

    path, workloads, kept = checkpoint(), ["offline", "single"], list[dict[str, Any]]()

    def keep(model: dict[str, Any]) -> None:
        kept.append(json.loads(json.dumps(model)))
        if len(kept) == 3:
            raise Stopped

    engines: dict[str, dict[str, Any]] = {"ours": {}, "peer": {}}
    with pytest.raises(Stopped):
        fake_model(path, workloads, fake_settings(engines, 2), keep=keep)
    left = copy.deepcopy(kept[-1])
    model = fake_model(path, workloads, fake_settings(engines, 2), kept[-1])
    assert len(left["runs"]) == 6
    assert model["runs"][:6] == left["runs"], "not measured again"
    assert [(run["round"], run["workload"]) for run in model["runs"][::2]] == [
        (number, workload) for number in (0, 1) for workload in workloads
    ]
    assert [engine["name"] for engine in model["engines"]] == ["ours", "peer"]
    done = copy.deepcopy(model)
    assert fake_model(path, workloads, fake_settings(engines, 2), model) == done, "nothing is loaded"
    assert len(fake_model(path, workloads, fake_settings(engines, 3), model)["runs"]) == 12
    newer = fake_settings({"ours": {}, "peer": {"release": "2.0"}}, 4)
    with pytest.raises(ValueError, match="peer"):
        fake_model(path, workloads, newer, done)


@pytest.mark.parametrize(
    ("name", "value", "same"),
    [("seed", 7, False), ("engines", ["x"], False), ("rounds", 1, False), ("rounds", 3, True)],
)
def test_settings_that_differ_are_refused_by_name(name: str, value: Any, same: bool, tmp_path: Path) -> None:
    settings = fake_settings({"ours": {}}, 2).as_dict()
    file = str(tmp_path / "run.json")
    keeper(file)(new_results(1, settings, models=[]))
    fresh = new_results(1, {**settings, name: value}, models=[])
    if same:
        assert continued(file, fresh)["rounds"] == value
    else:
        with pytest.raises(ValueError, match=name):
            continued(file, fresh)


@pytest.mark.parametrize("content", ["{", '{"format": "drafts", "settings": {}, "machine": {}}'])
def test_a_file_that_is_none_of_ours_or_of_another_machine_is_not_continued(content: str, tmp_path: Path) -> None:
    fresh, file = new_results(1, fake_settings({}).as_dict(), models=[]), tmp_path / "file.json"
    assert continued(str(file), fresh) is fresh
    file.write_text(content)
    with pytest.raises(ValueError, match=r"file\.json"):
        continued(str(file), fresh)
    keeper(str(file))({**fresh, "machine": {**fresh["machine"], "cpu": "Another 1000"}})
    with pytest.raises(ValueError, match="Another 1000"):
        continued(str(file), fresh)


def test_a_file_is_whole_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.json"
    keeper(str(file))({"old": 1})

    class Killed(type(file)):  # type: ignore[misc]
        def replace(self, target: Any) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr("nanoinfer.bench.results.Path", Killed)
    with pytest.raises(KeyboardInterrupt):
        keeper(str(file))({"new": 2})
    assert json.loads(file.read_text()) == {"old": 1}


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nanoinfer_and_transformers_measured_for_real(
    checkpoint: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.json"
    argv = ["bench", "--model", str(checkpoint()), "--rounds", "1", "--workloads", "shared-cached", "single"]
    argv += ["--compare", "transformers", "--threads", "1", "--json", str(file)]
    assert main(argv) == 0
    printed = capsys.readouterr().out
    results = json.loads(file.read_text())
    runs = {(run["workload"], run["engine"]): run for run in results["models"][0]["runs"]}
    assert runs["single", "transformers"]["same_requests"] == [1, 1], "an independent engine, the same tokens"
    assert runs["shared-cached", "nanoinfer"]["cached_tokens"] == 16 * 227, "512 of 576 tokens, in a context of 256"
    assert runs["shared-cached", "transformers"]["skipped"]
    assert "- instructions of the products: nanoinfer " in printed
    assert format_results(results).rstrip() == printed.rstrip()
    assert main(["bench", "table", str(file)]) == 0
    assert capsys.readouterr().out == printed
    assert main([*argv, "--resume"]) == 0
    assert json.loads(file.read_text())["models"] == results["models"]


@pytest.mark.slow
def test_a_model_over_two_processes_is_one_of_the_engines(tmp_path: Path) -> None:
    file = tmp_path / "split.json"
    argv = ["bench", "run", "--workloads", "single", "--rounds", "1", "--threads", "2", "--json", str(file)]
    assert main([*argv, "--compare", "nanoinfer:threads=1,tensor_parallel_size=2"]) == 0
    runs = json.loads(file.read_text())["models"][0]["runs"]
    assert [run["same_requests"] for run in runs] == [[1, 1]] * 2


@pytest.mark.parametrize(
    ("argv", "wrong"),
    [
        (["run", "--workloads", "offline", "W2"], "W2"),
        (["run", "--compare", "vllm", "vllm"], "vllm"),
        (["run", "--model", "no-such"], "no-such"),
        (["run", "--resume"], "--json"),
        (["serve", "--compare", "vllm=/nowhere"], "'/nowhere'"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_loaded(
    argv: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *argv]) == 2
    assert wrong in capsys.readouterr().err
