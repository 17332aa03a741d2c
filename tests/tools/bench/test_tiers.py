"""`bench tiers`: what the chats ask, which processes serve them, and what is reported. No times."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.bench import tiers
from nanoinfer.bench.engines import EngineSpec, parse_engine
from nanoinfer.bench.tiers import (
    WAYS,
    TierSettings,
    below,
    chats,
    figures,
    measure_tiers,
    our_way,
    their_way,
    tier_peers,
)
from nanoinfer.bench.tiers_report import differences, format_tiers
from nanoinfer.bench.workloads import Request
from nanoinfer.cli.main import main
from nanoinfer.model.loader import resolve_model_path
from tests.helpers.fake_sessions import FAKE

SMALL: dict[str, Any] = {"turns": 3, "first_tokens": 20, "question_tokens": 3, "new_tokens": 4, "rounds": 1}


def cells_of(text: str, heading: str) -> dict[str, list[str]]:
    """The rows of the table below a heading, by their first cell."""
    lines = text.split(f"\n{heading}\n\n", 1)[1].split("\n\n", 1)[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {row[0]: row[1:] for row in rows}


# --- what is asked ----------------------------------------------------------------------------------------------------


def test_each_turn_continues_the_one_before_and_chats_share_nothing() -> None:
    turns = chats(TierSettings(**SMALL), 5, 2048, 0)
    assert [[len(request.prompt) for request in turn] for turn in turns] == [[20] * 5, [27] * 5, [34] * 5]
    for earlier, later in pairwise(turns):
        for one, other in zip(earlier, later, strict=True):
            assert other.prompt[: len(one.prompt)] == one.prompt
            assert other.new_tokens == 4
    assert len({tuple(request.prompt[:3]) for request in turns[0]}) == 5
    assert turns == chats(TierSettings(**SMALL), 5, 2048, 0), "every way gets the same"
    assert turns[0] != chats(TierSettings(**SMALL), 5, 2048, 1)[0]


def test_the_pool_has_room_for_four_chats_and_host_memory_for_all(tmp_path: Path) -> None:
    settings = TierSettings(**SMALL)
    assert (settings.longest, settings.pool) == (20 + 2 * 7 + 4, 4 * 48)
    without, host, files = (our_way(way, settings, 16, tmp_path).options for way in WAYS)
    assert without == {"max_total_tokens": 192, "max_running_requests": 4}
    assert host == {**without, "host_cache_tokens": 16 * 48}
    assert files == {**without, "cache_dir": str(tmp_path)}


def test_figures_are_those_of_all_groups_together() -> None:
    requests = [Request([1] * 10, 2), Request([2] * 10, 2), Request([3] * 30, 2)]
    answers = [
        {"times": [[0.5, 1.0], [1.5, 2.0]], "wall_s": 2.0, "cached_tokens": [5, 0], "tokens": [[1, 2], [3, 4]]},
        {"times": [[0.25, 1.0]], "wall_s": 1.0, "cached_tokens": [20], "tokens": [[5, 6]]},
    ]
    wanted = {"ttft_s": 0.5, "output_tok_s": 2.0, "cached": 0.5, "tokens": [[1, 2], [3, 4], [5, 6]]}
    assert figures(requests, answers) == wanted
    assert figures(requests, [{**answers[0], "cached_tokens": [None, 0]}, answers[1]])["cached"] is None


# --- who serves it ----------------------------------------------------------------------------------------------------


def test_a_process_serves_all_turns_but_the_last_and_a_new_one_that(monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeWorker(tiers.Worker):
        def __init__(self, command: list[str], *args: Any):
            super().__init__(command, *args)
            asked.append([json.loads(command[-1]).get("way")])

        def ask(self, message: Any) -> dict[str, Any]:
            asked[-1].append("save" if "save" in message else [len(each["prompt"]) for each in message["requests"]])
            return super().ask(message)

    asked: list[list[Any]] = []
    monkeypatch.setattr(tiers, "Worker", FakeWorker)
    monkeypatch.setattr(tiers, "our_way", lambda way, *args: EngineSpec(way, FAKE, options={"way": way}))
    broken = EngineSpec("broken", FAKE, options={"way": "broken", "refuse": True})
    peers = [broken, EngineSpec("wrong", FAKE, options={"way": "wrong", "off_by": 1})]
    kept: list[int] = []
    settings = TierSettings([2, 6], **SMALL, peers=peers)
    results = measure_tiers(resolve_model_path("story"), settings, lambda each: kept.append(len(each["runs"])))
    assert kept == [5, 10]
    warm = [64, 100, 300]
    two, six = [[20, 20]], [[20] * 4, [20] * 2]
    for way in (*WAYS, "wrong"):
        assert [calls[1:] for calls in asked if calls[0] == way] == [
            [warm, *two, [27, 27], "save"],
            [warm, [34, 34], "save"],
            [warm, *six, [27] * 4, [27] * 2, "save"],
            [warm, [34] * 4, [34] * 2, "save"],
        ]
    same = {(run["way"], run["conversations"]): run.get("same_answers") for run in results["runs"]}
    assert same["files", 6] == same["host memory", 6] == [18, 18]
    assert same["wrong", 2] == [0, 6]
    text = format_tiers(results)
    rows = cells_of(text, "6 chats")
    assert [*rows] == [*WAYS, "broken", "wrong"]
    assert rows["files"][-1] == "18 of 18"
    assert rows["without"][5] == "1.00"
    assert [rows[way][0] for way in (*WAYS, "wrong")] == ["nothing", "host memory", "host memory, files", ""]
    assert rows["broken"][:2] == ["", "failed"]
    assert "- FAILED: broken: FileNotFoundError: " in text
    assert differences(results, WAYS) == []
    assert differences(results, ["wrong"])[0] == "wrong, 2 chats, round 0: 6 of 6 answers"


def test_the_table_has_medians_over_rounds() -> None:
    def run(way: str, number: int, before: float, after: float) -> dict[str, Any]:
        parts = {
            name: {"ttft_s": seconds, "output_tok_s": 10.0, "cached": 0.5}
            for name, seconds in (("before", before), ("after", after))
        }
        return {"round": number, "conversations": 4, "way": way, **parts, "same_answers": [8, 8]}

    runs = [run("without", i, 2.0, after) for i, after in enumerate((4.0, 8.0, 8.0))]
    runs += [run("files", i, before, 2.0) for i, before in enumerate((1.0, 3.0, 2.5))]
    settings = {
        "turns": 3,
        "first_tokens": 1,
        "question_tokens": 1,
        "new_tokens": 1,
        "pool": 64,
        "threads": 1,
        "rounds": 3,
    }
    model, below = {"name": "m", "dtype": "float32"}, {"without": "nothing", "files": "a folder"}
    text = format_tiers({"model": model, "settings": settings, "below": below, "runs": runs})
    rows = cells_of(text, "4 chats")
    assert rows["files"] == ["a folder", "2.500 s", "10", "50%", "2.000 s", "0.25", "10", "50%", "24 of 24"]
    assert rows["without"][4:6] == ["8.000 s", "1.00"]


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_finds_in_files_what_a_process_has_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiers.json"
    argv = ["--conversations", "1", "--turns", "2", "--first-tokens", "60", "--new-tokens", "4", "--rounds", "1"]
    assert main(["bench", "tiers", *argv, "--threads", "1", "--out", str(file)]) == 0
    results = json.loads(file.read_text())
    assert results["format"] == "tiers"
    runs = {run["way"]: run for run in results["runs"]}
    assert {way: run["after"]["cached"] for way, run in runs.items()} == {
        "without": 0.0,
        "host memory": 0.0,
        "files": 48 / (60 + 4 + 24),
    }
    assert all(run["same_answers"] == [2, 2] for run in runs.values())
    assert cells_of(capsys.readouterr().out, "1 chats")["files"][-1] == "2 of 2"


def test_bad_options_are_named_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, message in (
        (["--conversations", "4", "0"], "--conversations 0: must be at least 1"),
        (["--turns", "1"], "--turns 1: must be at least 2"),
        (["--rounds", "0"], "--rounds 0: must be at least 1"),
        (["--first-tokens", "1000"], "a chat would have 1144 tokens at its end, but the context of story has 1024"),
        (["--compare", "nanoinfer"], "--compare nanoinfer: is always measured"),
        (["--compare", "llamacpp", "--dtype", "bfloat16"], "--dtype bfloat16: llamacpp reads a converted file"),
        (
            ["--compare", "openvino"],
            "--compare openvino: has nothing below its cache; must be vllm, llamacpp or a file",
        ),
        (["--compare", "transformers"], "--compare transformers: has nothing below its cache"),
        (["--compare", str(FAKE), str(FAKE)], "--compare fake_peer: given twice"),
    ):
        assert main(["bench", "tiers", *argv]) == 2
        assert message in capsys.readouterr().err


def test_peers_have_room_for_as_much_as_we_have(tmp_path: Path) -> None:
    settings, name = TierSettings(**SMALL), "vllm:num_gpu_blocks_override=3,kv_offloading_size=1"
    vllm, own, llamacpp, other = tier_peers(["vllm", name, "llamacpp", str(FAKE)])
    wanted = {"block_size": 32, "num_gpu_blocks_override": 7, "max_num_seqs": 4}
    assert their_way(vllm, settings, tmp_path).options == wanted
    assert their_way(own, settings, tmp_path).options == {
        **wanted,
        "num_gpu_blocks_override": 3,
        "kv_offloading_size": 1,
    }
    assert their_way(llamacpp, settings, tmp_path).options == {"slots": 4, "folder": str(tmp_path)}
    assert their_way(other, settings, tmp_path) == other
    assert [below(each) for each in (vllm, own, other)] == ["nothing", "as its options say", ""]
    assert below(llamacpp) == "saved slots: memory, then files"
    assert own.options == parse_engine(name).options
