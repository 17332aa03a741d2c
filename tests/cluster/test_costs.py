"""What passes cost: the sum of parts, fitted to measurements, saved, and published for accelerators."""

from pathlib import Path

import numpy as np
import pytest

from nanoinfer.cluster.calibrate import measure_passes
from nanoinfer.cluster.costs import (
    LENGTHS,
    MOST_REQUESTS,
    THROUGHPUT,
    MeasuredPass,
    PassCosts,
    attended_pairs,
    fit,
    kv_slots,
    published_costs,
)
from tests.helpers.engines import Clock, greedy, make_engine

KNOWN = PassCosts(2e-3, 1e-4, 3e-4, 2e-6, 5e-8, 1e-3, 4e-4, "made up")


def passes_of(costs: PassCosts) -> list[MeasuredPass]:
    found = [
        MeasuredPass("decode", rows, rows, context * rows, costs.decode_seconds(rows, context * rows))
        for rows in (1, 3, 8, 20)
        for context in (10, 200, 900)
    ]
    for rows in (1, 2, 4):
        for cached, new in ((0, 5), (0, 300), (400, 20), (100, 900)):
            pairs = rows * attended_pairs(cached, cached + new)
            found.append(MeasuredPass("extend", rows, rows * new, pairs, costs.extend_seconds(rows, rows * new, pairs)))
    return found


def relative_errors(costs: PassCosts) -> list[float]:
    return [costs.seconds(each) / each.seconds - 1 for each in passes_of(KNOWN)]


def test_a_fit_finds_the_costs_that_made_the_measurements() -> None:
    found = fit(passes_of(KNOWN), "found")
    for name in ("seconds_per_pass", "seconds_per_prompt_token", "seconds_per_decode_row", "seconds_per_attended_pair"):
        assert getattr(found, name) == pytest.approx(getattr(KNOWN, name), rel=1e-6), name
    assert found.source == "found"
    assert max(map(abs, relative_errors(found))) < 1e-9


def test_a_fit_of_noisy_measurements_is_never_negative_and_close() -> None:
    rng = np.random.default_rng(3)
    noisy = [
        MeasuredPass(one.kind, one.rows, one.new_tokens, one.pairs, one.seconds * rng.uniform(0.9, 1.1))
        for one in passes_of(KNOWN)
    ]
    errors = relative_errors(fit(noisy))
    assert np.mean(np.abs(errors)) < 0.06


def test_attended_pairs_count_each_token_with_itself_and_all_before() -> None:
    assert attended_pairs(0, 4) == 1 + 2 + 3 + 4
    assert attended_pairs(2, 4) == 3 + 4
    assert attended_pairs(5, 5) == 0


def test_costs_are_saved_and_loaded(tmp_path: Path) -> None:
    KNOWN.save(tmp_path / "costs.json")
    assert PassCosts.load(tmp_path / "costs.json") == KNOWN


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "something else"}'])
def test_another_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ValueError, match=r"other\.json"):
        PassCosts.load(tmp_path / "other.json")


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "1"])
def test_a_cost_that_is_no_time_is_refused_by_name(value: object) -> None:
    with pytest.raises(ValueError, match="seconds_per_decode_row"):
        PassCosts(1e-3, 1e-4, value, 0.0)  # type: ignore[arg-type]


def test_passes_of_one_kind_cannot_be_fitted() -> None:
    with pytest.raises(ValueError, match="EXTEND and DECODE"):
        fit([each for each in passes_of(KNOWN) if each.kind == "decode"])


@pytest.mark.parametrize("name", THROUGHPUT)
def test_published_costs_give_the_published_throughput(name: str) -> None:
    costs = published_costs(name)
    for (prompt, output), published in zip(LENGTHS, THROUGHPUT[name], strict=True):
        context = prompt + output / 2
        together = min(kv_slots(name) / context, MOST_REQUESTS)
        step = costs.decode_seconds(round(together), together * context) / together
        assert output / (costs.prefill_seconds(prompt) + output * step) == pytest.approx(published, rel=0.05)


def test_calibration_measures_passes_of_both_kinds_on_an_engine() -> None:
    clock = Clock()

    def ticking() -> float:
        clock.now += 0.001
        return clock.now

    engine = make_engine(rows=4, slots=512, chunked_prefill_size=32)
    measured = measure_passes(engine, rounds=1, clock=ticking)
    assert {each.kind for each in measured} == {"extend", "decode"}
    assert {each.rows for each in measured if each.kind == "decode"} == {1, 2, 4}
    assert all(each.seconds == pytest.approx(0.001) for each in measured)
    assert not engine.has_unfinished()
    engine.check_integrity()


def test_calibration_wants_the_engine_alone() -> None:
    engine = make_engine()
    engine.add_request([1, 2, 3], greedy())
    with pytest.raises(ValueError, match="open requests"):
        measure_passes(engine)
