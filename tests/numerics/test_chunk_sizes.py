"""Whatever the chunks, tokens and log-probabilities are those of transformers."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from nanoinfer import LLM, SamplingParams
from tests.helpers.checkpoints import greedy
from tests.helpers.rows import assert_likeliest

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]
PROMPT = [(7 * i * i + 3 * i) % 300 + 5 for i in range(45)]


@pytest.mark.parametrize(
    ("page_size", "chunk", "disable_radix_cache"),
    [
        *((*sizes, False) for sizes in [(1, 1), (1, 2), (1, 7), (4, 4), (4, 13), (16, 16), (16, 33), (1, None)]),
        *((*sizes, True) for sizes in [(1, 2), (4, 13), (16, 16)]),
    ],
)
def test_tokens_do_not_depend_on_the_chunk_size(
    checkpoint: Checkpoint, oracle: Oracle, page_size: int, chunk: int | None, disable_radix_cache: bool
) -> None:
    path = checkpoint("qwen3")
    llm = LLM(
        path,
        page_size=page_size,
        chunked_prefill_size=chunk,
        disable_radix_cache=disable_radix_cache,
        max_total_tokens=256,
    )
    prompts = [PROMPT, PROMPT[:20], PROMPT[30:], [*PROMPT[:37], 9]]
    params = SamplingParams(max_new_tokens=8, temperature=0, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [out.token_ids for out in outputs] == [greedy(oracle(path), prompt, 8) for prompt in prompts]
    llm.engine.check_integrity()


@pytest.mark.parametrize(("page_size", "chunk"), [(1, 1), (1, 2), (1, 20), (1, 44), (4, 6), (16, 16)])
def test_log_probabilities_of_a_prompt_in_pieces_are_those_of_transformers(
    checkpoint: Checkpoint, oracle: Oracle, page_size: int, chunk: int
) -> None:
    """Also of a piece's first token, whose logits came with the piece before; and alongside requests that want none."""
    path = checkpoint("llama")
    llm = LLM(path, page_size=page_size, chunked_prefill_size=chunk, max_total_tokens=256)
    asked = {"max_new_tokens": 3, "temperature": 0, "prompt_logprobs": True, "logprobs": 0, "ignore_eos": True}
    wanting, with_tops = SamplingParams(**asked), SamplingParams(**asked, prompt_top_logprobs=3)
    plain = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)
    other, output, third = llm.generate([PROMPT[:9], PROMPT, PROMPT], [plain, wanting, with_tops], use_tqdm=False)
    assert other.prompt_logprobs is None
    assert other.prompt_top_logprobs is output.prompt_top_logprobs is None
    ids = torch.tensor([PROMPT + output.token_ids])
    with torch.no_grad():
        table = oracle(path)(ids).logits[0].log_softmax(-1)
    following = table[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
    for out in (output, third):
        assert out.prompt_logprobs is not None
        assert out.prompt_logprobs[0] is None
        assert out.prompt_logprobs[1:] == pytest.approx(following[:44], abs=1e-4)
        assert out.logprobs is not None
        assert [value for entry in out.logprobs for value in entry.values()] == pytest.approx(following[44:], abs=1e-4)
    assert third.prompt_top_logprobs is not None
    assert_likeliest(third.prompt_top_logprobs, table, 3)
