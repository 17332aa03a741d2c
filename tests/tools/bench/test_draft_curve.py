"""`bench drafts --curve`: an oracle that is right as often as it is told, and from where drafts pay. No times."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from nanoinfer import LLM
from nanoinfer.bench.draft_curve import CurveSettings, _engines, curve, decode, format_curve, measure_curve, pays_from
from nanoinfer.bench.draft_oracle import OracleDrafter
from nanoinfer.cli.main import main
from nanoinfer.registry import DRAFTERS
from tests.helpers.fake_sessions import table_after


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
