"""`bench adapters`: the batches, what is written for the engines, costs within a round, and what is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.adapters.peft_files import read_adapter
from nanoinfer.adapters.projections import projections
from nanoinfer.bench.adapters import BASE, WORKLOAD, Batch, adapter_engines, measure_adapters
from nanoinfer.bench.adapters_report import cost, format_adapters
from nanoinfer.bench.engines import EngineSpec
from nanoinfer.bench.random_adapters import adapter_parameters, make_adapters, projection_shapes
from nanoinfer.bench.settings import Settings
from nanoinfer.bench.workloads import NUM_REQUESTS
from nanoinfer.cli.main import main
from nanoinfer.frontends.llm import LLM
from tests.helpers.fake_sessions import FAKE


def measure(path: Path, rounds: int = 1, counts: tuple[int, ...] = (1, 4), **engines: dict[str, Any]) -> dict[str, Any]:
    """The results of fake engines, given as name → options; the first is ours. One rank: 2."""
    specs = [EngineSpec(name, FAKE, options=o, is_ours=name == "ours") for name, o in engines.items()]
    results = measure_adapters(path, None, Settings([WORKLOAD], specs, rounds), (2,), counts)
    return json.loads(json.dumps(results))  # as a file has it


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_an_adapter_adds_to_every_projection_and_can_be_read(
    checkpoint: Callable[..., Path], tmp_path: Path, family: str
) -> None:
    path = checkpoint(family)
    network = LLM(path, dtype="float32").model.model
    made = make_adapters(path, tmp_path, rank=3, count=2, dtype="float32")
    assert projection_shapes(path) == {name: (p.columns, p.in_features) for name, p in projections(network).items()}
    one, other = (read_adapter(folder, network) for folder in made.values())
    assert one.keys() == other.keys() == projections(network).keys()
    assert {part.rank for part in one.values()} == {3}
    assert sum(part.a.numel() + part.b.numel() for part in one.values()) == adapter_parameters(path, 3)
    name = next(iter(one))
    assert not one[name].a.equal(other[name].a)
    assert one[name].b.abs().max() > 0, "or it would add nothing"


def test_a_checkpoint_without_projections_is_refused(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no projections named model\.layers\.0"):
        projection_shapes(tmp_path)


def test_every_engine_serves_every_batch_in_every_round(checkpoint: Callable[..., Path]) -> None:
    results = measure(checkpoint(), rounds=2, ours={}, other={"off_by": 1})
    assert results["batches"] == ["base", "rank 2, 1 adapter", "rank 2, 4 adapters"]
    runs = results["runs"]
    assert len(runs) == 2 * 2 * 3
    assert len({(run["round"], run["engine"], run["workload"]) for run in runs}) == len(runs)
    by_batch: dict[tuple[int, str], set[str]] = {}
    for run in runs:
        assert "error" not in run
        by_batch.setdefault((run["round"], run["workload"]), set()).add(run["digest"])
        assert run["same_requests"] == ([16, 16] if run["engine"] == "ours" else [0, 16])
    assert all(len(digests) == 2 for digests in by_batch.values()), "the engines get the same prompts"
    ours = [run["digest"] for run in runs if run["engine"] == "ours"]
    assert len(set(ours)) == len(ours), "no batch finds another's prompts in a cache"


def test_the_requests_of_a_batch_have_its_adapters_in_turn() -> None:
    from nanoinfer.bench.adapters import _job
    from nanoinfer.bench.machine import Checkpoint

    small = Checkpoint("", "", "float32", 1, 1, 1, 1000, 4096)
    four = _job(Batch(8, 4), list("abcdefgh"), small, 0).requests
    assert "".join(str(request.adapter) for request in four) == "abcd" * 4
    assert {(len(request.prompt), request.new_tokens) for request in four} == {(32, 64)}
    assert {request.adapter for request in _job(BASE, ["a"], small, 0).requests} == {None}


def test_a_cost_is_a_ratio_to_the_base_batch_of_the_same_round() -> None:
    def run(engine: str, number: int, batch: str, seconds: float) -> dict[str, Any]:
        return {"engine": engine, "round": number, "workload": batch, "wall_s": seconds, "output_tok_s": 10 / seconds}

    name = str(Batch(8, 16))
    runs = [
        run("ours", 0, "base", 1.0),
        run("ours", 0, name, 1.1),
        run("ours", 1, "base", 2.0),
        run("ours", 1, name, 2.4),
    ]
    runs += [run("other", 0, "base", 2.0), run("other", 0, name, 5.0), run("other", 1, "base", 2.0)]
    runs.append({"engine": "other", "round": 1, "workload": name, "error": "died\nof it"})
    results = {
        "date": "2026-01-01",
        "command": "bench",
        "threads": 1,
        "rounds": 2,
        "description": "16 x 32 in",
        "machine": {"cpu": "a CPU", "cores": 2, "memory_gib": 8},
        "model": {"name": "m", "parameters": 1_000_000, "dtype": "float32"},
        "adapter_parameters": {"8": 100_000},
        "batches": ["base", name],
        "engines": [{"name": "ours", "ours": True, "versions": {"x": "1"}}, {"name": "other", "ours": False}],
        "runs": runs,
    }
    assert cost(results, name, "ours") == pytest.approx([1.1, 1.2])
    text = format_adapters(results)
    times, speeds = (
        [cell.strip() for cell in line.split("|")]
        for line in text.splitlines()
        if name in line and "|" in line and "FAILED" not in line
    )
    assert times[1:-1] == [name, "1.15 (1.10..1.20)", "2.50 (2.50..2.50)"]
    assert speeds[-2] == "4.55 (4.55..4.55) other"
    assert "- FAILED: other, died | of it" in text


def test_an_engine_that_cannot_load_adapters_says_why_and_its_base_batch_is_measured(
    checkpoint: Callable[..., Path],
) -> None:
    text = format_adapters(measure(checkpoint(), ours={}, picky={"refuse_adapters": True}))
    assert "- FAILED: picky, 4 adapters: ValueError: this build has no adapters" in text
    (base,) = [line for line in text.splitlines() if line.startswith("| base")]
    assert "failed" not in base
    rows = [line for line in text.splitlines() if line.startswith("| rank 2, 4 adapters")]
    assert len(rows) == 2
    assert all("failed" in row for row in rows)


def test_one_engine_is_compared_with_no_peer(checkpoint: Callable[..., Path]) -> None:
    assert "nanoinfer / best peer" not in format_adapters(measure(checkpoint(), ours={}))


@pytest.mark.slow
def test_the_command_prints_costs_and_writes_json_and_peft_gives_the_same_tokens(
    checkpoint: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = replace(WORKLOAD, draw=lambda rng: [(32, 16)] * NUM_REQUESTS)
    monkeypatch.setattr("nanoinfer.bench.adapters.WORKLOAD", short)
    engines = ["nanoinfer", *(["peft"] if find_spec("peft") else [])]
    file = tmp_path / "adapters.json"
    argv = ["--model", str(checkpoint()), "--ranks", "2", "--adapters", "1", "3", "--rounds", "1", "--threads", "1"]
    argv += ["--dtype", "float32", "--json", str(file), *(["--compare", *engines[1:]] if engines[1:] else [])]
    assert main(["bench", "adapters", *argv]) == 0
    results = json.loads(file.read_text())
    for batch in ("base", "rank 2, 1 adapter", "rank 2, 3 adapters"):
        runs = [run for run in results["runs"] if run["workload"] == batch]
        assert sorted(run["engine"] for run in runs) == engines
        assert [run.get("error") for run in runs] == [None] * len(engines)
        assert [run["same_requests"] for run in runs] == [[16, 16]] * len(engines)
    out = capsys.readouterr().out
    for text in (
        "Time, as a multiple of the base batch's",
        "| base ",
        "| rank 2, 1 adapter ",
        "Output tokens per second",
    ):
        assert text in out
    assert main(["bench", "table", str(file)]) == 2, "this is another kind of file"


def test_bad_options_are_named_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, message in (
        (["--ranks", "0"], "--ranks 0: must be in 1..4096"),
        (["--adapters", "4", "17"], "--adapters 17: must be in 1..16"),
        (["--rounds", "0"], "--rounds 0: must be at least 1"),
        (["--threads", "0"], "--threads 0: must be at least 1"),
        (["--compare", "tgi"], "'tgi' must be one of"),
        (["--compare", "transformers"], "--compare transformers: reads no adapters here; peft is transformers with"),
        (["--compare", "llamacpp"], "--compare llamacpp: reads no adapters here"),
        (["--compare", "nanoinfer"], "--compare nanoinfer: given twice"),
        (["--compare", "nanoinfer:adapters=x"], "--compare nanoinfer:adapters=x: adapters are made by this command"),
    ):
        assert main(["bench", "adapters", *argv]) == 2
        assert message in capsys.readouterr().err


def test_engines_to_compare_may_be_files(tmp_path: Path) -> None:
    assert [spec.name for spec in adapter_engines([str(FAKE), "vllm"])] == ["nanoinfer", "fake_peer", "vllm"]
