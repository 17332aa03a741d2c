"""`bench`: the figures that are not times, and the table."""

import json
from pathlib import Path

import pytest
import torch

from nanoinfer import LLM
from nanoinfer.bench.decode import bench_decode
from nanoinfer.cli.main import main
from nanoinfer.kernels.cpp import CppKernels


@pytest.mark.parametrize("backend", ["torch_native", "cpp"])
def test_three_ways_decode_the_same_tokens_at_different_costs(backend: str) -> None:
    if backend == "cpp" and (reason := CppKernels.why_not(torch.float32, torch.device("cpu"))):
        pytest.skip(reason)
    story = LLM("story", dtype="float32", max_running_requests=8, attention_backend=backend)
    free = story.engine.stats()["free_slots"]
    one_by_one, padded, pooled = bench_decode(story, num_requests=3, new_tokens=4, rounds=1)
    assert [one_by_one.tokens_equal, padded.tokens_equal, pooled.tokens_equal] == [True, True, True]
    assert [one_by_one.forwards, padded.forwards, pooled.forwards] == [9, 3, 3]
    assert one_by_one.bytes_copied_per_token == padded.bytes_copied_per_token > 0 == pooled.bytes_copied_per_token
    assert one_by_one.padding_share == 0 < padded.padding_share
    assert one_by_one.bytes_read_per_token < padded.bytes_read_per_token
    as_pooled = padded if backend == "torch_native" else one_by_one  # gathered into a rectangle, or read where it lies
    assert pooled.padding_share == as_pooled.padding_share
    assert pooled.bytes_read_per_token == as_pooled.bytes_read_per_token
    assert one_by_one.ratio == 1.0
    story.engine.check_integrity()
    assert story.engine.stats()["free_slots"] >= free


@pytest.mark.parametrize("arguments", [{"num_requests": 0}, {"num_requests": 9}, {"new_tokens": 1}, {"rounds": 0}])
def test_arguments_out_of_range_are_named(arguments: dict[str, int], story: LLM) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        bench_decode(story, **{"num_requests": 2, **arguments})


def test_a_pool_that_cannot_hold_all_requests_at_once_is_refused() -> None:
    small = LLM("story", max_total_tokens=100, max_running_requests=8)
    with pytest.raises(ValueError, match="max_total_tokens=100"):
        bench_decode(small, num_requests=8, new_tokens=16, rounds=1)


def test_an_engine_at_work_is_left_alone() -> None:
    llm = LLM("story", max_running_requests=4)
    request_id = llm.engine.add_request("Once")
    with pytest.raises(ValueError, match="llm"):
        bench_decode(llm, num_requests=2)
    assert llm.engine.is_unfinished(request_id)


def test_the_command_prints_the_table_and_writes_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "decode.json"
    argv = ["bench", "decode", "--requests", "2", "--new-tokens", "3", "--rounds", "1", "--json", str(file)]
    assert main(argv) == 0
    out = capsys.readouterr().out
    ways = [result["way"] for result in json.loads(file.read_text())]
    assert ways == ["sessions, one by one", "sessions, padded batch", "pooled"]
    assert all(way in out for way in ways)
