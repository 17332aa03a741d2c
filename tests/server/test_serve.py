"""`python -m nanoinfer serve`: what it refuses, what it does before it serves, and, in its own process, how it ends."""

import gc
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from nanoinfer import LLM
from nanoinfer.cli.main import main
from tests.helpers.servers import read_all, request_bytes
from tests.helpers.waiting import HANG_S, Worker

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["story", "--model", "story"], "--model"),
        (["--port", "99999"], "--port 99999"),
        (["nothing-like-this"], "nothing-like-this"),
        (["--api-key-file", "/nowhere"], "/nowhere"),
        (["--adapter-root", "/nowhere"], "adapter_root"),
        (["--request-timeout", "0"], "request_timeout_s"),
        (["--api-key", ""], "api_keys"),
    ],
)
def test_wrong_options_are_told_in_one_line(arguments: list[str], message: str, capsys: Any) -> None:
    try:
        code = main(["serve", *arguments])
    except SystemExit as end:
        code = end.code
    assert code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_an_environment_without_keys_is_no_open_server(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("NANOINFER_API_KEY", " , ")
    assert main(["serve"]) == 2
    assert "NANOINFER_API_KEY" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    import nanoinfer.server

    monkeypatch.setattr(nanoinfer.server, "find_spec", lambda name: None if name == "uvicorn" else object())
    assert main(["serve"]) == 2
    error = capsys.readouterr().err
    assert "pip install nanoinfer[server]" in error
    assert error.count("\n") == 1
    with pytest.raises(ImportError, match=r"nanoinfer\[server\]"):
        nanoinfer.server.make_app  # noqa: B018
    with pytest.raises(ImportError):
        LLM("story", max_total_tokens=64).serve()


@pytest.fixture
def logs() -> Iterator[None]:
    """Whatever the command does to the loggers is undone."""
    loggers = [logging.getLogger(name) for name in ("nanoinfer", "nanoinfer.access", "uvicorn.error")]
    before = [(each, each.handlers[:], each.propagate, each.level) for each in loggers]
    yield
    for each, handlers, propagate, level in before:
        each.handlers[:], each.propagate = handlers, propagate
        each.setLevel(level)


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.usefixtures("logs")
def test_messages_of_exceptions_are_logged_only_where_prompts_may_be(
    shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(app: Any, sock: socket.socket) -> None:
        logging.getLogger("nanoinfer.access").info("a line of the access log")
        logging.getLogger("nanoinfer.engine").info("a line per step")
        for name in ("nanoinfer.engine", "nanoinfer.server", "uvicorn.error"):
            try:
                raise KeyError("hu" + "sh") from ValueError("hu" + "sh")  # the log shows lines of code
            except KeyError:
                logging.getLogger(name).exception("%s failed", name)

    monkeypatch.setattr("nanoinfer.server.run.serve", serve)
    try:
        assert main(["serve", "--port", "0", "--max-total-tokens", "64", *["--show-prompts"] * shown]) == 0
    finally:
        gc.unfreeze()
    log = capsys.readouterr().err
    assert ("hush" in log) == shown
    assert log.count("a line of the access log") == 1
    assert "a line per step" not in log
    for name in ("nanoinfer.engine", "nanoinfer.server", "uvicorn.error"):
        assert log.count(f"{name} failed") == 1
    assert log.count("KeyError") >= 3
    assert "test_serve.py" in log, "where it was raised is told"


def test_a_port_that_is_taken_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert f"--port {port}" in error
    assert error.count("\n") == 1


# --- in a process of its own ---


def started(*arguments: str, **environment: str) -> tuple[subprocess.Popen[str], str]:
    """The process and its address."""
    command = [sys.executable, "-m", "nanoinfer", "serve", *arguments, "--port", "0", "--max-total-tokens", "2048"]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    loads, serves = (Worker(process.stdout.readline).result() for _ in range(2))
    assert loads.startswith("nanoinfer loads "), process.communicate()
    found = re.search(r" on (http://127\.0\.0\.1:\d+) ", serves)
    assert found, process.communicate()
    return process, found[1]


def get(url: str, **more: Any) -> httpx.Response:
    return httpx.get(url, timeout=HANG_S, **more)


@pytest.mark.slow
def test_it_serves_says_where_and_ends_when_all_is_answered(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("from-file\n")
    options = ("story", "--api-key-file", str(keys), "--served-model-name", "tales", "--adapter", "sea")
    options += ("--drain-timeout", "3600")
    process, url = started(*options, NANOINFER_API_KEY="from-environment, another")
    try:
        assert get(f"{url}/health").status_code == 200
        assert get(f"{url}/v1/models").status_code == 401
        assert get(f"{url}/health", headers={"host": "attacker.example"}).status_code == 403
        for key in ("from-file", "from-environment", "another"):
            client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
            assert [model.id for model in client.models.list()] == ["tales", "sea"]
        stream = client.completions.create(
            model="tales", prompt="Once", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
        )
        chunks = [next(stream)]
        process.send_signal(signal.SIGTERM)
        chunks += stream
        assert chunks[-1].choices[0].finish_reason == "length", "what was accepted is served to its end"
        assert process.wait(HANG_S) == 0
    finally:
        process.kill()
    _, log = process.communicate()
    assert "POST /v1/completions 200" in log
    assert "output=400" in log
    assert "from-file" not in log
    assert "Once" not in log


@pytest.mark.slow
def test_it_says_what_it_waits_for_and_a_second_signal_ends_that() -> None:
    process, url = started("story", "--drain-timeout", "3600")
    try:
        assert process.stdout is not None
        port = int(url.rpartition(":")[2])
        bodies = [socket.create_connection(("127.0.0.1", port), timeout=HANG_S) for _ in range(2)]
        for body in bodies:
            body.sendall(request_bytes("/v1/completions", b"{", length=100))  # the rest never comes
        for _ in range(2):  # what is answered to the second one was read after those two were
            assert get(f"{url}/health").status_code == 200
        process.send_signal(signal.SIGINT)
        line = Worker(process.stdout.readline).result()
        assert re.search(r"2 requests, for 3600 s", line), line
        process.send_signal(signal.SIGINT)
        for body in bodies:
            with body:
                assert read_all(body).startswith(b"HTTP/1.1 503")
        assert process.wait(HANG_S) == 130
    finally:
        process.kill()
        process.communicate()
