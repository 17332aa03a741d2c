"""`bench parallel`: the same requests from one process, and from two that split the model."""

import json
from pathlib import Path

import pytest
import torch

from nanoinfer.bench.parallel import WAYS, bench_parallel
from nanoinfer.cli.main import main

ROOT = Path(__file__).parents[3]
STORED = ROOT / "data" / "bench" / "parallel.json"


@pytest.mark.slow
def test_each_way_serves_the_same_tokens_and_threads_are_put_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, file = torch.get_num_threads(), tmp_path / "parallel.json"
    sizes = ["--requests", "2", "--prompt-tokens", "9", "--new-tokens", "4", "--rounds", "1"]
    assert main(["bench", "parallel", "--dtype", "float32", *sizes, "--json", str(file)]) == 0
    assert torch.get_num_threads() == before
    results = json.loads(file.read_text())
    found = results["measured"]
    assert [each["way"] for each in found] == [way.name for way in WAYS]
    assert all(each["tokens_equal"] for each in found)
    assert found[0]["prefill_ratio"] == found[0]["decode_ratio"] == 1
    assert all(each["decode_tokens_per_second"] > 0 for each in found)
    shares = [(each["prefill_waits_share"], each["decode_waits_share"]) for each in found]
    assert shares[0] == shares[2] == (None, None), "one process waits for nobody"
    assert all(0 < share < 1 for share in (*shares[1], *shares[3]))
    assert 0.5 < found[1]["weights_mib"] / found[0]["weights_mib"] < 0.55, "norms are whole in each"
    assert "2 processes, 1 thread each" in capsys.readouterr().out


@pytest.mark.parametrize("field", ["num_requests", "prompt_tokens", "new_tokens", "rounds"])
def test_sizes_out_of_range_are_refused_before_anything_is_loaded(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}=0"):
        bench_parallel("no such model", **{field: 0})


def test_the_page_on_measurements_shows_the_stored_figures() -> None:
    """Every row of its two tables, as the file has it."""
    stored, page = json.loads(STORED.read_text()), (ROOT / "data" / "bench" / "README.md").read_text()
    assert [each["way"] for each in stored["measured"]] == [way.name for way in WAYS]
    for each in stored["measured"]:
        waits = [
            "–" if each[name] is None else f"{each[name]:.0%}" for name in ("prefill_waits_share", "decode_waits_share")
        ]
        speeds = [f"{each['prefill_tokens_per_second']:.0f}", f"{each['prefill_ratio']:.2f}", waits[0]]
        speeds += [f"{each['decode_tokens_per_second']:.1f}", f"{each['decode_ratio']:.2f}", waits[1]]
        row = [each["way"], *speeds, f"{each['weights_mib']:.0f}", f"{each['memory_mib']:.0f}"]
        assert f"| {' | '.join(row)} |" in page
    shown = [each for each in stored["on_paper"] if each["devices"] in (1, 2)]
    assert len(shown) == 12
    for each in shown:
        row = [each["model"], str(each["devices"]), each["link"] or "–"]
        for kind in ("decode", "prefill"):
            row += [f"{each[f'{kind}_ms']:.2f}", f"{each[f'{kind}_gain']:.2f}", f"{each[f'{kind}_sums_share']:.0%}"]
        assert f"| {' | '.join(row)} |" in page
