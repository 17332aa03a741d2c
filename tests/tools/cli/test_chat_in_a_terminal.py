"""The chat in a real terminal: what Ctrl-C stops, and what an error ends."""

import io
import json
import os
import sys
from pathlib import Path

import pexpect
import psutil
import pytest

from tests.helpers.waiting import HANG_S, until

PROMPT, UP = "\n> ", "\x1b[A"

# The bundled model, which takes its time for each token.
SLOW_CHAT = """
import sys, time
from dataclasses import replace
from nanoinfer import LLM
from nanoinfer.cli.main import main

def slow(ids, logits):
    time.sleep(0.02)
    return logits

stream = LLM.stream
LLM.stream = lambda self, prompt, params: stream(
    self, prompt, replace(params, ignore_eos=True, logits_processors=[slow]))
sys.exit(main(["chat", "--temperature", "0", "--max-new-tokens", "450"]))
"""


@pytest.mark.slow
def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on(tmp_path: Path) -> None:
    saved, shown = tmp_path / "chat.json", io.StringIO()
    plain = {**os.environ, "TERM": "dumb", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    terminal = pexpect.spawn(sys.executable, ["-c", SLOW_CHAT], env=plain, encoding="utf-8", timeout=HANG_S)
    terminal.logfile_read = shown

    def expect(pattern: str) -> list[str]:
        terminal.expect(pattern)
        return list(terminal.match.groups())

    try:
        expect("/help lists the commands.")
        expect(PROMPT)
        terminal.send("a line that is given up")
        expect("given up")
        until(lambda: psutil.Process(terminal.pid).status() == psutil.STATUS_SLEEPING, "waiting for keys")
        terminal.sendintr()  # clears the line, no more
        expect(PROMPT)
        terminal.send("Tell me a story\r")
        expect("story\r*\n")
        expect(r"\w+ \w+ \w+")  # the answer has begun
        terminal.sendintr()
        (first,) = expect(r"\[(\d+) prompt tokens, 0 cached, stopped\]")
        expect(PROMPT)
        terminal.send(UP + "\r")  # the line before, from the history
        expect("Tell me a story\r*\n")
        expect(r"\w+ \w+ \w+")
        terminal.sendintr()
        _, second = expect(r"\[(\d+) prompt tokens, (\d+) cached, stopped\]")
        assert int(second) >= int(first), "the first turn is in the cache"
        expect(PROMPT)
        terminal.send("/nothing\r")
        expect("there is no command /nothing")
        expect(PROMPT)
        running = "1"
        while running != "0":  # the engine's thread ends it, a moment later
            terminal.send("/stats\r")
            (running,) = expect(r"running +(\d+)")
        ended = [int(expect(rf"{name} +(\d+)")[0]) for name in ("aborted", "failed")]
        assert sum(ended) == 2, "between two passes, or in one"
        expect(PROMPT)
        terminal.send(f"/save {saved}\r")
        expect("saved")
        expect(PROMPT)
        terminal.sendeof()
        terminal.expect(pexpect.EOF)
        assert terminal.wait() == 0
    finally:
        terminal.close(force=True)
    messages = json.loads(saved.read_text())
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    assert messages[0]["content"] == messages[2]["content"] == "Tell me a story"
    assert all(message["content"] for message in messages)
    assert "given up" not in saved.read_text()
    assert "Traceback" not in shown.getvalue()
    assert "KeyboardInterrupt" not in shown.getvalue()
