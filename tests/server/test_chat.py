"""/v1/chat/completions as OpenAI's own client sees it."""

import json

import jsonschema
import openai
import pytest

from nanoinfer import LLM
from tests.helpers.servers import Running, ask, patient_app
from tests.server.conftest import greedy

MESSAGES = [{"role": "user", "content": "Hello! Who are you?"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_an_answer_is_what_chat_gives(client: openai.OpenAI, reference: LLM) -> None:
    made = client.chat.completions.create(model="story", messages=MESSAGES, temperature=0, max_tokens=12)
    (wanted,) = reference.chat(MESSAGES, greedy(12))
    (choice,) = made.choices
    assert (choice.message.role, choice.message.content) == ("assistant", wanted.text)
    assert choice.finish_reason == wanted.finish_reason
    assert (choice.message.tool_calls, choice.message.refusal, choice.logprobs) == (None, None, None)
    assert made.object == "chat.completion"
    assert made.id.startswith("chatcmpl-")
    assert made.usage is not None
    assert made.usage.prompt_tokens == wanted.prompt_tokens


def test_without_max_tokens_the_rest_of_the_context_is_allowed() -> None:
    app = patient_app(LLM("story", max_total_tokens=256, max_context_len=128))
    body = {"model": "story", "messages": MESSAGES, "temperature": 0, "ignore_eos": True, "logit_bias": {"2": -100}}
    made = ask(app, "POST", "/v1/chat/completions", json=body).json()
    assert (made["usage"]["total_tokens"], made["choices"][0]["finish_reason"]) == (128, "length")


def test_a_stream_of_n_has_one_role_and_one_end_per_choice(client: openai.OpenAI) -> None:
    options = {"include_usage": True}
    *chunks, last = client.chat.completions.create(
        model="story", messages=MESSAGES, n=3, seed=1, max_tokens=6, stream=True, stream_options=options
    )
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert sorted(choice.index for choice in choices if choice.delta.role) == [0, 1, 2]
    assert sorted(choice.index for choice in choices if choice.finish_reason) == [0, 1, 2]
    assert last.choices == []
    whole = client.chat.completions.create(model="story", messages=MESSAGES, n=3, seed=1, max_tokens=6)
    for one in whole.choices:
        assert "".join(each.delta.content or "" for each in choices if each.index == one.index) == one.message.content
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_log_probabilities(client: openai.OpenAI, reference: LLM) -> None:
    asked = {"model": "story", "messages": MESSAGES, "temperature": 0, "max_tokens": 5, "logprobs": True}
    (wanted,) = reference.chat(MESSAGES, greedy(5, logprobs=4))
    made = client.chat.completions.create(**asked, top_logprobs=4).choices[0].logprobs.content
    assert "".join(token.token for token in made) == wanted.text
    assert bytes(byte for token in made for byte in token.bytes).decode() == wanted.text
    for token, entry in zip(made, wanted.logprobs, strict=True):
        values = [top.logprob for top in token.top_logprobs]
        assert values == sorted(values, reverse=True) == pytest.approx(sorted(entry.values(), reverse=True)[:4])
        assert token.logprob == pytest.approx(next(iter(entry.values())))
    chunks = client.chat.completions.create(**asked, top_logprobs=4, stream=True)
    parts = [chunk.choices[0].logprobs for chunk in chunks]
    assert [token for part in parts if part for token in part.content] == made
    none = client.chat.completions.create(**asked).choices[0].logprobs.content
    assert [token.top_logprobs for token in none] == [[]] * 5


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_follows_a_schema(client: openai.OpenAI, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    made = client.chat.completions.create(
        model="story", messages=MESSAGES, seed=5, max_tokens=200, response_format=form, stream=stream
    )
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in made)
    else:
        text = made.choices[0].message.content
        assert made.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(text), PERSON)


@pytest.mark.parametrize(
    ("more", "allowed"),
    [
        ({"guided_choice": ["yes", "no"]}, {"yes", "no"}),
        ({"guided_regex": "a|b"}, {"a", "b"}),
        ({"guided_grammar": 'start: "x" | "y"'}, {"x", "y"}),
        ({"guided_json": {"enum": [1, 2]}}, {"1", "2"}),
        ({"guided_json": '{"const": 3}'}, {"3"}),
        ({"json_schema": '{"const": 5}'}, {"5"}),
        ({"regex": "[x]{3}"}, {"xxx"}),
        ({"ebnf": 'root ::= item{2}\nitem ::= "é" | "\\u00e9"'}, {"éé"}),
        ({"structured_outputs": {"choice": ["left", "right"]}}, {"left", "right"}),
        ({"structured_outputs": {"json": {"const": "c"}}}, {'"c"'}),
        ({"structured_outputs": {"regex": "[0-9]"}}, set("0123456789")),
        ({"response_format": {"type": "json_object"}, "max_tokens": 1}, {"{", "{}", '{"'}),
        ({"response_format": {"type": "text"}, "max_tokens": 1, "temperature": 0}, {"Hi"}),
    ],
)
def test_every_way_to_say_what_is_allowed(server: Running, more: dict[str, object], allowed: set[str]) -> None:
    body = {"model": "story", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20, "seed": 1, **more}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] in allowed


