"""`python -m nanoinfer serve` in a process of its own."""

import gc
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from nanoinfer.cli import main
from tests.helpers.servers import read_all, request_bytes

ROOT = Path(__file__).parent.parent.parent


def started(*arguments: str, **environment: str) -> tuple[subprocess.Popen[str], str]:
    """The process and its address."""
    command = [sys.executable, "-m", "nanoinfer", "serve", *arguments, "--port", "0", "--max-total-tokens", "2048"]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert " on http://127.0.0.1:" in line, process.communicate()
    return process, line.rpartition(" ")[2].strip()


def test_it_serves_says_where_and_ends_when_all_is_answered(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("from-file\n")
    options = ("story", "--api-key-file", str(keys), "--served-model-name", "tales", "--adapter", "sea")
    process, url = started(*options, NANOINFER_API_KEY="from-environment, another")
    try:
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/health", headers={"host": "attacker.example"}).status_code == 403
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
        assert process.wait(30) == 0
    finally:
        process.kill()
    _, log = process.communicate()
    assert "POST /v1/completions 200" in log
    assert "output=400" in log
    assert "from-file" not in log
    assert "Once" not in log


def test_ctrl_c_ends_it_too() -> None:
    process, url = started("--model", "story")
    try:
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "story"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        out, log = process.communicate()
        assert "Traceback" not in log
        assert "waits" not in out, "there is nothing to wait for"
    finally:
        process.kill()


@pytest.mark.parametrize(("again", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_says_what_it_waits_for_and_a_second_signal_ends_that(again: signal.Signals, code: int) -> None:
    process, url = started("story", "--drain-timeout", "3600")
    try:
        assert process.stdout is not None
        port = int(url.rpartition(":")[2])
        bodies = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(2)]
        for body in bodies:
            body.sendall(request_bytes("/v1/completions", b"{", length=100))  # the rest never comes
        for _ in range(2):  # what is answered to the second one was read after those two were
            assert httpx.get(f"{url}/health").status_code == 200
        process.send_signal(again)
        line = process.stdout.readline()
        assert re.fullmatch(
            r"nanoinfer is ending: it waits for 2 requests, until \d\d:\d\d:\d\d at the latest; a second Ctrl-C or "
            r"SIGTERM ends them now\n",
            line,
        ), line
        process.send_signal(again)
        for body in bodies:
            with body:
                assert read_all(body).startswith(b"HTTP/1.1 503")
        assert process.wait(30) == code
    finally:
        process.kill()
        process.communicate()


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


def test_what_is_loaded_before_it_serves_is_not_looked_at_by_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []

    def serve(app: Any, sock: socket.socket) -> None:
        seen.append((gc.get_freeze_count(), len(gc.get_objects())))

    monkeypatch.setattr("nanoinfer.server.run.serve", serve)
    try:
        assert main(["serve", "--port", "0", "--max-total-tokens", "2048"]) == 0
    finally:
        gc.unfreeze()
    ((frozen, others),) = seen
    assert frozen > 100 * others


def test_a_port_that_is_taken_is_told_in_one_line() -> None:
    process, url = started()
    try:
        port = url.rpartition(":")[2]
        command = [sys.executable, "-m", "nanoinfer", "serve", "--port", port]
        second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 2
        assert f"--port {port}: cannot be listened at: Address already in use" in second.stderr
        assert second.stderr.count("\n") == 1
    finally:
        process.kill()
        process.communicate()
