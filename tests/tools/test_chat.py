"""Chats, and what LLM and AsyncEngine are made of, with the bundled model; transformers is the oracle."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM, AsyncEngine, SamplingParams
from tests.helpers.chats import CHAT, PARTS, THINKING

GREEDY = SamplingParams(max_new_tokens=6, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("story", max_running_requests=2, max_total_tokens=256, random_seed=0)


@pytest.fixture
def thinking(llm: LLM) -> Iterator[Any]:
    """The model's tokenizer with THINKING as its template."""
    assert llm.tokenizer is not None
    hf_tokenizer = llm.tokenizer.hf_tokenizer
    before = hf_tokenizer.chat_template
    hf_tokenizer.chat_template = THINKING
    yield hf_tokenizer
    hf_tokenizer.chat_template = before


def test_chat_and_stream_chat_take_parts_and_arguments(llm: LLM, thinking: Any) -> None:
    given = {"enable_thinking": False}
    ids = thinking.apply_chat_template(CHAT, add_generation_prompt=True, **given)["input_ids"]
    (output,) = llm.chat(PARTS, GREEDY, chat_template_kwargs=given)
    assert output.prompt_token_ids == llm.chat_prompt(CHAT, given) == ids
    assert output.prompt is None
    both = llm.chat([PARTS, CHAT], GREEDY, use_tqdm=False, chat_template_kwargs=given)
    assert [each.prompt_token_ids for each in both] == [ids, ids]
    pieces = list(llm.stream_chat(PARTS, GREEDY, chat_template_kwargs=given))
    assert ("".join(piece.text for piece in pieces), pieces[0].prompt_tokens) == (output.text, len(ids))


def test_stream_chat_checks_its_messages_at_once(llm: LLM) -> None:
    with pytest.raises(ValueError, match="wizard"):
        llm.stream_chat([{"role": "wizard", "content": "a"}])


async def test_an_async_engine_chats_as_the_llm_does(llm: LLM) -> None:
    (wanted,) = llm.chat(CHAT, GREEDY)
    async with AsyncEngine("story", max_running_requests=2, max_total_tokens=256, seed=0) as front:
        assert isinstance(front.llm, LLM)
        assert front.llm.config.random_seed == 0
        output = await front.chat(PARTS, GREEDY)
        assert (output.prompt_token_ids, output.text) == (wanted.prompt_token_ids, wanted.text)
        pieces = [piece async for piece in front.stream_chat(CHAT, GREEDY)]
        assert "".join(piece.text for piece in pieces) == wanted.text
        assert front.chat_prompt(CHAT) == wanted.prompt_token_ids
        with pytest.raises(ValueError, match="wizard"):
            await front.chat([{"role": "wizard", "content": "a"}])
        with pytest.raises(ValueError, match="wizard"):
            await anext(front.stream_chat([{"role": "wizard", "content": "a"}]))
        with pytest.raises(ValueError, match=r"^messages: .*max_context_len"):
            await front.chat([{"role": "user", "content": "a" * 5000}])
        with pytest.raises(ValueError, match="chat_template_kwargs"):
            await front.chat(CHAT, chat_template_kwargs={"tokenize": True})


def test_the_aliases_of_llm_set_what_they_name(checkpoint: Callable[..., Path]) -> None:
    named: dict[str, Any] = {"max_model_len": 64, "seed": 3, "max_num_seqs": 2, "block_size": 4, "dtype": "auto"}
    llm = LLM(model_path=checkpoint(), max_total_tokens=128, **named)  # type: ignore[call-arg]
    config = llm.config
    assert (config.max_context_len, config.random_seed, config.max_running_requests, config.page_size) == (64, 3, 2, 4)
    assert llm.model.dtype == LLM(checkpoint(), max_total_tokens=64).model.dtype
