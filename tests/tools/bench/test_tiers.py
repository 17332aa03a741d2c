"""`bench tiers`: what the chats ask, which processes serve them, and what is reported. No times."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from nanoinfer.bench.engines import EngineSpec
from nanoinfer.bench.session import Settings
from nanoinfer.bench.tiers import DISK, HOST, WITHOUT, Chats, format_tiers, measure_tiers, tier_engines, turn_figures
from nanoinfer.bench.workloads import Request
from nanoinfer.cli.main import main
from nanoinfer.model.loader import resolve_model_path
from tests.helpers.fake_sessions import FAKE


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


def test_the_pool_has_room_for_four_chats_and_host_memory_for_all() -> None:
    chats = small(16)
    assert (chats.longest, chats.pool) == (20 + 2 * 7 + 4, 4 * 48)
    *ways, other = tier_engines([str(FAKE)])
    without, host, files = (chats.options(way, "kv") for way in ways)
    assert without == {"max_total_tokens": 192, "max_running_requests": 4}
    assert host == {**without, "host_cache_tokens": 16 * 48}
    assert files == {**without, "cache_dir": "kv"}
    assert chats.options(other, "kv") == {}


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
