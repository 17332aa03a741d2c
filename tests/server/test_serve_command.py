"""`python -m nanoinfer serve` in a process of its own."""

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

from tests.helpers.servers import read_all, request_bytes
from tests.helpers.waiting import HANG_S, Worker

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent.parent


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


def test_ctrl_c_ends_it_too() -> None:
    process, url = started("--model", "story")
    try:
        assert get(f"{url}/v1/models").json()["data"][0]["id"] == "story"
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 130
        out, log = process.communicate()
        assert "Traceback" not in log
        assert "waits" not in out, "there is nothing to wait for"
    finally:
        process.kill()


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
        assert re.fullmatch(
            r"nanoinfer is ending: it waits for 2 requests, until \d\d:\d\d:\d\d at the latest; a second Ctrl-C or "
            r"SIGTERM ends them now\n",
            line,
        ), line
        process.send_signal(signal.SIGINT)
        for body in bodies:
            with body:
                assert read_all(body).startswith(b"HTTP/1.1 503")
        assert process.wait(HANG_S) == 130
    finally:
        process.kill()
        process.communicate()
