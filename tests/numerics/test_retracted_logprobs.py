"""Retraction with real models: tokens, log-probabilities and texts are those of requests that never gave way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM, RequestOutput, SamplingParams

GAMBLE = 0.001  # schedule_conservativeness that sets (next to) nothing aside
Checkpoint = Callable[..., Path]
PROMPTS = [[(11 * i + 5 * j * j) % 300 + 3 for j in range(20)] for i in range(4)]


def run(llm: LLM, params: list[SamplingParams]) -> list[list[RequestOutput]]:
    """All outputs of each request, in order."""
    engine = llm.engine
    ids = [engine.add_request(prompt, asked) for prompt, asked in zip(PROMPTS, params, strict=True)]
    outputs: dict[int, list[RequestOutput]] = {rid: [] for rid in ids}
    while engine.has_unfinished():
        engine.scheduler.new_token_ratio.value = engine.scheduler.new_token_ratio.floor
        for output in engine.step():
            outputs[output.request_id].append(output)
        engine.check_integrity()
    return [outputs[rid] for rid in ids]


def params(i: int) -> SamplingParams:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"seed": 5, "top_k": 40},
        {"seed": 6, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "min_new_tokens": 20},
        {"seed": 7, "presence_penalty": 0.7, "top_p": 0.95},
    ]
    return SamplingParams(
        max_new_tokens=24, logprobs=2, prompt_logprobs=True, prompt_top_logprobs=2, ignore_eos=True, **kinds[i % 4]
    )


@pytest.mark.parametrize("options", [{}, {"page_size": 4}, {"chunked_prefill_size": 7}, {"disable_radix_cache": True}])
def test_tokens_and_log_probabilities_are_those_of_requests_that_never_gave_way(
    checkpoint: Checkpoint, options: dict[str, Any]
) -> None:
    each = [params(i) for i in range(4)]
    alone = [run_alone[-1] for run_alone in run(LLM(checkpoint(), schedule_conservativeness=11.0), each)]
    llm = LLM(checkpoint(), max_total_tokens=100, schedule_conservativeness=GAMBLE, **options)
    outputs = run(llm, each)
    assert llm.engine.stats().retractions >= 2
    for got, wanted in zip(outputs, alone, strict=True):
        assert got[-1].token_ids == wanted.token_ids
        assert got[-1].logprobs is not None
        assert wanted.logprobs is not None
        for entry, other in zip(got[-1].logprobs, wanted.logprobs, strict=True):
            assert entry == pytest.approx(other, abs=1e-4)
        assert got[-1].prompt_logprobs is not None
        assert wanted.prompt_logprobs is not None
        assert got[-1].prompt_logprobs[1:] == pytest.approx(wanted.prompt_logprobs[1:], abs=1e-4)
        assert got[-1].prompt_top_logprobs is not None
        assert wanted.prompt_top_logprobs is not None
        for entry, other in zip(got[-1].prompt_top_logprobs[1:], wanted.prompt_top_logprobs[1:], strict=True):
            assert entry == pytest.approx(other, abs=1e-4)
        assert [len(output.token_ids) for output in got] == list(range(1, 25)), "a token a time, none twice"
        assert len({output.ttft for output in got}) == 1, "the first token came when it came"
        assert {output.cached_tokens for output in got} == {0}
    stats = llm.engine.stats()
    assert (stats.prompt_tokens, stats.output_tokens) == (80, 96), "a request is admitted for the first time once"


def test_text_and_stop_strings_go_on_across_a_retraction() -> None:
    def texts(**options: Any) -> tuple[list[str], int]:
        llm = LLM("story", **options)
        prompts = ["Once upon a time, there was", "The dog saw a", "Lily and Tom went to"]
        sampling = [
            SamplingParams(max_new_tokens=40, temperature=0),
            SamplingParams(max_new_tokens=40, seed=1, stop=[".", "zzz"], min_new_tokens=12),
            SamplingParams(max_new_tokens=40, seed=2, n=2),
        ]
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        return [one.text for out in outputs for one in out.outputs], llm.engine.stats().retractions

    wanted, none = texts(schedule_conservativeness=11.0)
    got, some = texts(max_total_tokens=72, schedule_conservativeness=GAMBLE)
    assert none == 0 < some
    assert got == wanted
