"""`bench adapters`, `bench tiers` and `bench quality`: what engines are asked, and what the figures mean. No times."""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from nanoinfer.bench import adapters
from nanoinfer.bench.adapters import Batch, format_adapters, make_adapters, measure_adapters
from nanoinfer.bench.engines import EngineSpec
from nanoinfer.bench.machine import Checkpoint
from nanoinfer.bench.peers import nanoinfer as nanoinfer_peer
from nanoinfer.bench.peers import transformers as transformers_peer
from nanoinfer.bench.peers import worker
from nanoinfer.bench.quality import (
    SAMPLED,
    format_quality,
    measure_quality,
    sampled_texts,
    written_texts,
)
from nanoinfer.bench.session import Settings
from nanoinfer.bench.tiers import DISK, HOST, WITHOUT, Chats, format_tiers, measure_tiers, turn_figures
from nanoinfer.bench.workloads import NUM_REQUESTS, Request
from nanoinfer.cli.main import main
from nanoinfer.llm import LLM
from nanoinfer.model.loader import resolve_model_path
from nanoinfer.model.lora.peft_files import read_adapter
from nanoinfer.model.lora.projections import projections
from tests.helpers.fake_sessions import FAKE, fake_settings, table_after

PEERS = (nanoinfer_peer, transformers_peer)

