"""What is wrong is refused with a status and an error in OpenAI's shape, which names the field."""

import json
from typing import Any

import openai
import pytest

from nanoinfer.server.completion_request import several_prompts
from nanoinfer.server.errors import ApiError
from nanoinfer.server.settings import ServerSettings
from nanoinfer.server.to_params import Given, make_params
from nanoinfer.server.validation import validation_error
from tests.helpers.servers import Running

COMPLETION = {"model": "story", "prompt": "Once", "max_tokens": 2}
CHAT = {"model": "story", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


def schema_format(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": fields}}


LABELS = ("cache_salt", "user", "safety_identifier", "prompt_cache_key")
WRONG_COMPLETIONS: list[tuple[dict[str, Any], str | None, str]] = [
    ({"temperature": -1}, "temperature", "must be at least 0"),
    ({"temperature": "1"}, "temperature", "must be a valid number"),
    ({"temperature": float("nan")}, "temperature", "nan"),
    ({"top_p": 0}, "top_p", "must be above 0"),
    ({"top_p": 1.5}, "top_p", "at most 1"),
    ({"top_k": -2}, "top_k", "must be at least -1"),
    ({"min_p": 2}, "min_p", "at most 1"),
    ({"presence_penalty": 3}, "presence_penalty", "at most 2"),
    ({"frequency_penalty": -3}, "frequency_penalty", "at least -2"),
    ({"repetition_penalty": 0}, "repetition_penalty", "at least 1e-09"),
    ({"max_tokens": 0}, "max_tokens", "must be at least 1"),
    ({"max_tokens": -5}, "max_tokens", "must be at least 1"),
    ({"max_tokens": 1.5}, "max_tokens", "integer"),
    ({"max_tokens": True}, "max_tokens", "integer"),
    ({"max_tokens": 2000}, "max_tokens", "must not exceed"),
    ({"max_tokens": 10**30}, "max_tokens", "must not exceed"),
    ({"min_tokens": 5}, "min_tokens", "must not exceed max_tokens=2"),
    ({"n": 0}, "n", "must be at least 1"),
    ({"n": 10_000}, "n", "must not exceed 256"),
    ({"seed": -2}, "seed", "must be at least 0"),
    ({"seed": 2**64}, "seed", "must be below 2**64"),
    ({"logprobs": -1}, "logprobs", "must be at least 0"),
    ({"logprobs": 21}, "logprobs", "must not exceed 20"),
    ({"logprobs": True}, "logprobs", "integer"),
    ({"echo": True, "logprobs": 21}, "logprobs", "must not exceed 20"),
    ({"echo": True, "logprobs": -1, "max_tokens": 0}, "logprobs", "must be at least 0"),
    ({"stop": ""}, "stop", "none may be empty"),
    ({"stop": [1]}, "stop", "must be a string"),
    ({"stop": ["x"] * 65}, "stop", "must not exceed 64"),
    ({"stop": "x" * 1001}, "stop", "must not exceed 1000"),
    ({"stop_token_ids": [99999]}, "stop_token_ids", "must be in 0..2047"),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "at least 0"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "must be a token id"),
    ({"logit_bias": {"5": 1e30}}, "logit_bias", "1e20"),
    ({"logit_bias": {"99999": 1}}, "logit_bias", "must be in 0..2047"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "must not exceed 1024"),
    ({"prompt": ""}, "prompt", "is empty"),
    ({"prompt": []}, "prompt", "is an empty list"),
    ({"prompt": [[]]}, "prompt", "prompt[0]"),
    ({"prompt": [[1], ""]}, "prompt", "prompt[1]: is empty"),
    ({"prompt": [1, "x"]}, "prompt", "prompt[0]: is a number"),
    ({"prompt": [1, -1]}, "prompt", "token id -1"),
    ({"prompt": [10**40]}, "prompt", "prompt"),
    ({"prompt": [True]}, "prompt", "true or false"),
    ({"prompt": {"text": "x"}}, "prompt", "is an object"),
    ({"prompt": None}, "prompt", "is null"),
    ({"prompt": ["x"] * 257}, "prompt", "must not exceed 256"),
    ({"prompt": "\ud800"}, "prompt", "UTF-8"),
    ({"prompt": "x " * 4000}, "prompt", "must"),
    ({"prompt": [5] * 1024}, "prompt", "must have fewer than 1024"),
    ({"model": None}, "model", "must be a valid string"),
    ({"model": 5}, "model", "must be a valid string"),
    ({"stream": "yes"}, "stream", "must be a valid boolean"),
    ({"prompt_logprobs": -1}, "prompt_logprobs", "must be at least 0 and at most 20"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "must be at least 0 and at most 20"),
    ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs", "not with stream=true"),
    ({"best_of": 2}, "best_of", "is not supported"),
    ({"suffix": "x"}, "suffix", "is not supported"),
    ({"use_beam_search": True}, "use_beam_search", "beam search"),
    ({"temprature": 1}, "temprature", "no such field; did you mean 'temperature'?"),
    ({"max_token": 1}, "max_token", "no such field; did you mean 'max_tokens'?"),
    ({f"field{i}": 1 for i in range(101)}, None, "must not have more than 100 fields"),
    ({"stream": True, "stream_options": {"includeusage": 1}}, "stream_options.includeusage", "mean 'include_usage'?"),
    (schema_format(name="x", shema={}), "response_format.json_schema.shema", "did you mean 'schema'?"),
    ({"guided_regex": "("}, "guided_regex", "unclosed group"),
    ({"guided_regex": "a" * 6000}, "guided_regex", "must not exceed 5000"),
    ({"guided_choice": []}, "guided_choice", "at least one string"),
    ({"guided_json": {"type": "nonsense"}}, "guided_json", "Invalid type"),
    ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "at most one"),
    ({"response_format": {"type": "xml"}}, "response_format", "must be text, json_object or json_schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "must be a JSON schema"),
    (schema_format(name=5, schema={}), "response_format.json_schema.name", "must be a valid string"),
    (schema_format(schema={}), "response_format.json_schema.name", "is missing"),
    (schema_format(name="x", schema={}, strict="banana"), "response_format.json_schema.strict", "valid boolean"),
    ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema", "use the type json_schema"),
    (schema_format(name="x", schema=[]), "response_format.json_schema.schema", "valid dictionary"),
    (schema_format(name="x"), "response_format", "must be a JSON schema"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice", "at most one"),
    ({"cache_salt": 5}, "cache_salt", "must be a valid string"),
    ({"user": 5}, "user", "must be a valid string"),
    *(({name: "x" * 257}, name, "must have at most 256 characters") for name in LABELS),
    *(({name: "\ud800"}, name, "UTF-8") for name in (*LABELS, "guided_grammar", "guided_regex", "model", "stop")),
    ({"guided_json": {"const": ["\ud800"]}}, "guided_json", "UTF-8"),
    ({"guided_choice": ["\ud800"]}, "guided_choice", "UTF-8"),
]
WRONG_CHATS: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "messages", "at least one message"),
    ({"messages": "Hi"}, "messages", "must be a valid list"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "is missing"),
    ({"messages": [{"role": "user"}]}, "messages", "must have role and content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "must be a valid string"),
    ({"messages": [{"role": "pirate", "content": "x"}]}, "messages", "role must be system, user or assistant"),
    ({"messages": [{"role": "user", "content": "x", "tool_call": []}]}, "messages[0].tool_call", "mean 'tool_calls'?"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "image_url"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages", "must have a string under 'text'"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages", "UTF-8"),
    ({"messages": [{"role": "user", "content": "x", "audio": {"id": 1}}]}, "messages[0].audio", "only text"),
    ({"logprobs": 3}, "logprobs", "must be a valid boolean"),
    ({"top_logprobs": 3}, "top_logprobs", "needs logprobs=true"),
    ({"logprobs": True, "top_logprobs": 21}, "logprobs", "must not exceed 20"),
    ({"max_completion_tokens": 3}, "max_completion_tokens", "differs from max_tokens"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "is not known"),
    ({"tools": [{"function": {}}]}, "tools[0].function.name", "is missing"),
    ({"tools": [{"type": "function", "function": {"name": "\ud800"}}]}, "tools", "UTF-8"),
    ({"tool_choice": "required"}, "tool_choice", "needs tools"),
    ({"functions": [{"name": "f"}]}, "functions", "use tools"),
    ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs", "the model's own template"),
    ({"chat_template_kwargs": {"tokenize": True}}, "messages", "tokenize"),
    ({"echo": True}, "echo", "continue_final_message"),
    ({"modalities": ["text", "audio"]}, "modalities", "only text is generated"),
    ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0].function_call", "tool_calls"),
]


