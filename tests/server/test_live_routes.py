"""The live page's addresses, over real connections: what is open to everybody, and what needs a key."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from nanoinfer.server.live.routes import FILES, POLICY
from tests.helpers.engines import make_engine
from tests.helpers.servers import Running, patient_app, running
from tests.helpers.waiting import HANG_S

KEY = {"authorization": "Bearer a-key"}


def serving(**settings: Any) -> Any:
    engine = make_engine(slots=512)
    return running(patient_app(engine, **settings))


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    with serving(api_keys=["a-key"]) as up:
        yield up


@pytest.fixture(scope="module")
def shown() -> Iterator[Running]:
    with serving(show_prompts=True) as up:
        yield up


def first_message(up: Running, headers: dict[str, str] | None = None) -> dict[str, Any]:
    with httpx.stream("GET", f"{up.url}/live/events", headers=headers, timeout=HANG_S) as response:
        assert response.status_code == 200
        line = next(line for line in response.iter_lines() if line.startswith("data: "))
    return json.loads(line.removeprefix("data: "))


def complete(up: Running, prompt: str, **more: Any) -> None:
    body = {"model": up.service.base_name, "prompt": prompt, "max_tokens": 4, "temperature": 0}
    assert up.post("/v1/completions", body, **more).status_code == 200


@pytest.mark.parametrize("path", ["/", *(f"/static/{name}" for name in FILES)])
def test_the_pages_own_files_need_no_key_and_may_load_nothing_from_elsewhere(locked: Running, path: str) -> None:
    response = locked.get(path)
    assert response.status_code == 200
    assert response.headers["content-security-policy"] == f"{POLICY}; frame-ancestors 'none'"
    assert POLICY.startswith("default-src 'self';")
    assert response.headers["x-content-type-options"] == "nosniff"
    for elsewhere in ("http:", "https:", "//cdn", "@import", "unsafe-inline", " style="):
        text = response.text.replace("http://www.w3.org/2000/svg", "")
        assert elsewhere not in text.replace("//www", "")


@pytest.mark.parametrize(
    "path", ["/static/page.htm", "/static/routes.py", "/static/..%2froutes.py", "/static/player.js"]
)
def test_other_files_are_not_served(locked: Running, path: str) -> None:
    response = locked.get(path, headers=KEY)
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"


def test_what_the_engine_does_needs_the_key(locked: Running) -> None:
    assert locked.get("/live/events").status_code == 401
    assert locked.get("/live/events?key=a-key&api_key=a-key").status_code == 401, "never in the address"


def test_the_tree_is_shown_and_what_was_written_only_with_show_prompts(locked: Running, shown: Running) -> None:
    for up, headers, tokens in ((locked, KEY, [0] * 9), (shown, None, [*range(97, 106)])):
        complete(up, "abcdef", headers=headers)
        message = first_message(up, headers)
        assert message["engine"]["max_total_tokens"] == 512
        assert (message["about"]["show_prompts"], message["about"]["has_chat_template"]) == (up is shown, False)
        (event,) = message["events"]
        assert [operation[3] for operation in event["tree"]] == [tokens]
        up.service.core.check_integrity()


def test_one_watcher_too_many_is_told_so(shown: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanoinfer.server.live.feed.MOST_WATCHERS", 0)
    refused = shown.get("/live/events")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_watchers")


def test_a_server_ends_while_somebody_watches() -> None:
    with serving() as up, httpx.stream("GET", f"{up.url}/live/events", timeout=HANG_S) as response:
        lines = response.iter_lines()
        assert next(lines) == "event: news"
        up.end()
        assert "event: end" in list(lines)
    assert up.service.engine.is_closed
