"""`bench run --device`: who computes where, and what is said of it."""

import copy
import json
from pathlib import Path

import pytest

from nanoinfer.bench.engines import parse_engine
from nanoinfer.bench.remarks import remarks
from nanoinfer.cli.main import main

GPU = json.loads((Path(__file__).parents[3] / "data" / "bench" / "cuda.json").read_text())["models"][0]


def test_both_engines_that_know_other_devices_are_told() -> None:
    ours, other = (parse_engine(text).on("cuda") for text in ("nanoinfer:capture=false", "transformers"))
    assert json.loads(ours.command("model", "float32", 2)[-1])["device"] == "cuda"
    assert ours.options == {"device": "cuda", "capture": False}
    assert (other.name, other.options) == ("transformers", {"device": "cuda"})


def test_another_engine_is_refused_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "run", "--device", "cuda", "--compare", "vllm"]) != 0
    assert "--device cuda: vllm is measured on the CPU only" in capsys.readouterr().err


def test_what_the_processor_can_do_is_no_measure_for_a_gpu() -> None:
    on_cpu = copy.deepcopy(GPU)
    for engine in on_cpu["engines"]:
        del engine["options"]["device"]
    assert "share of" not in remarks(GPU)
    assert "share of" in remarks(on_cpu)