def check(answer: Any, param: str | None, message: str, status: int = 400) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["param"], message in error["message"]) == (param, True), error


def post(server: Running, path: str, body: dict[str, Any]) -> Any:
    text = json.dumps(body)  # httpx refuses what is not UTF-8, or is NaN
    return server.post(path, content=text, headers={"content-type": "application/json"})


@pytest.mark.parametrize(("more", "param", "message"), WRONG_COMPLETIONS, ids=lambda it: str(it)[:40])
def test_a_wrong_completion(server: Running, more: dict[str, Any], param: str | None, message: str) -> None:
    check(post(server, "/v1/completions", {**COMPLETION, **more}), param, message)


@pytest.mark.parametrize(("more", "param", "message"), WRONG_CHATS, ids=lambda it: str(it)[:40])
def test_a_wrong_chat(server: Running, more: dict[str, Any], param: str, message: str) -> None:
    check(post(server, "/v1/chat/completions", {**CHAT, **more}), param, message)


@pytest.mark.parametrize(
    "harmless",
    [
        {"best_of": 1, "suffix": None, "user": "somebody", "use_beam_search": False},
        {"n": None, "temperature": None, "stop": None, "logit_bias": None, "stream": None, "stream_options": None},
        {"truncate_prompt_tokens": None, "max_token": None, "add_special_tokens": True},
        {"temperature": 1, "top_p": 1, "presence_penalty": 0, "logit_bias": {"5": 1}},
        {"top_k": 0, "seed": -1},
        {"stream": True, "stream_options": {"include_usage": False}},
        {"response_format": {"type": "text"}, "guided_json": None, "structured_outputs": None},
    ],
)
def test_what_asks_for_what_happens_anyway_is_accepted(server: Running, harmless: dict[str, Any]) -> None:
    assert server.post("/v1/completions", {**COMPLETION, **harmless}).status_code == 200