def test_content_may_be_parts_and_answers_go_back_into_the_conversation(client: openai.OpenAI) -> None:
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "Hello!"}, {"type": "text", "text": "Who are you?"}]}
    ]
    made = client.chat.completions.create(model="story", messages=parts, temperature=0, max_tokens=5)
    again = client.chat.completions.create(
        model="story", messages=[*parts, made.choices[0].message, *MESSAGES], temperature=0, max_tokens=5
    )
    assert again.usage is not None
    assert again.usage.prompt_tokens_details.cached_tokens > 0


def test_a_message_can_be_continued(client: openai.OpenAI) -> None:
    more = {"continue_final_message": True, "add_generation_prompt": False, "return_token_ids": True}
    begun = [*MESSAGES, {"role": "assistant", "content": "Once upon"}]
    made = client.chat.completions.create(model="story", messages=begun, temperature=0, max_tokens=2, extra_body=more)
    assert made.choices[0].message.content == " a time"


def test_variables_reach_the_template() -> None:
    llm = LLM("story", max_total_tokens=256)
    llm.tokenizer.hf_tokenizer.chat_template = "{{ animal }} {{ documents[0].text }} {{ messages[0].content }}"
    app = patient_app(llm)
    more = {"chat_template_kwargs": {"animal": "fox"}, "documents": [{"text": "hen"}], "return_token_ids": True}
    body = {"model": "story", "messages": MESSAGES, "max_tokens": 1, **more}
    made = ask(app, "POST", "/v1/chat/completions", json=body).json()
    wanted = "fox hen Hello! Who are you?"
    assert ask(app, "POST", "/detokenize", json={"tokens": made["choices"][0]["prompt_token_ids"]}).json() == {
        "prompt": wanted
    }


def test_an_adapter_is_a_model(client: openai.OpenAI, reference: LLM) -> None:
    assert [model.id for model in client.models.list()][:2] == ["story", "sea"]
    described = client.models.retrieve("sea")
    assert (described.id, described.parent) == ("sea", "story")  # type: ignore[attr-defined]
    plain = client.chat.completions.create(model="story", messages=MESSAGES, temperature=0, max_tokens=12)
    sea = client.chat.completions.create(model="sea", messages=MESSAGES, temperature=0, max_tokens=12)
    if "sea" not in reference.adapters:
        reference.load_adapter("sea", "sea")
    (wanted,) = reference.chat(MESSAGES, greedy(12), adapter="sea")
    assert sea.model == "sea"
    assert sea.choices[0].message.content == wanted.text != plain.choices[0].message.content
