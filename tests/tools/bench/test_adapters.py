"""`bench adapters`: the batches, what is written for the engines, and costs within a round."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.adapters.peft_files import read_adapter
from nanoinfer.adapters.projections import projections
from nanoinfer.bench import adapters
from nanoinfer.bench.adapters import Batch, format_adapters, make_adapters, measure_adapters
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.workloads import NUM_REQUESTS
from nanoinfer.cli.main import main
from nanoinfer.frontends.llm import LLM
from tests.helpers.fake_sessions import fake_settings, table_after


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_an_adapter_adds_to_every_projection_and_can_be_read(
    checkpoint: Callable[..., Path], tmp_path: Path, family: str
) -> None:
    path = checkpoint(family)
    network = LLM(path, dtype="float32").model.model
    made = make_adapters(path, tmp_path, rank=3, count=2, dtype="float32")
    one, other = (read_adapter(Path(folder), network) for folder in made.values())
    assert one.keys() == other.keys() == projections(network).keys()
    assert {part.rank for part in one.values()} == {3}
    name = next(iter(one))
    assert not one[name].a.equal(other[name].a)
    assert one[name].b.abs().max() > 0, "or it would add nothing"


def test_every_engine_serves_every_batch_in_every_round(checkpoint: Callable[..., Path]) -> None:
    engines: dict[str, dict[str, Any]] = {"ours": {}, "other": {"off_by": 1}, "picky": {"refuse_adapters": True}}
    results = measure_adapters(checkpoint(), None, fake_settings(engines, 2), (2,), (1, 4))
    batches = ["base, beside rank 2", "rank 2, 1 adapter", "rank 2, 4 adapters"]
    runs = results["runs"]
    keys = {(run["round"], run["engine"], run["workload"]) for run in runs}
    assert keys == {(number, name, batch) for number in (0, 1) for name in engines for batch in batches}
    assert len(runs) == len(keys)
    good = [run for run in runs if "error" not in run]
    assert [run["workload"] for run in good if run["engine"] == "picky"] == batches[:1] * 2
    for run in good:
        assert run["same_requests"] == [0 if run["engine"] == "other" else 16, 16]
    ours = [run["digest"] for run in runs if run["engine"] == "ours"]
    assert len(set(ours)) == len(ours), "no batch finds another's prompts in a cache"
    text = format_adapters(json.loads(json.dumps(results)))
    assert "FAILED: picky" in text
    rows = table_after(text)
    assert list(rows) == batches
    assert rows[batches[2]][4:] == ["–", "failed"]


def test_the_requests_of_a_batch_have_its_adapters_in_turn() -> None:
    small = Checkpoint("", "", "float32", 1, 1000, 4096)
    four = Batch(8, 4).job(list("abcdefgh"), small, 0).requests
    assert "".join(str(request.adapter) for request in four) == "abcd" * 4
    assert {(len(request.prompt), request.new_tokens) for request in four} == {(32, 64)}
    assert {request.adapter for request in Batch(8, 0).job(["a"], small, 0).requests} == {None}


def test_a_cost_is_a_ratio_to_the_base_batch_of_the_same_round() -> None:
    def run(engine: str, number: int, batch: Batch, seconds: float) -> dict[str, Any]:
        figures = {"wall_s": seconds, "output_tok_s": 10 / seconds}
        return {"engine": engine, "round": number, "workload": str(batch), **figures}

    base, batch = Batch(8, 0), Batch(8, 16)
    times = [("ours", 0, 1.0, 1.1), ("ours", 1, 2.0, 2.4), ("other", 0, 2.0, 5.0)]
    runs = [run(name, n, each, s) for name, n, *pair in times for each, s in zip((base, batch), pair, strict=True)]
    results = {
        "date": "2026-01-01",
        "command": "bench",
        "threads": 1,
        "rounds": 2,
        "machine": {"cpu": "a CPU", "cores": 2, "memory_gib": 8},
        "model": {"name": "m", "parameters": 1_000_000, "dtype": "float32"},
        "settings": {"engines": ["ours", "other"]},
        "runs": runs,
    }
    row = table_after(format_adapters(results))[str(batch)]
    assert (row[0], row[2]) == ("1.15 (1.10..1.20)", "2.50 (2.50..2.50)")


@pytest.mark.slow
def test_the_command_writes_json_and_peft_gives_the_same_tokens(
    checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "LENGTHS", [(32, 16)] * NUM_REQUESTS)
    compare = ["--compare", "transformers"] if find_spec("peft") else []
    file = tmp_path / "adapters.json"
    argv = ["--model", str(checkpoint()), "--ranks", "2", "--adapters", "1", "3", "--rounds", "1", "--threads", "1"]
    assert main(["bench", "adapters", *argv, "--dtype", "float32", "--json", str(file), *compare]) == 0
    runs = json.loads(file.read_text())["runs"]
    assert len(runs) == 3 * (1 + bool(compare))
    assert all(run["same_requests"] == [16, 16] for run in runs)
