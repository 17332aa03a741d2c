"""The live page's addresses, over real connections: what is open to everybody, and what needs a key."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from nanoinfer.server.live.routes import FILES, POLICY
from nanoinfer.trace import Trace
from tests.helpers.engines import make_engine
from tests.helpers.servers import Running, patient_app, running
from tests.helpers.waiting import HANG_S, until

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


def first_frames(up: Running, count: int, headers: dict[str, str] | None = None) -> list[dict[str, Any]]:
    frames = []
    with httpx.stream("GET", f"{up.url}/live/events", headers=headers, timeout=HANG_S) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: "):
                frames.append(json.loads(line.removeprefix("data: ")))
            if len(frames) == count:
                break
    return frames


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
    "path", ["/static/page.htm", "/static/routes.py", "/static/..%2froutes.py", "/static/player_state.js"]
)
def test_other_files_are_not_served(locked: Running, path: str) -> None:
    response = locked.get(path, headers=KEY)
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"


@pytest.mark.parametrize("path", ["/live/events", "/live/node/1", "/live/trace"])
def test_what_the_engine_does_needs_the_key(locked: Running, path: str) -> None:
    assert locked.get(path).status_code == 401
    assert locked.get(f"{path}?key=a-key&api_key=a-key").status_code == 401, "never in the address"


def test_frames_come_while_requests_are_served(locked: Running) -> None:
    complete(locked, "abcdef", headers=KEY)
    (frame,) = first_frames(locked, 1, KEY)
    assert frame["key"]
    assert frame["about"]["engine"]["max_total_tokens"] == 512
    assert (frame["about"]["show_prompts"], frame["about"]["has_chat_template"]) == (False, False)
    assert frame["state"]["counts"]["finished"] >= 1
    locked.service.core.check_integrity()


def test_texts_of_nodes_are_kept_secret(locked: Running) -> None:
    complete(locked, "abcdef", headers=KEY)
    assert b"abcdef" not in json.dumps(first_frames(locked, 1, KEY)).encode()
    response = locked.get("/live/node/1", headers=KEY)
    assert response.status_code == 403
    assert "--show-prompts" in response.json()["error"]["message"]


def test_texts_of_nodes_can_be_read_where_prompts_are_shown(shown: Running) -> None:
    complete(shown, "abcdef")
    complete(shown, "abcxyz")
    with httpx.stream("GET", f"{shown.url}/live/events", timeout=HANG_S) as response:  # somebody watches
        lines = (line for line in response.iter_lines() if line.startswith("data: "))
        state = json.loads(next(lines).removeprefix("data: "))["state"]
        (number,) = [number for number, fields in state["nodes"].items() if fields.get("text", "").startswith("xyz")]
        found = shown.get(f"/live/node/{number}").json()
        assert found == {"number": int(number), "tokens": 6, "left_out": 0, "before": "abc", "text": "xyz{|}"}
        missing = shown.get("/live/node/9999")
        assert (missing.status_code, missing.json()["error"]["param"]) == (404, "number")
        assert shown.get("/live/node/x").status_code == 404


def nobody_watches(up: Running, headers: dict[str, str] | None) -> bool:
    """The feed has noticed, too, that the last one who did has gone."""
    return up.get("/live/trace", headers=headers).status_code == 409


def test_the_last_minutes_can_be_saved_while_somebody_watches(locked: Running, shown: Running, tmp_path: Path) -> None:
    for up, headers, text in ((locked, KEY, "□" * 10), (shown, None, "abcdefghij")):
        until(partial(nobody_watches, up, headers))
        with httpx.stream("GET", f"{up.url}/live/events", headers=headers, timeout=HANG_S) as response:
            lines = response.iter_lines()  # closes the stream at its end
            assert next(lines) == "event: frame"
            complete(up, "abcdef", headers=headers)
            saved = up.get("/live/trace", headers=headers)
        assert saved.status_code == 200, saved.text
        assert saved.headers["content-disposition"] == 'attachment; filename="nanoinfer-trace.json"'
        (tmp_path / "trace.json").write_bytes(saved.content)
        trace = Trace.load(tmp_path / "trace.json")
        assert trace.text(len(trace.requests) - 1) == text


def test_a_server_ends_while_somebody_watches() -> None:
    with serving() as up, httpx.stream("GET", f"{up.url}/live/events", timeout=HANG_S) as response:
        lines = response.iter_lines()
        assert next(lines) == "event: frame"
        up.end()
        assert "event: end" in list(lines)
    assert up.service.engine.is_closed
