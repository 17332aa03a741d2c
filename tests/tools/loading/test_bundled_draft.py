"""The draft model of the story model: its files, that both libraries read them, and how often it guesses right."""

import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.loader import resolve_model_path
from nanoinfer.requests.req import Req

DATA = Path(__file__).parents[3] / "data"
STORY, DRAFT = DATA / "story", DATA / "story-draft"
PROMPTS = ["Once upon a time", "There was a little fox named", "One rainy morning, a girl", "Long ago, a dragon"]
NEW_TOKENS = 64


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(STORY)


@pytest.fixture(scope="module")
def draft() -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(DRAFT, dtype=torch.float32).eval()


def import_script(name: str) -> Iterator[ModuleType]:
    """A module of `data`, which has scripts and is no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DATA))
        yield import_module(name)


@pytest.fixture(scope="module")
def acceptance() -> Iterator[ModuleType]:
    yield from import_script("acceptance")


@pytest.fixture(scope="module")
def train_draft() -> Iterator[ModuleType]:
    yield from import_script("train_draft")


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field", ["vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings", "head_dim"]
)
def test_vocabulary_and_positions_are_those_of_the_story_model(field: str) -> None:
    draft, story = (json.loads((path / "config.json").read_text()) for path in (DRAFT, STORY))
    assert draft[field] == story[field]


def test_the_bundled_name_is_the_folder_in_data() -> None:
    assert resolve_model_path("story-draft") == DRAFT


# --- passes ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_engine_says_the_same_tokens_as_transformers(
    draft: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    llm = LLM("story-draft", dtype="float32", max_total_tokens=512)
    prompts = [tokenizer(prompt).input_ids for prompt in PROMPTS]
    params = SamplingParams(temperature=0, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    said = [output.token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
    for prompt, tokens in zip(prompts, said, strict=True):
        wanted = draft.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=NEW_TOKENS, min_new_tokens=0, eos_token_id=-1
        )
        assert tokens == wanted[0, len(prompt) :].tolist()


def test_in_bfloat16_the_engine_says_likeliest_tokens_but_for_rounding(
    draft: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    llm = LLM("story-draft", max_total_tokens=128)
    assert llm.model.dtype is torch.bfloat16
    prompt = tokenizer(PROMPTS[0]).input_ids
    params = SamplingParams(temperature=0, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    tokens = output.token_ids
    with torch.no_grad():
        logits = draft(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    short_of_largest = logits.amax(dim=-1) - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert short_of_largest.max() < 0.3  # logits near 16 are rounded to multiples of 1/16 or 1/8


# --- guesses ---------------------------------------------------------------------------------------------------------


def test_a_pass_ends_with_the_first_wrong_draft(acceptance: ModuleType) -> None:
    texts = [[True, True, True, True, False, True], [False, False, True], [True, True]]
    found = acceptance.count([torch.tensor(text) for text in texts], drafts=3)
    # TTT+T, then F, then T | F, F, T | TT and the text is over.
    assert (found.tokens, found.passes) == (11, 7)
    assert found.offered == [7, 2, 1]
    assert found.accepted == [4, 2, 1]


def test_a_number_inverts_the_cumulative_distribution(acceptance: ModuleType) -> None:
    scores = torch.tensor([[0.1, 0.2, 0.7]]).log().repeat(5, 1)
    numbers = torch.tensor([0.0, 0.09, 0.11, 0.31, 0.999], dtype=torch.float64)
    assert acceptance.draw(scores, 1.0, numbers).tolist() == [0, 0, 1, 2, 2]
    assert acceptance.draw(scores, 0.0, numbers).tolist() == [2] * 5


@pytest.mark.slow
def test_drafts_are_accepted_far_more_often_than_those_of_an_untrained_model(
    acceptance: ModuleType, train_draft: ModuleType, draft: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    story = AutoModelForCausalLM.from_pretrained(STORY).eval()
    torch.manual_seed(0)
    untrained = train_draft.build_draft(draft.config, 2, 128, 256).eval()
    for temperature in (0.0, 1.0):
        texts = acceptance.write(story, tokenizer, PROMPTS, temperature, seed=0, max_new_tokens=160)
        assert sum(len(text.numbers) for text in texts) > 400
        trained, other = (
            acceptance.count([acceptance.hits(model, text, temperature) for text in texts], drafts=3)
            for model in (draft, untrained)
        )
        assert trained.tokens_per_pass > 2.5, temperature
        assert other.tokens_per_pass < 1.1, temperature


def test_the_draft_model_proposes_nothing_behind_the_end_of_a_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM("story", max_total_tokens=512, drafter="model", num_draft_tokens=16, adaptive_drafts=False)
    drafter = llm.engine.scheduler.drafters[0]  # type: ignore[attr-defined]
    propose, seen = drafter.propose, []

    def kept(reqs: Sequence[Req], most: Sequence[int]) -> list[list[int]]:
        found = propose(reqs, most)
        seen.extend(zip([req.matcher is not None for req in reqs], found, most, strict=True))
        return found

    monkeypatch.setattr(drafter, "propose", kept)
    params = [
        SamplingParams(max_new_tokens=24, temperature=0, regex="(yes|no)[.!]"),
        SamplingParams(max_new_tokens=24, temperature=0),
    ]
    short, plain = llm.generate(["A user:", "Once upon a time"], params)
    assert any(len(drafts) < most for constrained, drafts, most in seen if constrained)
    assert all(len(drafts) == most for constrained, drafts, most in seen if not constrained)
    assert all(token >= 0 for _, drafts, _ in seen for token in drafts)
    assert [out.outputs[0].finish_reason for out in (short, plain)] == ["stop", "length"]
    alone = LLM("story", max_total_tokens=512).generate(["Once upon a time"], params[1:])[0]
    assert plain.outputs[0].token_ids == alone.outputs[0].token_ids
