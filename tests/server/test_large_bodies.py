"""Large bodies are read beside the event loop, and nothing in them is walked twice."""

import asyncio
import json
import sys
import threading
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from nanoinfer.server import large_bodies
from nanoinfer.server.completion_request import CompletionRequest
from nanoinfer.server.large_bodies import SMALL
from tests.helpers.engines import make_engine
from tests.helpers.own_names import module_with
from tests.helpers.servers import patient_app
from tests.helpers.waiting import HANG_S, run
from tests.server.test_lock import ask

BODY = {"model": "nanoinfer", "prompt": "abc", "max_tokens": 3, "temperature": 0}
LARGE = " " * SMALL


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", json.dumps(BODY) + LARGE, 200),
        ("/v1/completions", json.dumps({**BODY, "temperature": 1.5, "seed": 1}) + LARGE, 200),
        ("/generate", '{"text": "abc", "sampling_params": {"max_new_tokens": 3}}' + LARGE, 200),
        ("/tokenize", '{"prompt": 5}' + LARGE, 400),
        ("/v1/completions", json.dumps({**BODY, "prompt": [5] * SMALL}), 400),
        ("/v1/completions", LARGE + '{"model": ', 400),
        ("/v1/completions", '{"seed": ' + "1" * 5000 + "}" + LARGE, 400),
        ("/v1/completions", "[" * SMALL * 2, 400),
    ],
)
def test_a_large_body_gets_the_answer_of_a_small_one(path: str, body: str, status: int) -> None:
    headers = {"content-type": "application/json", "x-request-id": "one"}
    answers = [
        ask(patient_app(make_engine()), "POST", path, content=content.encode(), headers=headers)
        for content in (body, body.strip())
    ]
    assert [answer.status_code for answer in answers] == [status, status], answers[0].text
    large, small = ({**answer.json(), "created": 0, "meta_info": 0} for answer in answers)
    assert large == small


def test_a_large_body_is_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client is served while a large body is read: its reader waits for that."""
    served, readers = threading.Event(), list[threading.Thread]()
    loads = large_bodies._loads

    def patient_loads(text: str) -> Any:
        readers.append(threading.current_thread())
        assert served.wait(HANG_S), "nobody else is served"
        return loads(text)

    monkeypatch.setattr(large_bodies, "_loads", patient_loads)
    app = patient_app(make_engine())

    async def both() -> tuple[httpx.Response, httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            content, headers = (json.dumps(BODY) + LARGE).encode(), {"content-type": "application/json"}
            large = asyncio.create_task(client.post("/v1/completions", content=content, headers=headers))
            small = await client.post("/v1/completions", json=BODY)
            served.set()
            return small, await large

    small, large = run(both)
    assert (small.status_code, large.status_code) == (200, 200)
    assert len(readers) == 1, "a small body is read at once"
    assert readers[0] is not threading.main_thread()


@pytest.mark.parametrize("path", ["/v1/completions", "/generate", "/tokenize"])
@pytest.mark.parametrize(("size", "is_large"), [(SMALL, False), (SMALL + 1, True)])
def test_which_bodies_are_large(monkeypatch: pytest.MonkeyPatch, path: str, size: int, is_large: bool) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(large_bodies, "_loads", lambda body: sizes.append(len(body)))
    headers = {"content-type": "application/json"}
    ask(patient_app(make_engine()), "POST", path, content=b"{}".ljust(size), headers=headers)
    assert sizes == [size] * is_large


def test_numbers_are_read_by_pythons_functions_so_that_other_threads_get_turns() -> None:
    calls = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename == large_bodies.__file__

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        assert large_bodies._loads("[1, 22, 3.5]") == [1, 22, 3.5]
    finally:
        sys.setprofile(before)
    assert calls == 1 + 3


def test_lists_of_numbers_are_not_written_to_look_for_half_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(*args: Any, **more: Any) -> None:
        raise AssertionError("the numbers were written")

    monkeypatch.setattr("nanoinfer.server.fields.json", module_with(json, dumps=written))
    for prompt in ([1, 2], [[1], [2, 3]], []):
        assert CompletionRequest.model_validate({"model": "m", "prompt": prompt}).prompt == prompt
    for prompt in ([1, "x"], [[1], ["x"]], [[1], 2], [1.5], [True], {"a": 1}):
        with pytest.raises(ValidationError, match="were written"):
            CompletionRequest.model_validate({"model": "m", "prompt": prompt})


@pytest.mark.parametrize(
    "prompt", ['[1, "\\ud800"]', '[[1], ["\\ud800"]]', '["\\ud800", 1]', '[[1], [[2, "\\ud800"]]]']
)
def test_half_a_character_is_found_among_numbers(prompt: str) -> None:
    answer = ask(
        patient_app(make_engine()),
        "POST",
        "/v1/completions",
        content=f'{{"model": "nanoinfer", "prompt": {prompt}}}'.encode(),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400
    assert "UTF-8" in answer.json()["error"]["message"]