def test_no_likeliest_tokens_are_asked_for_without_logprobs(server: Running) -> None:
    for logprobs in (None, False):
        answer = server.post("/v1/chat/completions", {**CHAT, "logprobs": logprobs, "top_logprobs": 0})
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["logprobs"] is None


def test_an_unknown_model_is_a_404(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.completions.create(model="gpt-17", prompt="x")
    assert refused.value.code == "model_not_found"
    assert refused.value.param == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-17")


def test_too_long_a_prompt_has_openais_code(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="story", prompt=[5] * 2000)
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the body is empty"),
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"null", "the body"),
        (b'{"model":"\xff"}', "not UTF-8"),
        ('{"model":"story"}'.encode("utf-16"), "not UTF-8"),
        (b"[" * 100_000, "inside each other"),
        (b'{"model":' + b"9" * 5000 + b"}", "integer of more than 4300 digits"),
    ],
)
def test_a_body_that_is_no_json_object(server: Running, content: bytes, message: str) -> None:
    answer = server.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]
    assert ("not JSON" in message or "not UTF-8" in message) == (answer.json()["error"]["code"] == "invalid_json")


def test_a_form_from_another_page_is_not_json(server: Running) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = server.post("/v1/completions", content=json.dumps(COMPLETION), headers={"content-type": kind})
        assert answer.status_code == 400
        assert "content-type: application/json" in answer.json()["error"]["message"]


def test_unknown_paths_and_methods(server: Running) -> None:
    for path in ("/nothing", "/v1/completions/", "/docs", "/redoc"):
        assert server.get(path).json()["error"]["type"] == "not_found_error"
    answer = server.get("/v1/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["error"]["message"] == "GET /v1/completions: Method Not Allowed"


@pytest.mark.parametrize(
    ("path", "right"),
    [
        *((path, f"/v1{path}") for path in ("/chat/completions", "/completions", "/models", "/load_lora_adapter")),
        *((path, "/v1/completions") for path in ("/v1/completions/", "/v1/v1/completions", "/completions/")),
        ("/v1/v1/models/", "/v1/models"),
        ("/v1/tokenize", "/tokenize"),
        ("/nothing", None),
        ("/v1/nothing", None),
        ("/v2/models", None),
    ],
)
def test_a_wrong_base_url_is_told(server: Running, path: str, right: str | None) -> None:
    answer = server.post(path, {})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 404
    assert (f"did you mean {right}?" in message) == (f"{server.url}/v1" in message) == (right is not None)


def test_nothing_of_it_reached_the_engine(server: Running) -> None:
    server.check_idle()


CALL = {"function": {"name": "f", "arguments": ""}}
MANY = 20_000  # wrong items


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        ("/v1/chat/completions", {"messages": [1] * MANY}, "messages[0]"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [1] * MANY}]}, "messages[0].content"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}] * MANY}, "messages"),
        ("/v1/chat/completions", {"tools": [{"type": "x", "function": {}}] * MANY}, "tools[0].function.name"),
        ("/v1/completions", {"stop_token_ids": ["a"] * MANY}, "stop_token_ids[0]"),
        ("/v1/completions", {"guided_choice": [1] * MANY}, "guided_choice[0]"),
        ("/v1/completions", {"logit_bias": dict.fromkeys(map(str, range(MANY)), "x")}, "logit_bias"),
        ("/v1/completions", {"logit_bias": dict.fromkeys(map(str, range(MANY)), 1)}, "logit_bias"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "tool_calls": [CALL] * 5001}] * 2}, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "tool_calls": [CALL] * 5001}] * 2}, "messages"),
        ("/v1/completions", {f"field{i}": 1 for i in range(MANY)}, None),
        ("/v1/chat/completions", {"messages": [dict.fromkeys(map(str, range(MANY)), 1)]}, "messages[0]"),
        ("/detokenize", {"tokens": ["a"] * MANY}, "tokens[0]"),
    ],
)
def test_of_many_wrong_items_the_first_is_told_and_no_other_is_looked_at(
    server: Running, path: str, more: dict[str, Any], param: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def counted(errors: Any) -> Any:
        counts.append(len(errors))
        return validation_error(errors)

    monkeypatch.setattr("nanoinfer.server.app.validation_error", counted)
    start = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT, "/detokenize": {}, "/tokenize": {}}[path]
    answer = post(server, path, {**start, **more})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert len(answer.content) < 500
    assert len(counts) == 1
    assert counts[0] <= 2  # content has two types, which are tried one after the other


