"""Conversations with calls, with the real tokenizers and chat templates of other models; transformers is the oracle."""

import json
import shutil
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import openai
import pytest

from nanoinfer import LLM
from nanoinfer.requests.chat import render_chat
from tests.helpers.real_tokenizers import real_tokenizer
from tests.helpers.servers import patient_app, running
from tests.helpers.waiting import HANG_S
from tests.server.conftest import greedy
from tests.server.test_tools import SENT, SHOWN, TWO

pytestmark = pytest.mark.slow

START = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How warm is it in Oslo?"}]
CALLS = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"warm": true}'}}
]}  # fmt: skip


@pytest.fixture(scope="module", params=["qwen3", "llama3_1", "gemma3"])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A tiny random model with a real tokenizer."""
    import transformers

    path = tmp_path_factory.mktemp(request.param)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(real_tokenizer(request.param) / name, path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=2048, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return LLM(path, max_total_tokens=4096)


@pytest.fixture(scope="module")
def client(llm: LLM) -> Iterator[openai.OpenAI]:
    with running(patient_app(llm, served_model_name="tiny")) as up:
        yield openai.OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)


def as_objects(messages: list[Any]) -> list[dict[str, Any]]:
    """Messages as transformers' documentation writes them: arguments are objects, and nothing is null."""
    plain = [deepcopy(message) for message in messages]  # one may be there several times
    for message in plain:
        message["content"] = message["content"] or ""
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return [{name: value for name, value in message.items() if value is not None} for message in plain]


def test_three_rounds_of_calls(llm: LLM, client: openai.OpenAI) -> None:
    """Qwen's calls are the model's. The others' formats are not known yet: here, the client says what they called."""
    tokenizer = llm.tokenizer.hf_tokenizer
    knows = "<tool_call>" in tokenizer.chat_template
    role = (
        "user" if "<start_of_turn>" in tokenizer.chat_template else "tool"
    )  # Gemma's template has no role for results
    more: dict[str, Any] = {"tools": TWO} if knows else {}
    messages: list[Any] = [*START]
    for _ in range(3):
        if knows:
            asked = {"model": "tiny", "messages": messages, "max_tokens": 300, "temperature": 1, **more}
            made = client.chat.completions.create(**asked, tool_choice="required", parallel_tool_calls=False, seed=1)
            message = made.choices[0].message
            assert message.content is None
            assert message.tool_calls is not None
            assert json.loads(message.tool_calls[0].function.arguments)
        else:
            message = CALLS
        call_id = CALLS["tool_calls"][0]["id"] if message is CALLS else message.tool_calls[0].id
        messages += [message, {"role": role, "tool_call_id": call_id, "content": '{"degrees": 21}'}]
        extra = {"return_token_ids": True, "ignore_eos": True}
        made = client.chat.completions.create(
            model="tiny", messages=messages, temperature=0, max_tokens=8, extra_body=extra, **more
        )
        dumped = [each if isinstance(each, dict) else each.model_dump() for each in messages]
        text = tokenizer.apply_chat_template(as_objects(dumped), tokenize=False, add_generation_prompt=True, **more)
        assert made.choices[0].prompt_token_ids == tokenizer(text, add_special_tokens=False)["input_ids"]
        (wanted,) = llm.chat(dumped, greedy(8, ignore_eos=True), chat_template_kwargs=more)
        assert made.choices[0].message.content == wanted.text
        assert made.choices[0].finish_reason == "length"


def test_what_a_template_refuses_stays_refused(llm: LLM, client: openai.OpenAI) -> None:
    messages: list[Any] = [*START, CALLS, {"role": "tool", "tool_call_id": "call_1", "content": "21"}]
    if "raise_exception" not in llm.tokenizer.hf_tokenizer.chat_template:
        assert render_chat(llm.tokenizer.hf_tokenizer, messages)
        return
    with pytest.raises(openai.BadRequestError, match="roles must alternate"):
        client.chat.completions.create(model="tiny", messages=messages, max_tokens=2)
    with pytest.raises(ValueError, match="roles must alternate"):
        llm.chat(messages, greedy(2))


def test_tools_are_shown_as_transformers_shows_them(llm: LLM, client: openai.OpenAI) -> None:
    tokenizer = llm.tokenizer.hf_tokenizer
    text = tokenizer.apply_chat_template(START, tools=SHOWN, tokenize=False, add_generation_prompt=True)
    assert render_chat(tokenizer, START, {"tools": SHOWN}) == text
    if "<tool_call>" in tokenizer.chat_template:
        extra = {"return_token_ids": True}
        asked: dict[str, Any] = {"model": "tiny", "messages": START, "tools": SENT, "max_tokens": 1}
        made = client.chat.completions.create(**asked, extra_body=extra)
        assert tokenizer.decode(made.choices[0].prompt_token_ids) == text


def test_a_developer_is_the_system(llm: LLM) -> None:
    tokenizer = llm.tokenizer.hf_tokenizer
    messages = [{"role": "developer", "content": "Be brief."}, START[1]]
    assert render_chat(tokenizer, messages) == render_chat(tokenizer, START)
