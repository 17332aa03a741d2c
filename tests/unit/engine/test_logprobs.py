"""Log probabilities of prompts and outputs: those of transformers, whatever is cached."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from nanoinfer import LLM, SamplingParams
from tests.helpers.engines import assert_all_free, finish, greedy, serve
from tests.helpers.rows import assert_likeliest

Checkpoint = Callable[..., Path]


Oracle = Callable[[Path], transformers.PreTrainedModel]


HEAD = list(range(1, 60, 3))  # longer than the largest page
PROMPTS = [[*HEAD, 50], [*HEAD, 50, 60, 70], [9] * 18, [1, 4, 8], [7], [*HEAD, 50]]


@pytest.mark.parametrize("warm", [False, True])
def test_log_probabilities_are_those_of_transformers(checkpoint: Checkpoint, oracle: Oracle, warm: bool) -> None:
    """Of prompt and output, whether or not the prompt is cached and whoever else is in the pass."""
    path = checkpoint()
    engine = LLM(path).engine
    prompt = PROMPTS[1]
    if warm:
        serve(engine, prompt)
    other = engine.add_request(PROMPTS[0], greedy(4))
    rid = engine.add_request(
        prompt, greedy(5, logprobs=2, prompt_logprobs=True, prompt_top_logprobs=4, ignore_eos=True)
    )
    last = finish(engine)
    output = last[rid]
    assert last[other].prompt_logprobs is None
    assert last[other].logprobs is None
    assert output.cached_tokens == 0
    ids = torch.tensor([prompt + output.token_ids])
    with torch.no_grad():
        table = oracle(path)(ids).logits[0].log_softmax(-1)
    following = table[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert output.prompt_logprobs[1:] == pytest.approx(following[: len(prompt) - 1], abs=1e-4)
    assert output.logprobs is not None
    assert [entry[t] for entry, t in zip(output.logprobs, output.token_ids, strict=True)] == pytest.approx(
        following[len(prompt) - 1 :], abs=1e-4
    )
    assert output.prompt_top_logprobs is not None
    assert_likeliest(output.prompt_top_logprobs, table, 4)
    for entry, row in zip(output.logprobs, table[len(prompt) - 1 :], strict=False):
        assert list(entry) == row.topk(2).indices.tolist()


def test_of_n_completions_only_the_first_computes_the_prompt_anew_for_its_log_probabilities(
    checkpoint: Checkpoint,
) -> None:
    engine = LLM(checkpoint()).engine
    (cold,) = serve(engine, HEAD, prompt_logprobs=True)
    rid = engine.add_request(HEAD, SamplingParams(max_new_tokens=2, n=3, prompt_logprobs=True, prompt_top_logprobs=1))
    output = finish(engine)[rid]
    assert [completion.cached_tokens for completion in output.outputs] == [0, len(HEAD) - 1, len(HEAD) - 1]
    assert output.prompt_logprobs is not None
    assert cold.prompt_logprobs is not None
    assert output.prompt_logprobs[1:] == pytest.approx(cold.prompt_logprobs[1:], abs=1e-5)
    assert len(output.prompt_top_logprobs or ()) == len(HEAD)
    assert_all_free(engine)
