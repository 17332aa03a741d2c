"""The profiler: parts add up, nothing is left behind, and steps of both kinds are distinguished."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.bench.profile_report import format_profile
from nanoinfer.bench.profiler import Profiler, as_json, profile_model
from nanoinfer.bench.workloads import WORKLOADS, make_job, warm_up
from nanoinfer.engine.engine import Engine
from nanoinfer.model.captured_passes import CapturedPass
from nanoinfer.model.input_metadata import InputMetadata
from nanoinfer.model.model_runner import ModelRunner
from nanoinfer.requests.outputs import RequestOutput
from tests.helpers.waiting import until

PARAMS = SamplingParams(max_new_tokens=4, temperature=0.0, ignore_eos=True)
PROMPTS = [[5, 6, 7], [8, 9]]


@pytest.fixture
def llm(checkpoint: Callable[..., Path]) -> LLM:
    return LLM(checkpoint("qwen3"), max_running_requests=4)


def patchable(llm: LLM) -> Iterator[tuple[object, str, Any]]:
    """Everything a profiler could have replaced."""
    engine = llm.engine
    runner = engine.model_runner
    owners = [engine, engine.scheduler, engine.sampler, runner.attention_backend, runner.token_to_kv_pool]
    classes = {cls for owner in owners for cls in type(owner).__mro__} | {InputMetadata, CapturedPass, ModelRunner}
    classes |= {cls for module in llm.model.model.modules() for cls in type(module).__mro__}
    classes |= {c for m in llm.model.model.modules() if hasattr(m, "kernels") for c in type(m.kernels).__mro__}
    for place in classes:
        for name, value in vars(place).items():
            if not name.startswith("_abc") and name != "__dict__":
                yield place, name, value


def test_parts_add_up_to_the_steps(llm: LLM) -> None:
    with Profiler(llm.engine) as profiler:
        llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    profile = as_json(profiler.kinds)
    assert {kind: profile[kind]["steps"] for kind in profile} == {"extend": 1, "decode": 3}
    for kind in profile.values():
        assert sum(kind["parts"].values()) == pytest.approx(kind["seconds"], rel=1e-6)
        assert min(kind["parts"].values()) >= 0
        expected = {"schedule", "metadata", "sample", "process", "other", "forward: other"}
        expected |= {f"forward: {p}" for p in ("embed", "qkv", "o", "mlp", "lm_head", "norm", "rotary", "attention")}
        assert expected | {"forward: K/V store"} == set(kind["parts"])


def test_passes_that_check_drafts_are_a_kind_of_their_own(checkpoint: Callable[..., Path]) -> None:
    """A draft model's own passes, some of which are EXTENDs, do not make another kind of a step."""
    path = checkpoint("llama")
    llm = LLM(path, drafter="model", draft_model=path, adaptive_drafts=False, max_running_requests=4)
    for _ in range(2):  # the second time, passes are captured
        llm.engine.flush_cache()
        with Profiler(llm.engine) as profiler:
            llm.generate([[*range(3, 90)]], SamplingParams(max_new_tokens=10, temperature=0.0, ignore_eos=True))
        profile = as_json(profiler.kinds)
        assert {kind: profile[kind]["steps"] for kind in profile} == {"extend": 1, "verify": 2, "decode": 1}
        for kind in profile.values():
            assert sum(kind["parts"].values()) == pytest.approx(kind["seconds"], rel=1e-6)
            assert min(kind["parts"].values()) >= -1e-9
        assert {"schedule", "forward: mlp", "process"} <= profile["verify"]["parts"].keys()


def test_the_step_that_gave_the_last_output_counts(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers have their outputs before that step ends: here it ends only when the profile has, or waits for it."""
    engine, step, ended = llm.engine, type(llm.engine).step, threading.Event()

    def slow_at_the_end(called: Engine) -> list[RequestOutput]:
        outputs = step(called)
        if not called.has_unfinished():
            until(lambda: ended.is_set() or engine.turns.waiting)
        return outputs

    monkeypatch.setattr(type(engine), "step", slow_at_the_end)
    with Profiler(engine) as profiler:
        llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    ended.set()
    assert {kind: steps.steps for kind, steps in profiler.kinds.items()} == {"extend": 1, "decode": 3}


def test_what_was_wrapped_is_as_before_and_results_are_the_same(llm: LLM) -> None:
    before = list(patchable(llm))
    plain = [out.token_ids for out in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
    llm.engine.flush_cache()
    with Profiler(llm.engine):
        during = list(patchable(llm))
        profiled = [out.token_ids for out in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
    assert profiled == plain
    assert during != before
    assert list(patchable(llm)) == before


def test_it_is_undone_when_a_step_raises(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(patchable(llm))

    def broken(*_: object) -> None:
        raise RuntimeError("no logits today")

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.sampler, "logprobs", broken)
        with Profiler(llm.engine), pytest.raises(RuntimeError, match="no logits"):
            llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    assert list(patchable(llm)) == before


def test_a_profile_is_a_table_with_the_schedulers_share() -> None:
    profile = {
        "extend": {"steps": 1, "seconds": 0.2, "parts": {"forward: mlp": 0.1, "schedule": 0.04, "other": 0.06}},
        "decode": {"steps": 4, "seconds": 0.4, "parts": {"schedule": 0.02, "process": 0.02, "forward: mlp": 0.36}},
    }
    lines = format_profile(profile).splitlines()
    cells = {line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]] for line in lines[2:-2]}
    assert list(cells) == ["schedule", "forward: mlp", "process", "other", "whole step"]
    assert cells["schedule"] == ["40.000", "20.0%", "5.000", "5.0%"]
    assert cells["whole step"] == ["200.000", "", "100.000", ""]
    assert lines[-1] == "scheduler's share (schedule and process): extend 20.0%, decode 10.0%"


def test_profile_model_serves_each_workload(checkpoint: Callable[..., Path]) -> None:
    path = checkpoint()
    jobs = {
        "warm up": [warm_up(256, 320)],
        "shared-cached": [make_job(WORKLOADS["shared-cached"], 0, 256, 320, 0.0)],
    }
    profile = profile_model(str(path), "float32", 1, jobs)
    assert list(profile) == ["shared-cached"]
    assert profile["shared-cached"]["decode"]["steps"] > 1
