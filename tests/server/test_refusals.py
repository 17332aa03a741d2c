"""What would change an answer and cannot be done is refused, with an error in OpenAI's shape that names the field. So is
what looks misspelt; other fields are ignored, and told the log once."""

import json
import logging
from typing import Any

import openai
import pytest

from nanoinfer.server import protocol
from tests.helpers.servers import Running

COMPLETION = {"model": "story", "prompt": "Once", "max_tokens": 2}
CHAT = {"model": "story", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


def schema_format(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": fields}}


WRONG_COMPLETIONS: list[tuple[str | None, dict[str, Any]]] = [
    ("temperature", {"temperature": -1}),
    ("temperature", {"temperature": "1"}),
    ("max_tokens", {"max_tokens": 0}),
    ("min_tokens", {"min_tokens": 5}),
    ("seed", {"seed": 2**64}),
    ("logprobs", {"logprobs": 21}),
    ("stop_token_ids", {"stop_token_ids": [99999]}),
    ("logit_bias.x", {"logit_bias": {"x": 1}}),
    ("logit_bias", {"logit_bias": {"99999": 1}}),
    *(
        ("prompt", {"prompt": prompt})
        for prompt in ("", [], [[]], [[1], ""], [1, "x"], [1, -1], [10**40], [True], {}, None)
    ),
    *(("prompt", {"prompt": prompt}) for prompt in (["x"] * 257, "x " * 4000, [5] * 1024, "\ud800", [[1], ["\ud800"]])),
    ("model", {"model": 5}),
    ("stream", {"stream": "yes"}),
    ("prompt_logprobs", {"prompt_logprobs": 21}),
    ("prompt_logprobs", {"prompt_logprobs": 0, "stream": True}),
    ("best_of", {"best_of": 2}),
    (None, {f"field{i}": 1 for i in range(101)}),
    ("response_format.json_schema.strict", schema_format(name="x", schema={}, strict="banana")),
    ("response_format.json_schema.schema", schema_format(name="x")),
    ("response_format.type", {"response_format": {"type": "xml"}}),
    ("guided_grammar", {"guided_grammar": 'start: a\na: a a | "a" | "b" | " " | /[a-z]/'}),  # ambiguous
    ("guided_regex", {"guided_regex": "("}),
    ("guided_choice", {"guided_choice": []}),
    ("guided_json", {"guided_json": {"type": "nonsense"}}),
    ("guided_regex", {"guided_json": {}, "guided_regex": "a"}),
    ("structured_outputs.choice", {"structured_outputs": {"regex": "a", "choice": ["b"]}}),
]
WRONG_CHATS: list[tuple[str, dict[str, Any]]] = [
    ("messages", {"messages": []}),
    ("messages[0].role", {"messages": [{"content": "x"}]}),
    ("messages", {"messages": [{"role": "user"}]}),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    ("messages[0].audio", {"messages": [{"role": "user", "content": "x", "audio": {"id": 1}}]}),
    ("top_logprobs", {"top_logprobs": 3}),
    ("max_completion_tokens", {"max_completion_tokens": 3}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),  # the model's template knows none
    ("tool_choice", {"tool_choice": "required"}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"chat_template": "x"}}),
    ("sampling_params", {"sampling_params": {"temperature": 0}}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"a": [float("nan")]}}),
]


def post(server: Running, path: str, body: dict[str, Any]) -> Any:
    text = json.dumps(body)  # httpx refuses what is not UTF-8, or is NaN
    return server.post(path, content=text, headers={"content-type": "application/json"})


