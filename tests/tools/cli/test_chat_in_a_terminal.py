"""The chat as it behaves in a terminal: what Ctrl-C stops, and what an error ends."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from nanoinfer.cli import chat
from nanoinfer.cli.line_editor import CtrlC
from nanoinfer.cli.main import main
from nanoinfer.requests.stream_pieces import StreamPiece
from tests.helpers.terminal import CTRL_C, CTRL_D, UP, Terminal


def test_ctrl_c_does_nothing_but_in_the_blocks_it_stops() -> None:
    before = signal.getsignal(signal.SIGINT)
    with CtrlC() as ctrl_c:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), ctrl_c.stops():
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with ctrl_c.stops():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)  # once per block
    assert signal.getsignal(signal.SIGINT) is before


def test_a_process_that_ignores_ctrl_c_goes_on_doing_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with CtrlC() as ctrl_c, ctrl_c.stops():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


# --- a terminal whose keys the test presses at the moments that it wants ----------------------------------------------


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


class Keyboard:
    """A chat in a terminal with a model that answers as the last message asks it to. `lines`: what is typed; a function is
    called instead. `closed`: how many streams were closed."""

    def __init__(self) -> None:
        self.lines: Iterator[str | Callable[[], None]] = iter(())
        self.closed = 0

    def read_line(self) -> str:
        for line in self.lines:
            if isinstance(line, str):
                return line
            line()
        raise EOFError

    def stream(self, messages: list[dict[str, str]], params: object) -> Iterator[StreamPiece]:
        asked = messages[-1]["content"]
        if asked == "fail":
            raise RuntimeError("out of memory")
        try:
            if asked == "think":
                press_ctrl_c()
            for word in ("one ", "two ", "three "):
                yield StreamPiece(0, 0, word, [1], None, 3, 0)
            press_ctrl_c()
            yield StreamPiece(0, 0, "never shown", [1], None, 3, 0)
        finally:
            for _ in range(3):  # while the request is being given up
                press_ctrl_c()
            self.closed += 1


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Keyboard:
    keyboard = Keyboard()
    model = SimpleNamespace(
        config=SimpleNamespace(max_context_len=9999, max_total_tokens=9999),
        adapters={},
        chat_prompt=lambda messages: messages,
        stream=keyboard.stream,
        engine=SimpleNamespace(stats=lambda: {"closed": keyboard.closed}),
    )
    monkeypatch.setattr(chat, "load", lambda args, needs_text: model)
    monkeypatch.setattr(chat, "line_reader", lambda prompt: keyboard.read_line)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    return keyboard


def shown(keyboard: Keyboard, capsys: pytest.CaptureFixture[str], *lines: str | Callable[[], None]) -> list[str]:
    """What the chat prints when this is typed, a paragraph a line."""
    keyboard.lines = iter(lines)
    before = signal.getsignal(signal.SIGINT)
    assert main(["chat"]) == 0
    assert signal.getsignal(signal.SIGINT) is before
    out, err = capsys.readouterr()
    assert err == ""
    return out.split("/help lists the commands.\n")[1].splitlines()


def test_a_further_ctrl_c_does_not_keep_the_request_from_ending(
    keyboard: Keyboard, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shown(keyboard, capsys, "go on", "/stats", "go on", "/stats", "/reset")
    assert out[:2] == ["one two three ", "[3 prompt tokens, 0 cached, stopped]"]
    assert [line.split() for line in out if line.startswith("closed")] == [["closed", "1"], ["closed", "2"]]
    assert out.count("[3 prompt tokens, 0 cached, stopped]") == 2
    assert out[-1] == "[new conversation]"
    assert not any("never shown" in line for line in out)


def test_ctrl_c_before_the_first_token_keeps_neither_message(
    keyboard: Keyboard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "chat.json"
    out = shown(keyboard, capsys, "think", f"/save {saved}")
    assert "[stopped before the answer began; your message is not kept]" in out
    assert json.loads(saved.read_text()) == []
    assert keyboard.closed == 1


def test_ctrl_c_while_a_line_is_typed_clears_it(keyboard: Keyboard, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(keyboard, capsys, press_ctrl_c, press_ctrl_c, "/reset", "/quit", "/reset") == ["[new conversation]"]


def test_in_a_terminal_an_error_ends_the_turn_only(keyboard: Keyboard, capsys: pytest.CaptureFixture[str]) -> None:
    def no_text() -> None:
        "\ud800".encode()

    out = shown(keyboard, capsys, "fail", "/bye", no_text, "/help")
    assert out[0] == "[out of memory]"
    assert "/bye" in out[1]
    assert out[-1].startswith("/quit")


# --- a real terminal --------------------------------------------------------------------------------------------------

PROMPT = "\n>"

# The bundled model; after five tokens it waits, inside the engine's step, for Ctrl-C.
STUCK_CHAT = """
import sys, time
from dataclasses import replace
from nanoinfer import LLM
from nanoinfer.cli.main import main

def stuck_at(engine, length):
    def processor(ids, logits):
        while len(ids) == length and not engine.turns.later:  # until the call that is stopped waits to be ended
            time.sleep(0.01)
        return logits
    return processor

stream = LLM.stream
LLM.stream = lambda self, prompt, params: stream(
    self, prompt, replace(params, ignore_eos=True, logits_processors=[stuck_at(self.engine, len(prompt) + 5)]))
sys.exit(main(["chat", "--temperature", "0", "--max-new-tokens", "450"]))
"""


@pytest.mark.slow
def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on(tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    with Terminal(STUCK_CHAT) as terminal:
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
        terminal.type("/stats\r")
        assert terminal.expect(r"running +(\d+)")[1] == "0"
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
