"""Engines whose decode passes the graph runner replays, one by one and in groups."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nanoinfer import LLM, RequestOutput, SamplingParams
from nanoinfer.errors import KernelsUnavailableError
from nanoinfer.model.layers.logits_processor import Likeliest
from nanoinfer.model.loader import LoadedModel
from tests.helpers.checkpoints import FAMILIES
from tests.helpers.drafts import STEM, WITH_TEXT, Asked, check_same, check_streams, contents, serve
from tests.helpers.engines import assert_all_free
from tests.helpers.kernels import need_cpp
from tests.helpers.pressure import never_twice_in_a_row
from tests.helpers.tiny_llm import make_llm_model, tiny_llm, words

Checkpoint = Callable[..., Path]
PROMPTS = [[5, 9, 200, 31, 7, 7, 250, 11, 64], [7], list(range(100, 123))]
GREEDY = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)


@pytest.fixture(autouse=True)
def _kernels() -> None:
    need_cpp("float32")


def tokens(llm: LLM) -> list[list[int]]:
    return [out.token_ids for out in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_the_same_with_and_without(family: str, checkpoint: Checkpoint):
    captured, eager = (LLM(checkpoint(family), capture=capture, max_total_tokens=200) for capture in (True, False))
    assert tokens(captured) == tokens(eager) == tokens(captured)
    passes = captured.engine.model_runner.captured
    assert set(passes.passes) == {(1, False), (3, True)}  # the first tells whether passes can be captured
    assert eager.engine.model_runner.captured is None
    assert captured.engine.stats().capture == "yes"
    assert eager.engine.stats().capture == "no (capture=False)"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_greedy_tokens_are_found_without_storing_the_logits(
    dtype: str, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
):
    """Unless a request needs the logits for something else: then they are all there, and the tokens are the same."""
    need_cpp(dtype)
    llm = LLM(checkpoint("llama"), dtype=dtype, max_total_tokens=200)
    passes = llm.engine.model_runner.captured
    sample, kinds = llm.engine.sampler.sample, []
    monkeypatch.setattr(llm.engine.sampler, "sample", lambda got, reqs: kinds.append(type(got)) or sample(got, reqs))
    found = tokens(llm)
    assert kinds == [torch.Tensor] + [Likeliest] * 11
    assert [shape for shape, each in passes.passes.items() if each.program.outputs[0].ndim == 1] == [(3, True)]
    for more in ({"logprobs": 2}, {"logit_bias": {5: 0.0001}}, {"repetition_penalty": 1.0001}, {"min_new_tokens": 12}):
        params = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True, **more)
        assert [out.token_ids for out in llm.generate(PROMPTS, params, use_tqdm=False)] == found
        assert set(kinds[12:]) == {torch.Tensor}
    assert set(passes.passes) == {(3, True), (3, False)}


@pytest.mark.parametrize("options", [{"kernels": "torch"}, {"attention_backend": "torch_native"}])
def test_what_cannot_be_captured_runs_as_before_and_says_why(options: dict[str, str], checkpoint: Checkpoint):
    llm = LLM(checkpoint("llama"), **options)
    assert tokens(llm) == tokens(LLM(checkpoint("llama")))
    ((_option, value),) = options.items()
    assert value in llm.engine.stats().capture
    assert "only" in llm.engine.stats().capture
    with pytest.raises(KernelsUnavailableError, match=f"capture=True: .*{value}"):
        LLM(checkpoint("llama"), capture=True, **options)


def test_a_kind_of_weights_that_torch_computes_is_found_out_in_the_first_pass(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
):
    from nanoinfer.model.layers.linear_weights import DenseWeights
    from nanoinfer.registry import QUANTIZATIONS

    class Doubled(DenseWeights):
        def multiply(self, x: torch.Tensor) -> torch.Tensor:
            return super().multiply(x) * 2 / 2

    monkeypatch.setitem(QUANTIZATIONS, "doubled", Doubled)
    llm = LLM(checkpoint("llama"), quantization="doubled")
    assert tokens(llm) == tokens(LLM(checkpoint("llama")))
    assert llm.engine.stats().capture == "no (torch computes mul)"
    with pytest.raises(KernelsUnavailableError, match="capture=True: torch computes mul"):
        LLM(checkpoint("llama"), quantization="doubled", capture=True)


@pytest.mark.parametrize("capture", ["yes", 1, 0, None, "True"])
def test_other_values_are_refused(capture: Any):
    with pytest.raises(ValueError, match=f"capture={capture!r}: must be auto, True or False"):
        LLM("no/such-model", capture=capture)


GROUPS = [2, 3, 8]
NO_REPEATS = {"logits_processors": (never_twice_in_a_row,), "logit_bias": {4: -100.0}}
GROUPED: Asked = [*WITH_TEXT, (STEM[:4], {"temperature": 0, **NO_REPEATS})]
POOLS: dict[str, dict[str, Any]] = {
    "roomy": {},
    "pages of 4": {"page_size": 4},
    "pages of 16": {"page_size": 16},
    "tight": {"max_total_tokens": 64, "schedule_conservativeness": 0.001},
    "tight, chunks": {"max_total_tokens": 64, "schedule_conservativeness": 0.001, "chunked_prefill_size": 6},
    "tight, pages and chunks": {
        "max_total_tokens": 60,
        "page_size": 4,
        "schedule_conservativeness": 0.001,
        "chunked_prefill_size": 8,
    },
    "no cache": {"disable_radix_cache": True, "max_total_tokens": 64, "schedule_conservativeness": 0.001},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return make_llm_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def alone(model: LoadedModel) -> list[RequestOutput]:
    """Each request by itself, in single passes, without a cache."""
    llm = tiny_llm(model, max_running_requests=3, disable_radix_cache=True)
    return [serve(llm, [asked])[0] for asked in GROUPED]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("k", GROUPS)
def test_what_is_returned_is_the_same_in_groups_of_any_size(
    model: LoadedModel, alone: list[RequestOutput], k: int, pool: str
) -> None:
    llm = tiny_llm(model, max_running_requests=8, num_scheduler_steps=k, random_seed=0, **POOLS[pool])
    check_same(llm, serve(llm, GROUPED), alone)
    assert_all_free(llm.engine)
    assert {each[2] for each in contents(alone)} == {"stop", "length"}
    if "tight" in pool:
        assert llm.engine.stats().retractions


@pytest.mark.parametrize("k", GROUPS)
def test_streams_come_in_groups_and_say_the_same(model: LoadedModel, k: int) -> None:
    asked = SamplingParams(max_new_tokens=12, seed=4, ignore_eos=True)
    prompt = words(STEM[:5])
    (wanted,) = tiny_llm(model).generate(prompt, asked)
    llm = tiny_llm(model, num_scheduler_steps=k)
    check_streams(llm, prompt, asked, wanted, {*range(1, 12, k), 12})  # the prompt's pass, then groups
