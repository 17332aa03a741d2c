"""`python -m nanoinfer serve`, in this process: what it refuses, and what it does before it serves."""

import gc
import io
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from nanoinfer import LLM
from nanoinfer.cli.main import main
from nanoinfer.server.in_thread import ServerThread
from tests.helpers.engines import CONTEXT, make_engine
from tests.helpers.servers import patient_app


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["story", "--model", "story"], "MODEL is given as well"),
        (["--port", "99999"], "--port 99999"),
        (["nothing-like-this"], "nothing-like-this"),
        (["--api-key-file", "/nowhere"], "/nowhere"),
        (["--adapter-root", "/nowhere"], "adapter_root"),
        (["--request-timeout", "0"], "request_timeout_s"),
        (["--max-queue", "0"], "max_queue"),
        (["--event-block-size", "0"], "event_block_size=0"),
        (["--api-key", ""], "api_keys"),
        (["--max-conections", "3"], "did you mean --max-connections?"),
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
    assert "is set, but has no keys" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    import nanoinfer.server

    monkeypatch.setattr(nanoinfer.server, "find_spec", lambda name: None if name == "uvicorn" else object())
    assert main(["serve"]) == 2
    error = capsys.readouterr().err
    assert "the server needs uvicorn: pip install nanoinfer[server]" in error
    assert error.count("\n") == 1
    with pytest.raises(ImportError, match=r"nanoinfer\[server\]"):
        nanoinfer.server.make_app  # noqa: B018
    with pytest.raises(ImportError, match="the server needs uvicorn: pip install"):
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
        for name in ("nanoinfer.engine", "nanoinfer.frontends.async_door", "uvicorn.error"):
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
    for name in ("nanoinfer.engine", "nanoinfer.frontends.async_door", "uvicorn.error"):
        assert log.count(f"{name} failed") == 1
    assert log.count("KeyError") >= 3
    assert "test_serve_options.py" in log, "where it was raised is told"


def test_it_says_at_once_what_it_loads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "nothing-like-this"]) == 2
    assert capsys.readouterr().out == "nanoinfer loads nothing-like-this ...\n"


@pytest.mark.parametrize("keys", [[], ["secret"]])
def test_it_says_what_it_serves_and_how_to_open_its_page(keys: list[str]) -> None:
    engine, out = make_engine(), io.StringIO()
    engine.builder.sampling_defaults = {"temperature": 0.6, "top_k": 20}
    server = ServerThread(patient_app(engine, api_keys=keys, served_model_name="tales"))
    server._server._out = out
    with server:
        url = server.url
    (line,) = out.getvalue().splitlines()
    assert line.startswith(f"nanoinfer serves tales on {url} ")
    for part in (f"context {CONTEXT}", "256 slots", "temperature 0.6, top_k 20", "browser"):
        assert part in line
    assert ("API key" in line) == bool(keys)
    assert "secret" not in line


@pytest.mark.usefixtures("logs")
def test_what_is_loaded_before_it_serves_is_not_looked_at_by_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []

    def serve(app: Any, sock: socket.socket) -> None:
        assert sock.getsockname()[0] == "127.0.0.1", "this machine only, unless --host says otherwise"
        seen.append((gc.get_freeze_count(), len(gc.get_objects())))

    monkeypatch.setattr("nanoinfer.server.run.serve", serve)
    try:
        assert main(["serve", "--port", "0", "--max-total-tokens", "2048"]) == 0
    finally:
        gc.unfreeze()
    ((frozen, others),) = seen
    assert frozen > 100 * others


def test_a_port_that_is_taken_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert f"--port {port}: cannot be listened at: Address already in use" in error
    assert error.count("\n") == 1
