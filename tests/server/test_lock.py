"""Who gets in: keys, hosts, origins, request ids, sizes of bodies; and the access log. No sockets."""

import json
import logging
from typing import Any

import pytest
from fastapi import FastAPI

from nanoinfer.cli.serve import read_keys
from nanoinfer.server import make_app
from tests.helpers.engines import make_engine
from tests.helpers.servers import ask
from tests.helpers.waiting import run

BODY = {"model": "nanoinfer", "prompt": "abc", "max_tokens": 3, "temperature": 0}


def app_with(**settings: Any) -> FastAPI:
    return make_app(make_engine(), **settings)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_with_keys_only_health_is_open() -> None:
    app = app_with(api_keys=["first", "second"])
    assert ask(app, "GET", "/health").status_code == ask(app, "HEAD", "/health").status_code == 200
    for path in ("/v1/models", "/metrics", "/version", "/openapi.json", "/v1/completions", "/nothing", "/live/x"):
        answer = ask(app, "GET", path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
        assert answer.json()["error"]["code"] == "invalid_api_key"
    assert "second" not in repr(app.state.service.settings)
    assert ask(app, "GET", "/v1/models", headers=[(b"authorization", b"Bearer \xff")]).status_code == 401
    for key in ("first", "second"):
        assert ask(app, "GET", "/v1/models", headers=bearer(key)).status_code == 200
    for wrong in ("Bearer third", "Bearer ", "Bearer firstsecond", "first", "Basic first"):
        assert ask(app, "GET", "/v1/models", headers={"authorization": wrong}).status_code == 401
    assert ask(app, "POST", "/v1/completions", json=BODY, headers=bearer("second")).status_code == 200
    assert ask(app, "GET", "/static/%2e%2e/v1/models").status_code == 401
    assert ask(app, "GET", "/health/").status_code == 401


def test_keys_come_from_a_file(tmp_path: Any) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nfirst\n\n  second  \n")
    assert read_keys(path) == ["first", "second"]
    path.write_text("# none\n")
    with pytest.raises(ValueError, match="has no keys"):
        read_keys(path)


HOSTS = ("127.0.0.1:8000", "localhost", "[::1]:8000", "10.0.0.5", "a.localhost:1", "Mine.Example", "mine.example.:80")
OTHERS = ("attacker.example", "127.0.0.1.attacker.example:8000", "attacker.example.", "[::1")


@pytest.mark.parametrize(("host", "status"), [*((host, 200) for host in HOSTS), *((host, 403) for host in OTHERS)])
def test_a_name_that_leads_here_by_dns_rebinding_is_refused(host: str, status: int) -> None:
    app = app_with(allowed_hosts=["mine.example"])
    assert ask(app, "POST", "/v1/completions", json=BODY, headers={"host": host}).status_code == status
    assert ask(app_with(allowed_hosts=["*"]), "GET", "/health", headers={"host": host}).status_code == 200


def test_pages_from_elsewhere_are_kept_out_unless_they_are_named() -> None:
    app = app_with()
    headers = {"origin": "http://page.example"}
    for path in ("/flush_cache", "/v1/completions"):
        answer = ask(app, "POST", path, headers=headers, json=BODY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")
    assert ask(app, "POST", "/flush_cache", headers={"origin": "null"}).status_code == 403
    assert ask(app, "POST", "/flush_cache", headers={"origin": "http://test"}).status_code == 200
    assert "access-control-allow-origin" not in ask(app, "GET", "/v1/models", headers=headers).headers
    named = app_with(cors_origins=["http://page.example"], api_keys=["key"])
    of_openai = "authorization,content-type,x-stainless-os,x-stainless-retry-count"
    preflight = {"access-control-request-method": "POST", "access-control-request-headers": of_openai}
    answer = ask(named, "OPTIONS", "/v1/completions", headers={**headers, **preflight})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "http://page.example")
    assert answer.headers["access-control-allow-headers"] == of_openai
    answer = ask(named, "POST", "/v1/completions", headers=headers, json=BODY)
    assert "x-should-retry" in answer.headers["access-control-expose-headers"]
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, "http://page.example")
    answer = ask(named, "POST", "/v1/completions", headers={**headers, **bearer("key")}, json=BODY)
    assert answer.status_code == 200


def test_request_ids_go_in_and_out() -> None:
    app = app_with()
    answer = ask(app, "POST", "/v1/completions", json=BODY, headers={"x-request-id": "mine-1"})
    assert (answer.headers["x-request-id"], answer.json()["id"]) == ("mine-1", "cmpl-mine-1")
    ids = {ask(app, "GET", "/health").headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2
    for wrong in ("x" * 129, "a b", "tab\there"):
        assert ask(app, "GET", "/health", headers={"x-request-id": wrong}).headers["x-request-id"] != wrong


def test_a_body_may_be_as_long_as_the_limit() -> None:
    app, content = app_with(max_body_bytes=1000), json.dumps(BODY).encode()

    async def at_once(body: bytes) -> Any:
        yield body

    for size, status in ((1000, 200), (1001, 413)):
        body, headers = content.ljust(size), {"content-type": "application/json"}
        for sent in (body, at_once(body)):  # with and without a content-length
            assert ask(app, "POST", "/v1/completions", content=sent, headers=headers).status_code == status


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_body_bytes", 0),
        ("request_timeout_s", 0),
        ("api_keys", "a text"),
        ("adapter_root", "/nowhere/at/all"),
    ],
)
def test_settings_are_checked(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        make_app(make_engine(), **{field: value})


def test_after_the_lifespan_the_engine_is_closed() -> None:
    app = app_with()

    async def live() -> None:
        async with app.router.lifespan_context(app):
            pass

    run(live)
    answer = ask(app, "POST", "/v1/completions", json=BODY)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert ask(app, "GET", "/health").status_code == 503


def test_the_log_has_one_line_per_request_and_prompts_only_if_asked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nanoinfer.access")
    for shown in (False, True):
        caplog.clear()
        app = app_with(show_prompts=shown)
        for _ in range(2):
            body = {**BODY, "prompt": "hush\nhush", "max_tokens": 8}
            ask(app, "POST", "/v1/completions", json=body, headers={"x-request-id": "mine"})
        for wrong in ({"prompt": "hush"}, {**BODY, "max_token": 1}, {**BODY, "model": "else"}):
            ask(app, "POST", "/v1/completions", json=wrong)
        lines = [record.getMessage() for record in caplog.records if record.name == "nanoinfer.access"]
        first, second, *wrong = lines
        for part in ("POST /v1/completions 200 id=mine model=nanoinfer prompt=9 cached=0 output=8 ", " end=length"):
            assert part in first
        assert " cached=8 " in second
        assert ("hush\\nhush" in first) == shown
        for line, parts in zip(
            wrong, ("param=model", "param=max_token code=unknown_field", "code=model_not_found"), strict=True
        ):
            assert f" {parts} " in line
            assert "hush" not in line