def refusal(server: Running, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = post(server, path, body)
    assert answer.status_code == 400, answer.text
    assert len(answer.content) < 2000, "it quotes no long values"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(("param", "more"), WRONG_COMPLETIONS, ids=lambda it: str(it)[:40])
def test_a_wrong_completion(server: Running, param: str | None, more: dict[str, Any]) -> None:
    assert refusal(server, COMPLETIONS, {**COMPLETION, **more})["param"] == param


@pytest.mark.parametrize(("param", "more"), WRONG_CHATS, ids=lambda it: str(it)[:40])
def test_a_wrong_chat(server: Running, param: str, more: dict[str, Any]) -> None:
    assert refusal(server, CHATS, {**CHAT, **more})["param"] == param


@pytest.mark.parametrize(
    ("path", "body", "param", "meant"),
    [
        (COMPLETIONS, {**COMPLETION, "temprature": 1}, "temprature", "temperature"),
        (COMPLETIONS, COMPLETION | schema_format(name="x", shema={}), "response_format.json_schema.shema", "schema"),
        (CHATS, {**CHAT, "messages": [{"role": "user", "tool_call": []}]}, "messages[0].tool_call", "tool_calls"),
        ("/generate", {"text": "Once", "sampling_params": {"temprature": 0}}, None, "temperature"),
    ],
)
def test_a_near_miss_is_told_what_was_meant(
    server: Running, path: str, body: dict[str, Any], param: str | None, meant: str
) -> None:
    error = refusal(server, path, body)
    assert meant in error["message"]
    assert param is None or (error["param"], error["code"]) == (param, "unknown_field")


@pytest.mark.parametrize(
    "harmless",
    [
        {"best_of": 1, "suffix": None, "user": "somebody", "use_beam_search": False},
        {"n": None, "temperature": None, "stop": None, "logit_bias": None, "stream": None, "stream_options": None},
        {"truncate_prompt_tokens": None, "max_token": None, "add_special_tokens": True},
        {"response_format": {"type": "text"}, "guided_json": None, "structured_outputs": None},
    ],
)
def test_what_asks_for_what_happens_anyway_is_accepted(server: Running, harmless: dict[str, Any]) -> None:
    assert server.post(COMPLETIONS, {**COMPLETION, **harmless}).status_code == 200


def test_an_unknown_model_is_a_404_and_too_long_a_prompt_has_openais_code(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.completions.create(model="gpt-17", prompt="x")
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-17")
    for prompt in ([5] * 2000, "x " * 1100):
        with pytest.raises(openai.BadRequestError) as too_long:
            client.completions.create(model="story", prompt=prompt)
        assert too_long.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'"text"', b"null", b'{"model":"\xff"}', b"[" * 100_000, b'{"model":' + b"9" * 5000 + b"}"],
    ids=lambda it: str(it)[:20],
)
def test_a_body_that_is_no_json_object(server: Running, content: bytes) -> None:
    answer = server.post(COMPLETIONS, content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


def test_a_form_from_another_page_is_not_json(server: Running) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = server.post(COMPLETIONS, content=json.dumps(COMPLETION), headers={"content-type": kind})
        assert answer.status_code == 400


def test_unknown_paths_and_methods(server: Running) -> None:
    for path in ("/nothing", "/docs", "/redoc"):
        assert server.get(path).json()["error"]["type"] == "not_found_error"
    answer = server.get(COMPLETIONS)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/chat/completions", "/models", "/v1/completions/", "/v1/v1/completions"])
def test_a_wrong_base_url_is_told(server: Running, path: str) -> None:
    answer = server.post(path, {})
    assert answer.status_code == 404
    assert "/v1" in answer.json()["error"]["message"]


# --- what is ignored --------------------------------------------------------------------------------------------------

HINTS = {
    "reasoning_effort": "low", "verbosity": "high", "store": True, "metadata": {"a": "b"}, "service_tier": "flex",
    "prompt_cache_retention": "24h", "return_routed_experts": False, "return_token_ids": False, "priority": 5,
    "prediction": {"type": "content", "content": "x"}, "guided_decoding_backend": "xgrammar", "mystery": [1, {}],
    "length_penalty": 2.0, "kv_transfer_params": {}, "x" * 500: 1, "\ud800": 1, "max_token": None, "unheard": None,
}  # fmt: skip
MESSAGE = {
    "parsed": {"a": 1}, "refusal": "no", "metadata": {}, "options": [], "reasoning": "hm", "reasoning_details": [{}],
    "cache_control": {"type": "ephemeral"}, "id": "m1", "name": "Ann", "annotations": [], "audio": None, "new": None,
}  # fmt: skip
PART = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}, "id": None, "annotations": []}


def text_of(server: Running, path: str, body: dict[str, Any]) -> str:
    answer = post(server, path, {**body, "temperature": 0})
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


def test_the_answer_is_the_same_with_and_without_what_is_ignored(server: Running) -> None:
    told = [{"role": "user", "content": [PART], **MESSAGE}]
    plain = [{"role": "user", "content": "Hi", "name": "Ann"}]
    assert text_of(server, "/v1/completions", {**COMPLETION, **HINTS}) == text_of(server, "/v1/completions", COMPLETION)
    for body in (HINTS, {"modalities": ["text"], "audio": {"voice": "x"}}, {"tools": None, "functions": []}):
        asked = {**CHAT, "messages": told, **body}
        assert text_of(server, "/v1/chat/completions", asked) == text_of(
            server, "/v1/chat/completions", {**CHAT, "messages": plain}
        )


def test_the_log_has_each_ignored_name_once(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    protocol._noted.clear()
    caplog.set_level(logging.INFO, "nanoinfer.server")
    said = [{"role": "user", "content": "x", "metadata": {}, "odd\nname": 1}] * 2
    for _ in range(2):
        post(server, "/v1/chat/completions", {**CHAT, "messages": said, "best_of": 1, "metadata": None})
    lines = [record.getMessage() for record in caplog.records if record.name == "nanoinfer.server"]
    assert len(lines) == 2
    assert "'metadata'" in lines[0]
    assert "'odd\\nname'" in lines[1]