class Unread(list):
    """A list whose items must not be looked at, except the first one."""

    def __iter__(self) -> Any:
        raise AssertionError("its items were looked at")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Unread([1] * 1024), "prompt: has 1024 tokens: must have fewer than 1024"),
        ([[5], Unread([1] * 1024)], "prompt[1]: has 1024 tokens"),
        (Unread([True] * 257), "prompt: 257 prompts: must not exceed 256"),
        (Unread([[]] * 257), "prompt: 257 prompts: must not exceed 256"),
    ],
    ids=["ids", "one of several", "nothing that is known", "prompts"],
)
def test_prompts_are_counted_before_they_are_looked_at(given: Any, message: str) -> None:
    with pytest.raises(ApiError) as refused:
        several_prompts(given, 256, 1024)
    assert refused.value.message.startswith(message)
    assert refused.value.param == "prompt"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stop": ["x"] * 65}, "stop: 65 strings: must not exceed 64"),
        ({"stop": "x" * 1001}, "stop: 1001 characters in one string: must not exceed 1000"),
        ({"stop": [[1] * 1001]}, "stop: 1001 characters in one string: must not exceed 1000"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids: 1025 token ids: must not exceed 1024"),
        ({"logit_bias": dict.fromkeys(range(1025), 1)}, "logit_bias: 1025 token ids: must not exceed 1024"),
        ({"json_schema": {"const": "x" * 200_000}}, "guided_json: 200013 characters: must not exceed 200000"),
        ({"json_schema": [1] * 100_000}, "guided_json: 300000 characters: must not exceed 200000"),
        ({"choice": ["x"] * 100_000}, "choice: 500000 characters: must not exceed 200000"),
        ({"grammar": "x" * 200_001}, "grammar: 200001 characters: must not exceed 200000"),
    ],
    ids=lambda it: str(it)[:30],
)
def test_lengths_are_checked_before_anything_else(
    values: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked_at(**values: Any) -> None:
        raise AssertionError("what is too long was looked at")

    monkeypatch.setattr("nanoinfer.server.to_params.SamplingParams", looked_at)
    with pytest.raises(ApiError) as refused:
        make_params(Given(values, {"json_schema": "guided_json"}), ServerSettings())
    assert refused.value.message == message


def test_messages_quote_no_long_values(server: Running) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {**COMPLETION, "guided_json": [1] * 50_000}),
        ("/v1/completions", {**COMPLETION, "stop": [["x" * 100_000]]}),
        ("/generate", {"text": "x", "sampling_params": {f"temprature{i}": 1 for i in range(50)}}),
        ("/generate", {"text": "x", "sampling_params": {f"field{i}": 1 for i in range(MANY)}}),
    ]
    for path, body in wrong:
        answer = post(server, path, body)
        assert answer.status_code == 400
        assert len(answer.content) < 2000


def test_prompts_with_the_same_limits_share_their_params(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def counted(*given: Any, **more: Any) -> Any:
        made.append(more)
        return make_params(*given, **more)

    monkeypatch.setattr("nanoinfer.server.wishes.make_params", counted)
    answer = post(server, "/v1/completions", {**COMPLETION, "prompt": [[1, 2], [3], [4, 5, 6]], "guided_choice": ["x"]})
    assert len(answer.json()["choices"]) == 3
    assert len(made) == 1


@pytest.mark.parametrize(("rid", "message"), [("\ud800", "UTF-8"), ("x" * 257, "at most 256 characters")])
def test_a_wrong_rid_is_refused_before_anything_is_computed(server: Running, rid: str, message: str) -> None:
    for stream in (False, True):
        check(post(server, "/generate", {"text": "x", "rid": rid, "stream": stream}), "rid", message)
