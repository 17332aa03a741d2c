"""What README shows of the server works as it stands, against a server that is up."""

import json
import re
from pathlib import Path

import pytest

from tests.helpers.servers import Running

README = (Path(__file__).parent.parent.parent / "README.md").read_text()
ADDRESS = "http://127.0.0.1:8000"


def test_the_client_prints_a_text(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```py\n(.*?)```", README, re.DOTALL)
    assert ADDRESS in code
    exec(compile(code.replace(ADDRESS, server.url), "README's client", "exec"), {})
    assert len(capsys.readouterr().out) > 20


def test_the_body_that_curl_sends_is_answered(server: Running) -> None:
    (path, body) = re.findall(rf"curl {ADDRESS}(\S+) -H .* -d '(.*)'", README)[0]
    answer = server.post(path, json.loads(body))
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"]
