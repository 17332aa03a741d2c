"""`bench drafts`: what is measured and reported, of our drafters and of other engines, and what is refused. No times."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.bench import drafts
from nanoinfer.bench.draft_peers import draft_peers, with_ngrams
from nanoinfer.bench.draft_settings import ONCE_MORE, DraftSettings, Variant, variants
from nanoinfer.bench.draft_workloads import DRAFT_WORKLOADS
from nanoinfer.bench.drafts import measure_drafts
from nanoinfer.bench.drafts_report import format_drafts
from nanoinfer.bench.engines import parse_engine
from nanoinfer.cli.main import main
from tests.helpers.fake_sessions import FAKE, table_after

SMALL = DraftSettings(
    draft_model="story", requests=(1, 2), num_draft_tokens=(3,), rounds=1, new_tokens=6, least_requests=2
)


@pytest.fixture(autouse=True)
def _no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "WARM_UP", 0)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command serves a few short requests."""
    small = partial(DraftSettings, new_tokens=40, least_requests=4)
    monkeypatch.setattr("nanoinfer.bench.draft_settings.DraftSettings", small)


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of our own engines, one with drafts, and the noise."""
    rows = [Variant(("ngram",), 3), ONCE_MORE]
    monkeypatch.setattr(drafts, "variants", lambda workload, num_draft_tokens: rows)


# --- what is measured and reported -----------------------------------------------------------------------------------


def test_the_rows_are_the_drafters_of_the_workload_and_the_noise() -> None:
    rows = [str(row) for row in variants(DRAFT_WORKLOADS["copying"], (3, 7))]
    assert rows == [
        *("ngram, 3", "ngram, 7", "ngram+model, 3", "ngram+model, 7"),
        *("tree, second visit, 3", "tree, second visit, 7", "once more"),
    ]
    assert not Variant(("ngram", "tree"), 3).second_visit


@pytest.mark.slow
def test_every_row_is_measured_in_every_round_and_drafts_fare_as_without_adaption_they_must() -> None:
    results = measure_drafts(replace(SMALL, always=True, new_tokens=12))
    results = json.loads(json.dumps(results))  # as a file has it
    assert results["differences"] == []
    runs = results["runs"]
    keys = [(run["workload"], run["row"], run["requests"], run["round"]) for run in runs]
    assert len(set(keys)) == len(keys) == 20, "three drafters for copying, two for the others, and the noise"
    for run in runs:
        assert run["passes"] + run["accepted"] + 2 * run["requests"] == run["new_tokens"], (
            "a request's first token is of its prompt's pass"
        )
        assert run["accepted"] <= run["drafted"]
        if run["row"] == "once more":
            assert run["drafted"] == 0
        if run["row"] in ("tree, second visit, 3", "grammar, 3"):
            assert run["accepted"] == run["drafted"] > 0
        if run["row"] == "model, 3":
            assert run["accepted"] == run["drafted"] > 0, "the model is its own draft model here"
    text = format_drafts(results)
    assert "drafts always" in text
    assert "tokens equal to those without drafts in all 20 pairs of runs" in text


def run_of(row: str, number: int, seconds: float, requests: int = 1, **more: Any) -> dict[str, Any]:
    counts = {"new_tokens": 12, "passes": 4, "drafted": 10, "accepted": 6, "copied": 0.5}
    run = {"round": number, "workload": "copying", "row": row, "requests": requests, "seconds": seconds}
    return {**run, "seconds_without": 2.0, **counts, **more}


def results_of(runs: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "date": "2026-01-01",
        "command": "bench",
        "threads": 1,
        "rounds": 2,
        "machine": {"cpu": "a CPU", "cores": 2, "memory_gib": 8},
        "model": {"name": "m", "parameters": 1_000_000, "dtype": "float32"},
        "always": False,
        "requests": [1, 4],
        "workloads": {"copying": "texts"},
        "rows": {"copying": ["ngram, 3", "once more"]},
        "runs": runs,
        "differences": [],
        "peers": [],
        "peer_versions": {},
        **more,
    }


RUNS = [
    *(run_of("ngram, 3", number, seconds) for number, seconds in enumerate((1.0, 0.5, 0.8))),
    *(run_of("ngram, 3", number, seconds, requests=4) for number, seconds in enumerate((2.5, 2.0, 4.0))),
    *(run_of("once more", 0, seconds, requests, drafted=0) for seconds, requests in ((2.5, 1), (1.6, 4))),
]


def test_ratios_are_of_neighbours_and_the_lowest_is_named_beside_the_noise() -> None:
    text = format_drafts(results_of(RUNS))
    speeds, fates = table_after(text, "Speed, as a multiple"), table_after(text, "Tokens per pass")
    assert speeds["ngram, 3"] == ["2.50 (2.00..4.00)", "0.80 (0.50..1.00)"]
    assert speeds["once more"] == ["0.80 (0.80..0.80)", "1.25 (1.25..1.25)"]
    assert fates == {"ngram, 3": ["2.50 (60% of 30)"] * 2}
    for line in (
        "- best of copying at 1: 2.50 (2.00..4.00), ngram, 3",
        "- lowest ratio: 0.80 (0.50..1.00), copying, ngram, 3, 4 at a time",
        "- noise, without against without: medians 0.80..1.25, single rounds 0.80..1.25",
    ):
        assert line in text.splitlines()


def test_a_difference_is_in_the_report() -> None:
    text = format_drafts(results_of(RUNS, differences=["copying, ngram, 3, 4 at a time, round 1, request 2: ..."]))
    assert "- DIFFERENT: copying, ngram, 3, 4 at a time, round 1, request 2: ..." in text
    assert "tokens equal" not in text


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_the_command_fails_if_a_drafter_changes_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from nanoinfer.drafting.scheduler import DraftingScheduler

    def accept_all(self: Any, batch: Any, token_ids: Any, logprobs: Any) -> Any:
        row = 0
        for req, count in zip(batch.reqs, (batch.seq_lens - batch.prefix_lens - 1).tolist(), strict=True):
            drafts = req.token_ids[req.num_tokens : req.num_tokens + count].tolist()
            for token in [*drafts, token_ids[row + count]]:
                yield req, token, None
            row += count + 1

    monkeypatch.setattr(DraftingScheduler, "_accepted", accept_all)
    argv = ["--workloads", "stories", "--requests", "4", "--num-draft-tokens", "3", "--rounds", "1", "--always"]
    assert main(["bench", "drafts", *argv, "--draft-model", "story", "--threads", "1"]) == 1
    out = capsys.readouterr().out
    assert "- DIFFERENT: stories, ngram, 3, 4 at a time, round" in out
    assert "request " in out


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_the_command_prints_tables_and_writes_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "drafts.json"
    argv = ["--workloads", "json", "--requests", "2", "--num-draft-tokens", "2", "--rounds", "1", "--threads", "1"]
    assert main(["bench", "drafts", *argv, "--draft-model", "story", "--out", str(file)]) == 0
    out = capsys.readouterr().out
    assert set(table_after(out, "Speed, as")) == {"grammar, 2", "grammar+model, 2", "once more"}
    results = json.loads(file.read_text())
    assert {run["row"] for run in results["runs"]} == {"grammar, 2", "grammar+model, 2", "once more"}
    assert results["format"] == "drafts"
    assert main(["bench", "table", str(file)]) == 2, "this is another kind of file"


def test_bad_options_are_named_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, message in (
        (["--requests", "0"], "--requests 0: must be in 1..256"),
        (["--num-draft-tokens", "3", "17"], "--num-draft-tokens 17: must be in 1..16"),
        (["--rounds", "0"], "--rounds 0: must be in 1..1000"),
        (["--threads", "0"], "--threads 0: must be in 1..1024"),
        (["--workloads", "poems"], "--workloads poems: must be one of copying, json, stories"),
        (["--compare", "transformers"], "--compare transformers: drafts no n-grams here"),
        (["--compare", "nanoinfer"], "--compare nanoinfer: is always measured"),
        (["--compare", str(FAKE), str(FAKE)], "--compare fake_peer: given twice"),
        (["--compare", str(FAKE), "--workloads", "json"], "--compare fake_peer: needs the workload copying"),
    ):
        assert main(["bench", "drafts", *argv]) == 2
        assert message in capsys.readouterr().err


# --- other engines ---------------------------------------------------------------------------------------------------


def test_each_engine_is_told_about_n_grams_in_its_own_words() -> None:
    vllm, llamacpp, fake = draft_peers(["vllm:max_num_seqs=8", "llamacpp", str(FAKE)])
    config = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    assert with_ngrams(vllm, 3).options == {"max_num_seqs": 8, "speculative_config": config}
    assert llamacpp.file.name == "llamacpp_lookup.py"
    assert llamacpp.converts
    assert with_ngrams(llamacpp, 7).options == with_ngrams(fake, 7).options == {"ngram": 7}
    assert parse_engine("llamacpp").file.name == "llamacpp.py", "elsewhere it is the one that batches"


@pytest.mark.slow
@pytest.mark.usefixtures("few_rows")
def test_other_engines_are_compared_with_themselves_and_with_our_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "WARM_UP", 1)  # a round that is not in the results
    peers = [replace(spec, options={**spec.options, "off_by": 1}) for spec in draft_peers([str(FAKE)])]
    settings = replace(SMALL, workloads=("copying",), requests=(2,), num_draft_tokens=(2, 3), rounds=2, peers=peers)
    results = json.loads(json.dumps(measure_drafts(settings)))
    runs = results["peers"]
    assert len(runs) == 2 * 3, "rounds, without and with 2 and 3 drafts"
    for run in runs:
        assert run["new_tokens"] == 4 * 6
        assert run["as_without"] == [4, 4]
        assert run["as_ours"] == [0, 4]
    rows = table_after(format_drafts(results), "Other engines' n-gram drafts")
    assert list(rows) == ["fake_peer, without", "fake_peer, 2", "fake_peer, 3"]
    assert [cells[1:] for cells in rows.values()] == [["8/8", "0/8"]] * 3
    assert "(" not in rows["fake_peer, without"][0]
    assert rows["fake_peer, 2"][0].count("..") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("few_rows")
def test_an_engine_that_cannot_draft_says_why_and_its_speed_without_is_shown(tmp_path: Path) -> None:
    picky = tmp_path / "picky.py"
    picky.write_text(
        f"import sys\nsys.path.insert(0, {str(FAKE.parent)!r})\nfrom fake_peer import Peer as Fake\n\n\n"
        "class Peer(Fake):\n    def __init__(self, model, dtype, threads, ngram=0):\n"
        "        if ngram:\n            raise ValueError('no drafts on a CPU')\n"
        "        super().__init__(model, dtype, threads)\n"
    )
    settings = replace(SMALL, workloads=("copying",), requests=(2,), peers=draft_peers([str(picky)]))
    text = format_drafts(measure_drafts(settings))
    assert "- FAILED: picky, 3 drafts: ValueError: no drafts on a CPU" in text
    rows = table_after(text, "Other engines' n-gram drafts")
    assert rows["picky, 3"][0] == "failed"
    assert float(rows["picky, without"][0]) > 0
