"""`bench drafts`: what the workloads ask for, which runs are compared, what is reported, and what is refused. No times."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from nanoinfer import LLM
from nanoinfer.bench.draft_curve import CurveSettings, _engines, curve, decode, format_curve, measure_curve, pays_from
from nanoinfer.bench.draft_oracle import OracleDrafter
from nanoinfer.bench.draft_peers import draft_peers, with_ngrams
from nanoinfer.bench.draft_settings import DraftSettings, Variant, variants
from nanoinfer.bench.draft_workloads import DRAFT_WORKLOADS, SCHEMAS, copied_share, make_asks
from nanoinfer.bench.drafts import differences, measure_drafts, serve_pair, serving
from nanoinfer.bench.drafts_command import DRAFT_WORKLOAD_NAMES
from nanoinfer.bench.drafts_report import format_drafts
from nanoinfer.bench.engines import parse_engine
from nanoinfer.cli import main
from nanoinfer.registry import DRAFTERS
from nanoinfer.requests.outputs import RequestOutput
from nanoinfer.requests.req import FinishReason
from tests.helpers.fake_sessions import FAKE

SMALL = DraftSettings(
    draft_model="story", requests=(1, 2), num_draft_tokens=(3,), rounds=1, new_tokens=6, least_requests=2
)


def table_after(text: str, title: str) -> dict[str, list[str]]:
    """The first table after the line that begins with `title`: first cell of a row → its other cells."""
    lines = text[text.index(f"\n{title}") :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        first, *others = (cell.strip() for cell in line.strip("|").split("|"))
        rows[first] = others
    return rows


# --- the workloads ---------------------------------------------------------------------------------------------------


def test_help_names_the_workloads() -> None:
    assert tuple(DRAFT_WORKLOADS) == DRAFT_WORKLOAD_NAMES


@pytest.mark.parametrize("name", DRAFT_WORKLOADS)
def test_a_seed_decides_all_requests_and_another_seed_gives_other_prompts(story: LLM, name: str) -> None:
    workload = DRAFT_WORKLOADS[name]
    one, same, other = (make_asks(workload, story, 6, seed) for seed in ("0/1", "0/1", "0/2"))
    assert one == same
    assert not {tuple(ask.prompt) for ask in one} & {tuple(ask.prompt) for ask in other}
    room = story.config.max_context_len
    assert all(len(ask.prompt) + ask.params.max_new_tokens < room for ask in one)
    assert {ask.params.max_new_tokens for ask in make_asks(workload, story, 2, "0", new_tokens=5)} == {5}


def test_the_model_really_copies_in_copying(story: LLM) -> None:
    asks = make_asks(DRAFT_WORKLOADS["copying"], story, 12, "a test")
    outputs = story.generate([ask.prompt for ask in asks], [ask.params for ask in asks], use_tqdm=False)
    shares = [copied_share(a.prompt, list(o.token_ids)) for a, o in zip(asks, outputs, strict=True)]
    assert sum(shares) / len(shares) > 0.5
    stories = [s for i, s in enumerate(shares) if i % 3 < 2]
    assert sum(stories) / len(stories) > 0.4, "not only lists"
    free = make_asks(DRAFT_WORKLOADS["stories"], story, 4, "a test")
    outputs = story.generate([ask.prompt for ask in free], [ask.params for ask in free], use_tqdm=False)
    assert max(copied_share(a.prompt, list(o.token_ids)) for a, o in zip(free, outputs, strict=True)) < 0.2


def test_only_runs_of_four_tokens_count_as_copied() -> None:
    assert copied_share([1, 2, 3, 4, 5], [9, 1, 2, 3, 4, 5, 9, 9]) == 5 / 8
    assert copied_share([1, 2, 3, 4, 5], [1, 2, 3, 9, 3, 4, 5]) == 0.0
    assert copied_share([1], []) == 0.0


def test_json_has_every_schema_and_half_of_the_requests_are_sampled(story: LLM) -> None:
    asks = make_asks(DRAFT_WORKLOADS["json"], story, 6, "0")
    schemas = [json.loads(str(ask.params.json_schema)) for ask in asks]
    assert [schemas.count(schema) for schema in SCHEMAS.values()] == [2, 2, 2]
    assert [ask.params.temperature > 0 for ask in asks] == [False, True] * 3
    outputs = story.generate([ask.prompt for ask in asks], [ask.params for ask in asks], use_tqdm=False)
    for schema, output in zip(schemas, outputs, strict=True):
        assert output.finish_reason == "stop", "there are tokens enough for it"
        assert list(json.loads(output.text)) == schema["required"]


def test_stories_are_greedy_and_sampled_with_seeds_of_their_own(story: LLM) -> None:
    params = [ask.params for ask in make_asks(DRAFT_WORKLOADS["stories"], story, 8, "0")]
    assert [p.temperature for p in params] == [0.0, 0.7, 0.0, 0.8, 0.0, 0.9, 0.0, 1.0]
    assert len({p.seed for p in params if p.temperature}) == 4


# --- pairs and differences -------------------------------------------------------------------------------------------


def test_each_engine_serves_each_request_once_and_a_second_visit_finds_the_first_in_the_cache(story: LLM) -> None:
    asks = make_asks(DRAFT_WORKLOADS["stories"], story, 3, "0", new_tokens=4)
    other = LLM("story", drafter="tree", adaptive_drafts=False)
    for second_visit in (False, True):
        one, two = serve_pair(story, other, asks, 2, second_visit)
        assert differences(one.outputs, two.outputs) == []
        for served in (one, two):
            assert [output.prompt_token_ids for output in served.outputs] == [ask.prompt for ask in asks]
            assert served.seconds > 0
        cached = [output.cached_tokens for output in two.outputs]
        known = [len(ask.prompt) - 1 for ask in asks]
        assert cached == known if second_visit else all(a < b for a, b in zip(cached, known, strict=True))
        assert (sum(output.accepted_tokens for output in two.outputs) > 0) == second_visit


def test_when_a_request_has_ended_the_next_one_begins_and_outputs_keep_their_order(story: LLM) -> None:
    asks = make_asks(DRAFT_WORKLOADS["stories"], story, 7, "0", new_tokens=4)
    asks[1] = replace(asks[1], params=replace(asks[1].params, max_new_tokens=40))
    running: list[int] = []
    step = story.engine.step

    def open_now() -> int:
        stats = story.engine.stats()
        return stats.running + stats.waiting

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(story.engine, "step", lambda: [running.append(open_now()), step()][1])
        outputs: list[RequestOutput] = []
        assert all(serving(story, asks, 3, outputs))
    assert [output.prompt_token_ids for output in outputs] == [ask.prompt for ask in asks]
    assert [len(output.token_ids) for output in outputs] == [40 if i == 1 else 4 for i in range(7)]
    assert max(running) == 3


def test_a_difference_names_request_position_and_tokens(story: LLM) -> None:
    asks = make_asks(DRAFT_WORKLOADS["stories"], story, 2, "0", new_tokens=4)
    outputs = serve_pair(story, LLM("story"), asks, 2)[0].outputs
    tokens = list(outputs[1].token_ids)

    def changed(**changes: Any) -> Any:
        return SimpleNamespace(**{"token_ids": tokens, "finish_reason": FinishReason.LENGTH, **changes})

    wrong, short = changed(token_ids=[*tokens[:2], tokens[2] + 1, tokens[3]]), changed(token_ids=tokens[:3])
    ended = changed(finish_reason=FinishReason.STOP)
    assert differences(outputs, outputs) == []
    for other, line in (
        (wrong, f"output token 2 is {tokens[2] + 1}, but {tokens[2]} without drafts"),
        (short, f"output token 3 is none, but {tokens[3]} without drafts"),
        (ended, "ends with stop, but length without drafts"),
    ):
        assert differences(outputs, [outputs[0], other]) == [f"request 1: {line}"]


# --- what is measured and reported ----------------------------------------------------------------------------------


def test_the_rows_are_the_drafters_of_the_workload_and_the_noise() -> None:
    rows = [str(row) for row in variants(DRAFT_WORKLOADS["copying"], (3, 7))]
    assert rows == [
        *("ngram, 3", "ngram, 7", "ngram+model, 3", "ngram+model, 7"),
        *("tree, second visit, 3", "tree, second visit, 7", "once more"),
    ]
    assert not Variant(("ngram", "tree"), 3).second_visit


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


def test_the_command_prints_tables_and_writes_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "drafts.json"
    argv = ["--workloads", "json", "--requests", "8", "--num-draft-tokens", "2", "--rounds", "1", "--threads", "1"]
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
        (["--curve", "x.png", "--always"], "--curve: goes with --model"),
        (["--curve", "x.png", "--requests", "0"], "--requests 0: must be in 1..256"),
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


def test_other_engines_are_compared_with_themselves_and_with_our_tokens() -> None:
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


# --- the curve -------------------------------------------------------------------------------------------------------


def test_the_oracle_is_right_as_often_as_it_is_told(story: LLM) -> None:
    oracle = OracleDrafter(story.model.config.vocab_size)
    rng = Random(0)
    prompts = [[rng.randrange(3, 2000) for _ in range(5)] for _ in range(8)]
    tokens, *_ = decode(story.engine, prompts, 60)
    for prompt, output in zip(prompts, tokens, strict=True):
        oracle.learn(prompt, output)
    engine = _engines(story, oracle)["k = 1"]
    shares = []
    for rate in (0.0, 0.3, 0.7, 1.0):
        oracle.rate = rate
        before = engine.stats()
        found, *_ = decode(engine, prompts, 60)
        after = engine.stats()
        assert found == tokens
        drafted, accepted = (after[f"{key}_tokens"] - before[f"{key}_tokens"] for key in ("drafted", "accepted"))
        assert drafted > 100
        shares.append(accepted / drafted)
    assert shares[0] == 0.0
    assert shares[1] == pytest.approx(0.3, abs=0.12)
    assert shares[2] == pytest.approx(0.7, abs=0.12)
    assert shares[3] == 1.0
    assert "oracle" not in DRAFTERS, "it is there for the measurement only"


def test_a_request_that_the_oracle_does_not_know_gets_no_drafts(story: LLM) -> None:
    engine = _engines(story, OracleDrafter(2048))["k = 7"]
    decode(engine, [[5, 6, 7]], 8)
    assert engine.stats()["drafted_tokens"] == 0


def test_the_curve_has_every_rate_line_and_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = measure_curve(CurveSettings("story", (1, 2), (0.0, 1.0), rounds=2, new_tokens=8))
    results = json.loads(json.dumps(results))
    assert [(p["requests"], p["round"], p["rate"]) for p in results["points"]] == [
        (n, r, rate) for n in (1, 2) for r in (0, 1) for rate in (0.0, 1.0)
    ]
    assert all(set(p["tok_s"]) == {"k = 1", "k = 3", "k = 7", "adaptive"} for p in results["points"])
    rows = table_after(format_curve(results), "2 at a time")
    assert list(rows) == ["0%", "100%"]
    pytest.importorskip("matplotlib")
    from nanoinfer.bench.draft_curve_figure import draw

    draw(results, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"


def test_a_curve_is_of_ratios_within_a_round_and_pays_from_where_it_stays_above_one() -> None:
    points = [
        {"requests": 4, "round": number, "rate": rate, "tok_s": {"k = 1": [speed, without]}}
        for number, rate, without, speed in ((0, 0.0, 10.0, 8.0), (1, 0.0, 20.0, 20.0), (0, 0.5, 10.0, 15.0))
    ]
    points.append({"requests": 1, "round": 0, "rate": 0.5, "tok_s": {"k = 1": [1.0, 10.0]}})
    assert curve({"points": points}, 4, "k = 1") == {0.0: [0.8, 1.0], 0.5: [1.5]}
    assert pays_from({0.0: [1.2], 0.5: [0.9], 0.7: [1.0, 1.4], 1.0: [2.0]}) == 0.7
    assert pays_from({0.0: [0.5], 1.0: [0.9]}) is None
    assert pays_from({0.0: [1.0], 1.0: [2.0]}) == 0.0


def test_the_command_draws_the_curve(
    checkpoint: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    figure, file = tmp_path / "curve.png", tmp_path / "curve.json"
    argv = ["--curve", str(figure), "--out", str(file), "--requests", "1", "--rounds", "1", "--threads", "1"]
    assert main(["bench", "drafts", *argv, "--model", str(checkpoint())]) == 0
    assert figure.read_bytes()[:4] == b"\x89PNG"
    assert json.loads(file.read_text())["format"] == "draft curve"
    assert "Not slower than without drafts from an acceptance of: k = 1 " in capsys.readouterr().out
