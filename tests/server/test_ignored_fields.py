"""What changes no answer is ignored, and told the log once; what looks misspelt is refused."""

import json
import logging
from typing import Any

import pytest

from nanoinfer.server import fields
from tests.helpers.servers import Running
from tests.server.test_refusals import CHAT, COMPLETION

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
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "cache_control": {}, "id": 1, "function": {"name": "f", "options": [], "new": None}}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "mood": 1}, "mood": None}


def post(server: Running, path: str, body: dict[str, Any]) -> Any:
    return server.post(path, content=json.dumps(body), headers={"content-type": "application/json"})


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


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**CHAT, "response_format": FORM, "max_tokens": 20}),
        ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "none"}),
        ("/v1/completions", {**COMPLETION, "structured_outputs": {"regex": "a", "disable_fallback": True, "new": 1}}),
        ("/v1/completions", {**COMPLETION, "stream_options": {"include_usage": True}}),
        ("/v1/chat/completions", {**CHAT, "tools": [], "parallel_tool_calls": False}),
        ("/v1/completions", {**COMPLETION, "stream": True, "stream_options": {"continuous_usage_stats": True, "x": 1}}),
        ("/generate", {"text": "Once", "bootstrap_host": None, "sampling_params": {"n": 1, "unheard": 5, "new": None}}),
        ("/tokenize", {"prompt": "Once", "request_id": "x"}),
        ("/detokenize", {"tokens": [5], "request_id": "x"}),
    ],
)
def test_other_objects_have_unknown_fields_too(server: Running, path: str, body: dict[str, Any]) -> None:
    assert post(server, path, body).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {**COMPLETION, "max_token": 5}, "max_token"),
        ("/v1/completions", {**COMPLETION, "max_completion_tokens": 5}, "max_completion_tokens"),
        ("/v1/completions", {**COMPLETION, "do_sample": False}, "do_sample"),
        ("/v1/chat/completions", {**CHAT, "sampling_params": {"temperature": 0}}, "sampling_params"),
        ("/generate", {"text": "Once", "sampling_parms": {}}, "sampling_parms"),
        ("/generate", {"text": "Once", "sampling_params": {"temprature": 0}}, None),
        ("/tokenize", {"prompt": "Once", "chat_template": "x"}, "chat_template"),
        ("/v1/chat/completions", {**CHAT, "add_special_tokens": True}, "add_special_tokens"),
    ],
)
def test_what_may_have_been_meant_otherwise_is_refused(
    server: Running, path: str, body: dict[str, Any], param: str | None
) -> None:
    answer = post(server, path, body)
    assert answer.status_code == 400
    if param is not None:
        assert answer.json()["error"]["param"] == param
        assert answer.json()["error"]["code"] in ("unknown_field", "unsupported_field")


def test_one_grammar_may_have_two_names_but_not_two_values(server: Running) -> None:
    asked = {**COMPLETION, "guided_grammar": 'start: "a"', "max_tokens": 5}
    same = {"ebnf": 'start: "a"', "grammar": 'start: "a"', "structured_outputs": {"grammar": 'start: "a"'}}
    assert text_of(server, "/v1/completions", {**asked, **same}) == "a"
    for other in ({"ebnf": 'start: "b"'}, {"regex": 'start: "a"'}):
        answer = post(server, "/v1/completions", {**asked, **same, **other})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "structured_outputs.grammar")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"regex": "[x]{3}"}, "xxx"),
        ({"ebnf": 'root ::= item{2} "."\nitem ::= "é" | "\\u00e9"'}, "éé."),
        ({"json_schema": '{"const": 5}'}, "5"),
        ({"guided_grammar": 'start: "<" %json {"const": [1, 2]} ">"'}, "<[1,2]>"),
    ],
)
def test_grammars_by_sglangs_names_and_in_other_notations(server: Running, given: dict[str, Any], text: str) -> None:
    assert text_of(server, "/v1/completions", {**COMPLETION, **given, "max_tokens": 20}) == text
    if "guided_grammar" not in given:
        answer = post(server, "/generate", {"text": "Once", "sampling_params": {**given, "max_new_tokens": 20}})
        assert answer.json()["text"] == text


def test_the_log_has_each_ignored_name_once(
    server: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fields, "_noted", set())
    caplog.set_level(logging.INFO, "nanoinfer.server")
    said = [{"role": "user", "content": "x", "metadata": {}, "odd\nname": 1}] * 2
    for _ in range(2):
        post(server, "/v1/chat/completions", {**CHAT, "messages": said, "best_of": 1, "metadata": None})
    lines = [record.getMessage() for record in caplog.records if record.name == "nanoinfer.server"]
    assert len(lines) == 2
    assert "'metadata'" in lines[0]
    assert "'odd\\nname'" in lines[1]
    monkeypatch.setattr(fields, "MOST_NOTED", 10)
    post(server, "/v1/completions", {**COMPLETION, **{f"{i}".rjust(30, "z"): 1 for i in range(50)}})
    assert len([record for record in caplog.records if record.name == "nanoinfer.server"]) == 10
