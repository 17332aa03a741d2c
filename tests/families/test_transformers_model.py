"""Decoders of transformers for which there is no family here: their own network on our pools has their tokens.

The oracle: transformers, each prompt alone, with eager attention.
"""

from pathlib import Path

import pytest

from nanoinfer import LLM, SamplingParams, UnsupportedModelError
from tests.helpers.any_decoder import QUICK, REFUSED, SLOW, Expected, expected_of, save_any

GREEDY = SamplingParams(max_new_tokens=6, temperature=0, ignore_eos=True)
SCORED = SamplingParams(max_new_tokens=6, temperature=0, ignore_eos=True, prompt_logprobs=True)


def compare(llm: LLM, expected: list[Expected]) -> None:
    """In one batch, with log-probabilities of the prompts, and one after the other from the cache."""
    prompts, tokens = [each.prompt for each in expected], [each.tokens for each in expected]
    assert [out.token_ids for out in llm.generate(prompts, GREEDY, use_tqdm=False)] == tokens
    scored = llm.generate(prompts, SCORED, use_tqdm=False)
    assert [out.token_ids for out in scored] == tokens
    for out, each in zip(scored, expected, strict=True):
        assert out.prompt_logprobs is not None
        assert out.prompt_logprobs[1:] == pytest.approx(each.prompt_logprobs, abs=1e-3)
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in prompts]
    assert [out.token_ids for out in alone] == tokens
    assert [out.cached_tokens for out in alone] == [len(prompt) - 1 for prompt in prompts]
    llm.engine.check_integrity()
    llm.shutdown()


@pytest.mark.parametrize("name", QUICK)
def test_a_decoder_without_a_family_has_the_tokens_of_transformers(name: str, tmp_path: Path) -> None:
    expected = expected_of(save_any(tmp_path, *QUICK[name]))
    llm = LLM(tmp_path, max_total_tokens=512, chunked_prefill_size=16)
    assert llm.model.implementation.name == "transformers"
    compare(llm, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_so_have_the_other_decoders_of_transformers(name: str, tmp_path: Path) -> None:
    expected = expected_of(save_any(tmp_path, *SLOW[name]))
    compare(LLM(tmp_path, max_total_tokens=512, chunked_prefill_size=16, model_impl="transformers"), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_have_other_tokens_is_refused_by_name(name: str, tmp_path: Path) -> None:
    model_type, changes, message = REFUSED[name]
    save_any(tmp_path, model_type, changes)
    with pytest.raises(UnsupportedModelError, match=message):
        LLM(tmp_path, model_impl="transformers")
