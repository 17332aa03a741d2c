"""The chat in a real terminal: what Ctrl-C stops, and what an error ends."""

import json
from pathlib import Path

import pytest

from tests.helpers.terminal import CTRL_C, CTRL_D, UP, Terminal

PROMPT = "\n>"

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
    saved = tmp_path / "chat.json"
    with Terminal(SLOW_CHAT) as terminal:
        terminal.expect("/help lists the commands.")
        terminal.expect(PROMPT)
        terminal.type("a line that is given up")
        terminal.expect("given up")
        terminal.expect_waiting()
        terminal.type(CTRL_C)  # clears the line, no more
        terminal.expect(PROMPT)
        terminal.type("Tell me a story\r")
        terminal.expect("story\r*\n")
        terminal.expect(r"\w+ \w+ \w+")  # the answer has begun
        terminal.type(CTRL_C)
        first = terminal.expect(r"\[(\d+) prompt tokens, 0 cached, stopped\]")
        terminal.expect(PROMPT)
        terminal.type(UP + "\r")  # the line before, from the history
        terminal.expect("Tell me a story\r*\n")
        terminal.expect(r"\w+ \w+ \w+")
        terminal.type(CTRL_C)
        second = terminal.expect(r"\[(\d+) prompt tokens, (\d+) cached, stopped\]")
        assert int(second[2]) >= int(first[1]), "the first turn is in the cache"
        terminal.expect(PROMPT)
        terminal.type("/nothing\r")
        terminal.expect("there is no command /nothing")
        terminal.expect(PROMPT)
        running = "1"
        while running != "0":  # the engine's thread ends it, a moment later
            terminal.type("/stats\r")
            running = terminal.expect(r"running +(\d+)")[1]
        ended = [int(terminal.expect(rf"{name} +(\d+)")[1]) for name in ("aborted", "failed")]
        assert sum(ended) == 2, "between two passes, or in one"
        terminal.expect(PROMPT)
        terminal.type(f"/save {saved}\r")
        terminal.expect("saved")
        terminal.expect(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.exit_code() == 0
    messages = json.loads(saved.read_text())
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    assert messages[0]["content"] == messages[2]["content"] == "Tell me a story"
    assert all(message["content"] for message in messages)
    assert "given up" not in saved.read_text()
    assert "Traceback" not in terminal.shown
    assert "KeyboardInterrupt" not in terminal.shown
