"""Whatever the chunks, tokens are those of transformers."""

from collections.abc import Callable
from pathlib import Path

import pytest
import transformers

from nanoinfer import LLM, SamplingParams
from tests.helpers.checkpoints import greedy

Checkpoint = Callable[..., Path]


Oracle = Callable[[Path], transformers.PreTrainedModel]


PROMPT = [(7 * i * i + 3 * i) % 300 + 5 for i in range(45)]


@pytest.mark.parametrize(
    ("page_size", "chunk"), [(1, 1), (1, 2), (1, 7), (4, 4), (4, 13), (16, 16), (16, 33), (1, None)]
)
@pytest.mark.parametrize("disable_radix_cache", [False, True])
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
