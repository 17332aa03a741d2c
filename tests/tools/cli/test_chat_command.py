"""`python -m nanoinfer chat`: its commands on a conversation, and how it behaves in a terminal."""

import io
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.cli import main
from nanoinfer.commands.chat import COMMANDS, Chat
from nanoinfer.commands.ctrl_c import CtrlC
from tests.helpers.terminal import CTRL_C, CTRL_D, UP, Terminal

GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("story", max_running_requests=2)


@pytest.fixture
def chat(llm: LLM) -> Iterator[Chat]:
    chat = Chat(llm, GREEDY)
    yield chat
    assert not llm.engine.has_unfinished()
    llm.engine.check_integrity()


def chat_with(
    lines: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a chat that reads `lines`."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    code = main(["chat", "--temperature", "0", "--max-new-tokens", "8", *options])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# --- a line of input -------------------------------------------------------------------------------------------------


def test_turns_are_what_llm_chat_answers(chat: Chat, llm: LLM) -> None:
    for text in ("Hello", "What color is the sky?"):
        before = list(chat.messages)
        assert chat.handle(text)
        (answer,) = llm.chat([*before, {"role": "user", "content": text}], GREEDY)
        assert chat.messages == [
            *before,
            {"role": "user", "content": text},
            {"role": "assistant", "content": answer.text},
        ]


def test_help_names_every_command(
    chat: Chat, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert chat.handle("/help")
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 60
    assert [line.split()[0] for line in out.splitlines()] == [command.split()[0] for command in COMMANDS]


def test_reset_forgets_all_but_the_system_message(chat: Chat) -> None:
    for line in ("/system Be brief.", "Hello", "/reset"):
        assert chat.handle(line)
    assert chat.messages == [{"role": "system", "content": "Be brief."}]


def test_a_system_message_is_set_changed_and_shown(chat: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    chat.handle("/system")
    assert "there is no system message" in capsys.readouterr().out
    for line in ("Hello", "/system Be brief.", "/system  Be very  brief. "):
        assert chat.handle(line)
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant"]
    assert chat.messages[0]["content"] == "Be very  brief."
    capsys.readouterr()
    chat.handle("/system")
    assert capsys.readouterr().out == "Be very  brief.\n"


def test_a_system_message_that_the_template_refuses_changes_nothing(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}x"
    monkeypatch.setattr(chat.llm.tokenizer.hf_tokenizer, "chat_template", template)  # type: ignore[union-attr]
    chat.messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    before = list(chat.messages)
    with pytest.raises(ValueError, match="no system role"):
        chat.handle("/system Be brief.")
    assert chat.messages == before
    with pytest.raises(ValueError, match="no system role"):
        Chat(chat.llm, GREEDY, "Be brief.")


def test_stats_tell_the_conversation_and_the_engine(chat: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    chat.handle("Hello")
    capsys.readouterr()
    chat.handle("/stats")
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    (answer,) = chat.llm.chat([{"role": "user", "content": "Hello"}], GREEDY)
    assert rows["conversation"] == f"1 turn, {answer.prompt_tokens + len(answer.token_ids)} of 1024 tokens"
    assert int(rows["total_slots"]) == chat.llm.config.max_total_tokens
    assert {name for name, value in chat.llm.engine.stats().items() if value != ""} <= rows.keys()


def test_the_note_on_an_answer_and_stats_agree_on_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    chat = Chat(
        LLM("story", max_running_requests=1, max_context_len=60), SamplingParams(max_new_tokens=35, temperature=0)
    )
    for line in ("Hello", "/stats", "What now?", "/stats"):
        assert chat.handle(line)
    out = capsys.readouterr().out
    left = [int(n) for n in re.findall(r"\[\d+ prompt tokens, \d+ cached[^;\]]*; (\d+) of 60 tokens left\]\n", out)]
    used = [int(n) for n in re.findall(r"turns?, (\d+) of 60 tokens\n", out)]
    assert left[-1] == 60 - used[-1]
    assert len(left) == sum(60 - n < 35 for n in used), "only where an answer may have to be shorter"


def test_save_writes_what_llm_chat_reads(chat: Chat, llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    chat.handle("Grüß dich")
    chat.handle("/save ~/a chat.json")
    assert json.loads((tmp_path / "a chat.json").read_text(encoding="utf-8")) == chat.messages
    assert "Grüß" in (tmp_path / "a chat.json").read_text(encoding="utf-8")
    chat.handle("And then?")
    chat.handle("/save ~/a chat.json")
    assert json.loads((tmp_path / "a chat.json").read_text(encoding="utf-8")) == chat.messages


def test_save_overwrites_no_other_file(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="already exists"):
        chat.handle(f"/save {tmp_path / 'thesis.txt'}")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    with pytest.raises(ValueError, match="/save FILE"):
        chat.handle("/save")


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("~no-such-user/x", "there is no home directory ~no-such-user"),
        ("/no-such-folder/x", "there is no folder /no-such-folder"),
    ],
)
def test_save_where_there_is_no_folder_says_so(
    file: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat_with(f"/save {file}\n", monkeypatch, capsys) == (2, "", f"nanoinfer: error: {file}: {said}\n")


def test_quit_ends_and_a_blank_line_does_not(chat: Chat) -> None:
    assert chat.handle("   ")
    assert chat.messages == []
    assert not chat.handle("/quit")


def test_an_unknown_command_names_those_there_are(chat: Chat) -> None:
    with pytest.raises(ValueError, match="no command /exit") as caught:
        chat.handle("/exit now")
    assert all(command.split()[0] in str(caught.value) for command in COMMANDS)
    assert chat.messages == []


def test_a_space_in_front_makes_a_slash_text(chat: Chat) -> None:
    chat.handle(" /exit now")
    assert chat.messages[0] == {"role": "user", "content": "/exit now"}


@pytest.mark.parametrize(
    ("limits", "ways"),
    [
        ({"max_context_len": 60}, ["--max-context-len, at most 1024", "/reset", "/save FILE"]),
        ({"max_context_len": 60, "max_total_tokens": 40}, ["--max-total-tokens", "/reset", "/save FILE"]),
    ],
)
def test_a_full_conversation_says_what_can_be_done_and_is_kept(limits: dict[str, int], ways: list[str]) -> None:
    chat = Chat(LLM("story", max_running_requests=1, **limits), GREEDY)
    chat.handle("Hello")
    before = list(chat.messages)
    with pytest.raises(ValueError, match="this conversation is full") as caught:
        chat.handle("fox " * 60)
    assert all(way in str(caught.value) for way in ways)
    assert chat.messages == before
    assert len(before) == 2
    chat.handle("/reset")
    chat.handle("Hello")
    assert len(chat.messages) == 2


def test_at_the_models_limit_no_larger_context_is_proposed(llm: LLM, chat: Chat) -> None:
    chat.messages = [{"role": "user", "content": "fox " * 1100}, {"role": "assistant", "content": "Yes."}]
    with pytest.raises(ValueError, match="this conversation is full") as caught:
        chat.handle("Hello")
    assert "--max" not in str(caught.value)


# --- from a pipe -----------------------------------------------------------------------------------------------------


def test_piped_lines_are_answered_and_a_blank_one_drops_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = chat_with("Hello\n\nWhat now?\n", monkeypatch, capsys)
    assert (code, err) == (0, "")
    assert out.count(" prompt tokens, ") == 2
    assert "> " not in out


def test_piped_commands_work_and_a_wrong_one_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "chat.json"
    code, _, err = chat_with(f"Hello\n/save {saved}\n/quit\nmore\n", monkeypatch, capsys)
    assert (code, err) == (0, "")
    assert [message["role"] for message in json.loads(saved.read_text())] == ["user", "assistant"]
    code, _, err = chat_with("/nothing\n", monkeypatch, capsys)
    assert code == 2
    assert "/help" in err
    assert len(err.splitlines()) == 1


def test_a_model_that_cannot_chat_says_so_before_the_first_line(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = chat_with("", monkeypatch, capsys, "--model", str(checkpoint("llama")))
    assert (code, out) == (2, "")
    assert "tokenizer" in err


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


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


# --- in a terminal ---------------------------------------------------------------------------------------------------

PROMPT = "\n>"  # prompt_toolkit moves the cursor instead of writing the space behind it

# The bundled model, made slow enough to be interrupted: every token takes a while, inside the engine's step.
SLOW_CHAT = """
import sys, time
from dataclasses import replace
{before}
from nanoinfer import LLM
from nanoinfer.cli import main

def slowly(ids, logits):
    time.sleep(0.02)
    return logits

stream = LLM.stream
LLM.stream = lambda self, prompt, params: stream(
    self, prompt, replace(params, ignore_eos=True, logits_processors=[slowly]))
sys.exit(main(["chat", "--temperature", "0", "--max-new-tokens", "450"]))
"""
NO_PROMPT_TOOLKIT = "sys.modules['prompt_toolkit'] = None"


@pytest.mark.parametrize("before", ["", NO_PROMPT_TOOLKIT], ids=["prompt_toolkit", "readline"])
def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on(before: str, tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    with Terminal(SLOW_CHAT.format(before=before)) as terminal:
        terminal.expect("/help lists the commands.")
        terminal.expect(PROMPT)
        terminal.type("a line that is given up")
        terminal.expect("given up")
        time.sleep(0.1)  # the keys are read, and the program waits for more
        terminal.type(CTRL_C)  # clears the line, no more
        terminal.expect(PROMPT)
        terminal.type("Tell me a story\r")
        terminal.expect("story\r*\n")
        terminal.expect(r"\w+ \w+ \w+")  # the answer has begun
        terminal.type(CTRL_C * 3)
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


# A model that answers as it is asked to; `closed` counts the streams that were closed.
FAKE_CHAT = """
import sys, time
from types import SimpleNamespace
from nanoinfer.commands import chat
from nanoinfer.cli import main
from nanoinfer.requests.outputs import StreamPiece

closed = []

def stream(messages, params):
    if messages[-1]["content"] == "fail":
        raise RuntimeError("out of memory")
    try:
        if messages[-1]["content"] == "think":
            print("thinking", flush=True)
            time.sleep(60)
        while True:
            yield StreamPiece(0, 0, "word ", [1], None, 3, 0)
            time.sleep(0.005)
    finally:
        time.sleep(0.3)  # a further Ctrl-C arrives while the request is being given up
        closed.append(True)

chat.load = lambda args: SimpleNamespace(
    config=SimpleNamespace(max_context_len=9999, max_total_tokens=9999), tokenizer=True,
    chat_prompt=lambda messages: messages, stream=stream, engine=SimpleNamespace(stats=lambda: {"closed": len(closed)}))
sys.exit(main(["chat"]))
"""


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    """A chat with the model above, waiting for a line; tests leave it so."""
    with Terminal(FAKE_CHAT, columns=60) as terminal:
        terminal.expect(PROMPT)
        yield terminal
        terminal.type("/quit\r")
        assert terminal.exit_code() == 0
        assert "Traceback" not in terminal.shown


def enter(terminal: Terminal, line: str, expected: str) -> str:
    """Type a line and wait for what it answers, and for the next prompt; returns the first group of the answer."""
    terminal.type(line + "\r")
    found = terminal.expect(expected)[1]
    terminal.expect(PROMPT)
    return found


def test_a_second_ctrl_c_does_not_keep_the_request_from_ending(terminal: Terminal) -> None:
    for turn in (1, 2):
        terminal.type("go on\r")
        terminal.expect("word word word")
        for _ in range(4):
            terminal.type(CTRL_C)
            time.sleep(0.05)
        terminal.expect(r"\[3 prompt tokens, 0 cached, stopped\]")
        terminal.expect(PROMPT)
        assert enter(terminal, "/stats", r"closed +(\d+)") == str(turn)
    enter(terminal, "/reset", r"\[(new conversation)\]")


def test_ctrl_c_before_the_first_token_keeps_neither_message(terminal: Terminal, tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    terminal.type("think\r")
    terminal.expect("thinking")
    terminal.type(CTRL_C)
    terminal.expect("stopped before the answer began")
    terminal.expect(PROMPT)
    enter(terminal, f"/save {saved}", "(saved)")
    assert json.loads(saved.read_text()) == []


def test_in_a_terminal_an_error_ends_the_turn_only(terminal: Terminal) -> None:
    enter(terminal, "fail", r"\[(out of memory)\]")
    enter(terminal, "/bye", "(there is no command /bye)")
    enter(terminal, "/help", "/quit +(end)")