# --- adapters ---------------------------------------------------------------------------------------------------------


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
def test_the_command_writes_json(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    file = tmp_path / "adapters.json"
    argv = ["--model", str(checkpoint()), "--ranks", "2", "--adapters", "1", "3", "--rounds", "1", "--threads", "1"]
    assert main(["bench", "adapters", *argv, "--dtype", "float32", "--json", str(file)]) == 0
    runs = json.loads(file.read_text())["runs"]
    assert [run["same_requests"] for run in runs] == [[16, 16]] * 3


@pytest.mark.slow
def test_peft_gives_the_same_tokens(
    checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft")
    monkeypatch.setattr(adapters, "LENGTHS", [(32, 16)] * NUM_REQUESTS)
    path = checkpoint()
    made = make_adapters(path, tmp_path, rank=2, count=3, dtype="float32")
    job = asdict(Batch(2, 3).job([*made], Checkpoint.read(path), 0))
    both = [each.Peer(str(path), "float32", 1, adapters=made) for each in PEERS]
    ours, theirs = (worker.run(peer, job)["tokens"] for peer in both)
    assert len(ours) == 16
    assert ours == theirs


# --- tiers ------------------------------------------------------------------------------------------------------------


def small(count: int) -> Chats:
    return Chats(count, first_tokens=20, question_tokens=3, new_tokens=4)


def test_each_turn_continues_the_one_before_and_chats_share_nothing() -> None:
    turns = small(5).requests(2048, 0)
    assert [[len(request.prompt) for request in turn] for turn in turns] == [[20] * 5, [27] * 5, [34] * 5]
    for earlier, later in pairwise(turns):
        for one, other in zip(earlier, later, strict=True):
            assert other.prompt[: len(one.prompt)] == one.prompt
            assert other.new_tokens == 4
    assert len({tuple(request.prompt[:3]) for request in turns[0]}) == 5
    assert turns == small(5).requests(2048, 0), "every way gets the same"
    assert turns[0] != small(5).requests(2048, 1)[0]


def test_figures_are_those_of_all_groups_together() -> None:
    requests = [Request([1] * 10, 2), Request([2] * 10, 2), Request([3] * 30, 2)]
    answers = [
        {"times": [[0.5, 1.0], [1.5, 2.0]], "wall_s": 2.0, "cached_tokens": [5, 0]},
        {"times": [[0.25, 1.0]], "wall_s": 1.0, "cached_tokens": [20]},
    ]
    assert turn_figures(requests, answers) == {"ttft_s": 0.5, "output_tok_s": 2.0, "cached": 0.5}


def test_every_way_serves_all_turns_and_who_fails_is_in_the_table() -> None:
    engines = [EngineSpec(way, FAKE, is_ours=True) for way in (WITHOUT, HOST, DISK)]
    engines.append(EngineSpec("broken", FAKE, options={"refuse": True}))
    engines.append(EngineSpec("wrong", FAKE, options={"off_by": 1}))
    results = measure_tiers(resolve_model_path("story"), None, Settings(engines, 1), [small(2), small(6)])
    same = {(run["engine"], run["workload"]): run.get("same_requests") for run in results["runs"]}
    assert same[DISK, "6 chats"] == same[HOST, "6 chats"] == [18, 18]
    assert same["wrong", "2 chats"] == [0, 6]
    text = format_tiers(json.loads(json.dumps(results)))
    rows = {tuple(cell.strip() for cell in line.split("|")[1:3]): line.split("|") for line in text.splitlines()}
    assert rows["6 chats", DISK][-2].strip() == "18/18"
    assert rows["2 chats", WITHOUT][-3].strip() == "1.00 (1.00..1.00)"
    assert rows["2 chats", "broken"][3].strip() == "–"
    assert "FAILED: broken" in text


@pytest.mark.slow
def test_the_command_finds_in_files_what_a_process_has_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiers.json"
    argv = ["--conversations", "1", "--first-tokens", "60", "--new-tokens", "4", "--rounds", "1"]
    assert main(["bench", "tiers", *argv, "--threads", "1", "--json", str(file)]) == 0
    runs = {run["engine"]: run for run in json.loads(file.read_text())["runs"]}
    cached = {way: run["cached_after"] for way, run in runs.items()}
    assert cached == {WITHOUT: 0.0, HOST: 0.0, DISK: 80 / (60 + 2 * (4 + 24))}
    assert all(run["same_requests"] == [3, 3] for run in runs.values())


# --- quality ----------------------------------------------------------------------------------------------------------


def fake(name: str, **options: object) -> EngineSpec:
    return EngineSpec(name, FAKE, sys.executable, options)


def nats(flat: float, right: bool) -> float:
    """Of the fake's logits: 8 tokens, one at 2 - flat, one at flat, the others at 0."""
    total = math.log(math.exp(2 - flat) + math.exp(flat) + 6)
    return total - (2 - flat if right else 0.0)


def test_nats_and_greedy_tokens_are_those_of_the_logits(tmp_path: Path) -> None:
    texts = {"counting": [[0, 1, 2, 3], [5, 6]], "falling": [[3, 2, 1]]}
    figures, failed = measure_quality(tmp_path, "float32", texts, Settings([fake("first"), fake("second", flat=1.5)]))
    assert failed == {}
    by = {(figure.engine, figure.text): figure for figure in figures}
    first, second = by["first", "counting"], by["second", "counting"]
    assert first.tokens == second.tokens == 4, "the first token of a text has nothing before it"
    assert first.nats == pytest.approx(nats(0.0, right=True))
    assert second.nats == pytest.approx(nats(1.5, right=True))
    assert (first.change, first.same) == (None, None)
    assert second.change == pytest.approx(second.nats - first.nats)
    assert second.error == pytest.approx(0.0), "every token costs the same"
    assert second.same == 0.0
    falling = by["second", "falling"]
    assert falling.nats == pytest.approx(nats(1.5, right=False))


def test_the_error_is_the_scatter_over_texts(tmp_path: Path) -> None:
    texts = {"mixed": [[0, 1], [3, 2], [4, 5], [7, 6]]}
    figures, _ = measure_quality(tmp_path, "float32", texts, Settings([fake("first"), fake("second", flat=0.5)]))
    right, wrong = (nats(0.5, each) - nats(0.0, each) for each in (True, False))
    assert figures[1].change == pytest.approx((right + wrong) / 2)
    assert figures[1].error == pytest.approx(abs(right - wrong) / 2 / 4**0.5)
    assert figures[1].same == 1.0


def test_a_peer_that_fails_is_named_and_the_others_are_scored(tmp_path: Path) -> None:
    engines = [fake("first"), fake("absent", refuse=True), fake("third")]
    figures, failed = measure_quality(tmp_path, "float32", {SAMPLED: [[0, 1]]}, Settings(engines))
    assert [figure.engine for figure in figures] == ["first", "third"]
    text = format_quality(figures, failed)
    assert "- FAILED: absent: FileNotFoundError" in text
    assert "100.00%" in text
    with pytest.raises(ValueError, match="absent"):
        measure_quality(tmp_path, "float32", {SAMPLED: [[0, 1]]}, Settings(engines[1:]))


def test_nanoinfer_and_transformers_score_alike() -> None:
    path = resolve_model_path("story")
    texts = [[1, 400, 500, 37, 90], [1, 17]]
    ours, theirs = (worker.score(each.Peer(str(path), "float32", 1), texts) for each in PEERS)
    assert theirs["greedy"] == ours["greedy"]
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    for i, text in enumerate(texts):
        ids = torch.tensor([text])
        with torch.no_grad():
            loss = float(model(input_ids=ids, labels=ids).loss)
        assert ours["nats"][i] == pytest.approx(theirs["nats"][i], abs=1e-4)
        assert sum(ours["nats"][i]) == pytest.approx(loss * (len(text) - 1), abs=1e-3)


def test_sampled_text_is_the_same_each_time_and_begins_each_text_anew() -> None:
    path = resolve_model_path("story")
    texts = sampled_texts(path, 60, seed=3, at_once=2)
    assert 60 <= sum(map(len, texts)) <= 60 + 10, "no more than are needed, each of at most 1 + 8 tokens"
    assert all(text[0] == 1 for text in texts)
    assert all(1 not in text[1:] for text in texts)
    assert texts == sampled_texts(path, 60, seed=3, at_once=2)
    assert texts != sampled_texts(path, 60, seed=4, at_once=2)


def test_documents_are_read_as_the_model_was_trained_on_them(tmp_path: Path) -> None:
    file, path = tmp_path / "some.jsonl", resolve_model_path("story")
    chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi!"}]
    file.write_text("\n".join(json.dumps(each) for each in ({"text": "One day."}, {"messages": chat}, {"text": "x"})))
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    (text,) = written_texts(path, file, 1000)
    assert tokenizer.decode(text) == "<s>One day.</s><s><|user|>Hello</s><|assistant|>Hi!</s><s>x</s>"
    (short,) = written_texts(path, file, 2)
    assert tokenizer.decode(short) == "<s>One day.</s>"
    file.write_text('{"text": "x"}\n{"words": 3}')
    with pytest.raises(ValueError, match=r"some\.jsonl, line 2"):
        written_texts(path, file, 1000)
