"""Whatever the chunks, and whoever gives way: tokens and log-probabilities are those of transformers, and of requests
alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from nanoinfer import LLM, RequestOutput, SamplingParams
from tests.helpers.engines import assert_all_free, finish, serve
from tests.helpers.rows import assert_likeliest

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]
PROMPT = [(7 * i * i + 3 * i) % 300 + 5 for i in range(45)]


@pytest.mark.parametrize(("page_size", "chunk"), [(1, 1), (1, 2), (1, 20), (1, 44), (4, 6), (16, 16), (1, None)])
def test_log_probabilities_of_a_prompt_in_pieces_are_those_of_transformers(
    checkpoint: Checkpoint, oracle: Oracle, page_size: int, chunk: int | None
) -> None:
    """Also of a piece's first token, whose logits came with the piece before; alongside requests that want none; and, the
    second time, of a prompt that is cached."""
    path = checkpoint("llama")
    llm = LLM(path, page_size=page_size, chunked_prefill_size=chunk, max_total_tokens=256)
    asked = {"max_new_tokens": 3, "temperature": 0, "prompt_logprobs": True, "ignore_eos": True}
    wanting, with_tops = SamplingParams(**asked, logprobs=0), SamplingParams(**asked, logprobs=2, prompt_top_logprobs=3)
    plain = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)
    for _ in range(2):
        other, *outputs = llm.generate([PROMPT[:9], PROMPT, PROMPT], [plain, wanting, with_tops], use_tqdm=False)
        assert other.prompt_logprobs is other.logprobs is None
        assert other.prompt_top_logprobs is outputs[0].prompt_top_logprobs is None
        ids = torch.tensor([PROMPT + outputs[0].token_ids])
        with torch.no_grad():
            table = oracle(path)(ids).logits[0].log_softmax(-1)
        following = table[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
        for out in outputs:
            assert out.cached_tokens == 0
            assert out.prompt_logprobs[0] is None
            assert out.prompt_logprobs[1:] == pytest.approx(following[:44], abs=1e-4)
            values = [entry[token] for entry, token in zip(out.logprobs, out.token_ids, strict=True)]
            assert values == pytest.approx(following[44:], abs=1e-4)
        assert_likeliest(outputs[1].prompt_top_logprobs, table, 3)
        assert_likeliest([None, *(outputs[1].logprobs or ())], table[44:], 2)


def test_of_n_completions_only_the_first_computes_the_prompt_anew_for_its_log_probabilities(
    checkpoint: Checkpoint,
) -> None:
    engine = LLM(checkpoint()).engine
    (cold,) = serve(engine, PROMPT, prompt_logprobs=True)
    rid = engine.add_request(PROMPT, SamplingParams(max_new_tokens=2, n=3, prompt_logprobs=True, prompt_top_logprobs=1))
    output = finish(engine)[rid]
    assert [completion.cached_tokens for completion in output.outputs] == [0, len(PROMPT) - 1, len(PROMPT) - 1]
    assert output.prompt_logprobs[1:] == pytest.approx(cold.prompt_logprobs[1:], abs=1e-5)
    assert len(output.prompt_top_logprobs or ()) == len(PROMPT)
    assert_all_free(engine)


GAMBLE = 0.001  # schedule_conservativeness that sets (next to) nothing aside
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
        for entry, other in zip(got[-1].logprobs, wanted.logprobs, strict=True):
            assert entry == pytest.approx(other, abs=1e-4)
        assert got[-1].prompt_logprobs[1:] == pytest.approx(wanted.prompt_logprobs[1:], abs=1e-4)
        for entry, other in zip(got[-1].prompt_top_logprobs[1:], wanted.prompt_top_logprobs[1:], strict=True):
            assert entry == pytest.approx(other, abs=1e-4)
        assert [len(output.token_ids) for output in got] == list(range(1, 25)), "a token a time, none twice"
        assert len({output.ttft for output in got}) == 1, "the first token came when it came"
        assert {output.cached_tokens for output in got} == {0}
    stats = llm.engine.stats()
    assert (stats.prompt_tokens, stats.output_tokens) == (80, 96), "a request is admitted for the first time once"
