"""How many drafts are right: as many as a search of the text, transformers or the model itself says."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.forward_batch import ForwardMode
from nanoinfer.model.loader import LoadedModel
from tests.helpers.checkpoints import greedy
from tests.helpers.drafts import STEM, noisy
from tests.helpers.engines import step
from tests.helpers.tiny_llm import make_llm_model, tiny_llm

Checkpoint = Callable[..., Path]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return make_llm_model(tmp_path_factory.mktemp("tiny"))


def accepted_of(drafts: Sequence[int], coming: Sequence[int]) -> int:
    """How many of `drafts` are right, up to the first that is not."""
    count = 0
    while count < min(len(drafts), len(coming)) and drafts[count] == coming[count]:
        count += 1
    return count


def passes_of(llm: LLM, prompt: list[int], num_tokens: int) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Serve one request alone: its tokens; per pass behind the prompt's: tokens before it, drafted, accepted."""
    request_id = llm.engine.add_request(
        prompt, SamplingParams(max_new_tokens=num_tokens, temperature=0, ignore_eos=True)
    )
    (req,) = llm.engine.open_requests.groups[request_id].reqs
    passes = []
    while llm.engine.has_unfinished():
        before = req.num_output_tokens, req.drafted_tokens, req.accepted_tokens
        step(llm.engine)
        if before[0]:
            assert req.num_output_tokens - before[0] == req.accepted_tokens - before[2] + 1
            assert (llm.engine.last_batch.forward_mode is ForwardMode.VERIFY) == (req.drafted_tokens > before[1])  # type: ignore[union-attr]
            passes.append((before[0], req.drafted_tokens - before[1], req.accepted_tokens - before[2]))
    return req.output_ids, passes


def continuations(text: list[int], count: int) -> list[list[int]]:
    """What follows each occurrence, but the last, of the longest suffix of `text` that occurs twice: by search."""
    for length in range(len(text) - 1, 1, -1):
        ends = [end for end in range(length, len(text)) if text[end - length : end] == text[-length:]]
        if ends:
            found = []
            for end in ends:
                longer = list(text)
                for i in range(count):
                    longer.append(longer[end + i])
                found.append(longer[len(text) :])
            return found
    return []


def check_drafts(
    llm: LLM, prompt: list[int], num_tokens: int, drafts_for: Callable[[list[int], int], list[list[int]]]
) -> tuple[list[int], int]:
    """In each pass, as many drafts are made and right as one of those says that could be made for the text so far. Returns
    the tokens, and in how many passes there was one possible number."""
    tokens, passes = passes_of(llm, prompt, num_tokens)
    place, clear = 1, 0
    for before, drafted, accepted in passes:
        assert before == place
        limit = min(llm.config.num_draft_tokens, num_tokens - before - 1)
        found = drafts_for(prompt + tokens[:before], limit) if limit else []
        assert drafted == (limit if found else 0)
        possible = {accepted_of(drafts, tokens[before:]) for drafts in found} or {0}
        assert accepted in possible
        clear += bool(found) and len(possible) == 1
        place += accepted + 1
    assert place == num_tokens
    return tokens, clear


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 7])
def test_ngram_drafts_are_right_as_often_as_in_a_simulation(model: LoadedModel, num_draft_tokens: int) -> None:
    llm = tiny_llm(model, drafter="ngram", num_draft_tokens=num_draft_tokens, adaptive_drafts=False)
    prompts = [STEM[:6] * 3, STEM, [3, 4] * 6 + [9, 3], [7], STEM[:10] + STEM[2:8]]
    assert sum(check_drafts(llm, prompt, 40, continuations)[1] for prompt in prompts) > 10
    assert 0 < llm.engine.stats().accepted_tokens < llm.engine.stats().drafted_tokens


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 7])
def test_a_draft_model_is_right_as_often_as_transformers_says(
    checkpoint: Checkpoint, oracle: Any, tmp_path: Path, num_draft_tokens: int
) -> None:
    path = checkpoint()
    draft = noisy(path, tmp_path / "draft")
    # In so few slots, each request gets some that hold the draft model's K/V of another.
    common: dict[str, Any] = {"max_total_tokens": 48, "num_draft_tokens": num_draft_tokens}
    llm = LLM(path, drafter="model", draft_model=draft, adaptive_drafts=False, **common)
    for prompt in ([5, 9, 200, 31, 7], list(range(100, 123)), [5, 9, 200, 31, 8]):
        tokens, _ = check_drafts(llm, prompt, 20, lambda text, limit: [greedy(oracle(draft), text, limit)])
        assert tokens == greedy(oracle(path), prompt, 20)
    assert 0 < llm.engine.stats().accepted_tokens < llm.engine.stats().drafted_tokens


def test_a_model_that_is_its_own_draft_is_always_right_greedy_or_drawn(checkpoint: Checkpoint) -> None:
    llm = LLM(checkpoint(), drafter="model", draft_model=checkpoint(), adaptive_drafts=False, max_total_tokens=512)
    params = [
        SamplingParams(max_new_tokens=21, ignore_eos=True, temperature=0),
        SamplingParams(max_new_tokens=21, ignore_eos=True, seed=1, top_p=0.9, n=2),
        SamplingParams(max_new_tokens=21, ignore_eos=True, seed=2, frequency_penalty=0.5, logit_bias={7: 3.0}),
    ]
    for _ in range(2):  # the second time, the large model's K/V of the prompts is in the tree, and the small one's too
        for output in llm.generate([STEM, STEM[:9], STEM[3:]], params, use_tqdm=False):
            for each in output.outputs:
                assert (each.drafted_tokens, each.accepted_tokens) == (15, 15), "1 + 5 passes of 3 drafts and a token"
