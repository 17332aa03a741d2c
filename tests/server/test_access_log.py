"""The access log: one line per request."""

import logging

import pytest

from tests.helpers.servers import BODY, gated_server


def test_the_log_has_one_line_per_request_and_prompts_only_if_asked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nanoinfer.access")
    for shown in (False, True):
        caplog.clear()
        with gated_server(is_open=True, settings={"show_prompts": shown}) as (server, _, _):
            for _ in range(2):
                server.post("/v1/completions", {**BODY, "prompt": "hush\nhush"}, headers={"x-request-id": "mine"})
            server.post("/v1/completions", {"prompt": "hush"})
        first, second, wrong = [record.getMessage() for record in caplog.records if record.name == "nanoinfer.access"]
        assert first.startswith(
            "127.0.0.1 POST /v1/completions 200 id=mine model=nanoinfer prompt=9 cached=0 output=8 ttft_ms="
        )
        assert " cached=8 " in second
        assert " end=length" in first
        assert " 400 " in wrong
        assert ("hush\\nhush" in first) == shown
        assert "hush" not in wrong
        assert "\n" not in first


def test_a_refusal_has_its_field_and_its_code(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nanoinfer.access")
    with gated_server(is_open=True) as (server, _, _):
        server.post("/v1/completions", {**BODY, "max_token": 1})
        server.post("/v1/completions", {**BODY, "model": "else"})
        server.post("/v1/completions", {**BODY, "max_tokens": 2, "min_tokens": 3})
        server.post("/v1/chat/completions", {"model": "nanoinfer", "messages": [{"role": "a b"}, 1]})
        server.post("/v1/completions", content=b"{", headers={"content-type": "application/json"})
        server.get("/nothing")
        server.post("/v1/completions", BODY)
    lines = [record.getMessage() for record in caplog.records if record.name == "nanoinfer.access"]
    told = [[part.partition("=")[2] for part in line.split() if part.startswith(("param=", "code="))] for line in lines]
    assert told == [
        ["max_token", "unknown_field"],
        ["model", "model_not_found"],
        ["min_tokens", "-"],
        ["messages[1]", "invalid_value"],
        ["-", "invalid_json"],
        ["-", "-"],
        [],
    ]
