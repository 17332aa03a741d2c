"""Real replicas in processes of their own, compared with simulated ones: what depends on time, and what does not."""

from pathlib import Path

import pytest

from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.simulate.figure import draw
from nanoinfer.cluster.simulate.table import table
from nanoinfer.cluster.simulate.validate import OPTIONS, Case, compare
from nanoinfer.cluster.simulate.worker import WorkerSpec


@pytest.mark.soak
def test_real_replicas_that_sleep_serve_the_same_sessions_with_the_same_hits(tmp_path: Path) -> None:
    costs = PassCosts(0.002, 1e-5, 1e-4, 1e-8, source="a test")
    case = Case("2 asleep", 2, "prefix", "shared", 10.0, 1.0, 0.1, WorkerSpec(options=OPTIONS, costs=costs))
    quick = compare(case, probes=2)
    assert quick.measured.requests == quick.simulated.requests > 10
    assert quick.measured.open == quick.simulated.open == 0
    assert quick.measured.hit_rate == pytest.approx(quick.simulated.hit_rate, abs=0.1)
    assert quick.measured.ttft_mean > 0
    assert quick.slower > 0.9, "passes never take less than they sleep"
    content = {"settings": {"kind": "validate"}, "runs": {case.name: quick.as_dict()}}
    assert "| 2 asleep " in table(content)
    draw(content, tmp_path / "validate.png")


@pytest.mark.slow
def test_a_replica_that_cannot_start_is_an_error_and_leaves_no_process() -> None:
    case = Case("none", 1, "round-robin", "chat", 1.0, 1.0, 0.1, WorkerSpec("no-such-folder/model", OPTIONS))
    with pytest.raises(RuntimeError, match="exit code 1"):
        compare(case)
