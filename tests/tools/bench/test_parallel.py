"""`bench parallel`: the same requests from one process, and from two that split the model."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from nanoinfer import LLM
from nanoinfer.bench.parallel import WAYS, bench_parallel
from nanoinfer.bench.parallel_on_paper import KNOWN, LINKS, PaperModel, on_paper, pass_seconds
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
    assert {each["model"] for each in results["on_paper"]} == {"story", "Llama 3.1 8B", "Llama 3.1 70B"}
    assert "2 processes, 1 thread each" in capsys.readouterr().out


@pytest.mark.parametrize("field", ["num_requests", "prompt_tokens", "new_tokens", "rounds"])
def test_sizes_out_of_range_are_refused_before_anything_is_loaded(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}=0"):
        bench_parallel("no such model", **{field: 0})


def test_on_paper_a_pass_takes_what_data_sheets_say() -> None:
    """By hand: 8.03e9 weights of two bytes at 3.35 TB/s; 65 sums, each of two messages behind one start."""
    model = KNOWN[0]
    compute, sums = pass_seconds(model, 1, 2, LINKS[0])
    assert compute == pytest.approx(8.03e9 * 2 / 3.35e12 / 2)
    assert sums == pytest.approx(65 * (3.6e-6 + 2 * (0.47e-6 + 4096 / 450e9)))
    compute, sums = pass_seconds(model, 2048, 1, None)
    assert (compute, sums) == (pytest.approx(2 * 8.03e9 * 2048 / 989e12), 0), "a long prompt is multiplied, not read"


def test_on_paper_a_small_model_loses_and_a_large_one_gains() -> None:
    small = PaperModel("small", 57e6, 8, 512)
    gains = {(r.model, r.devices, r.link): r.decode_gain for r in on_paper([small, *KNOWN])}
    assert gains["small", 1, ""] == 1
    assert (
        gains["small", 2, "NVLink 4"]
        < 1
        < gains["Llama 3.1 8B", 2, "NVLink 4"]
        < gains["Llama 3.1 70B", 2, "NVLink 4"]
        < 2
    )
    unfit = [(r.model, r.devices) for r in on_paper(KNOWN, [2]) if not r.fits]
    assert unfit == [("Llama 3.1 70B", 1)]


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


def test_the_stored_figures_on_paper_are_what_is_computed_today(story: LLM) -> None:
    stored, config = json.loads(STORED.read_text())["on_paper"], story.model.config
    own = PaperModel("story", story.model.model.num_parameters, config.num_hidden_layers, config.hidden_size)
    assert [asdict(result) for result in on_paper([own, *KNOWN])] == [pytest.approx(each) for each in stored]
