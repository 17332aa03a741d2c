"""`bench parallel`: the same requests from one process, and from two that split the model."""

import json
from pathlib import Path

import pytest
import torch

from nanoinfer.bench.parallel import WAYS, bench_parallel, format_parallel
from nanoinfer.cli.main import main


@pytest.mark.slow
def test_each_way_serves_the_same_tokens_and_threads_are_put_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, file = torch.get_num_threads(), tmp_path / "parallel.json"
    sizes = ["--requests", "2", "--prompt-tokens", "9", "--new-tokens", "4", "--rounds", "1"]
    assert main(["bench", "parallel", "--dtype", "float32", *sizes, "--json", str(file)]) == 0
    assert torch.get_num_threads() == before
    found = json.loads(file.read_text())
    assert [each["way"] for each in found] == [way.name for way in WAYS]
    assert all(each["tokens_equal"] for each in found)
    assert found[0]["prefill_ratio"] == found[0]["decode_ratio"] == 1
    assert all(each["decode_tokens_per_second"] > 0 for each in found)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["parallel", "prefill"]
    assert lines[2].startswith("2 processes, 1 thread each")


@pytest.mark.parametrize("field", ["num_requests", "prompt_tokens", "new_tokens", "rounds"])
def test_sizes_out_of_range_are_refused_before_anything_is_loaded(field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}=0: must be at least"):
        bench_parallel("no such model", **{field: 0})


def test_a_table_says_what_its_columns_mean() -> None:
    assert "two all-reduces per layer" in format_parallel([])
