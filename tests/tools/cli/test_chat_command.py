"""`python -m nanoinfer chat`: its commands on a conversation, and how it behaves in a terminal."""

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.cli.chat import COMMANDS, Chat
from nanoinfer.cli.main import main

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
    named = [line.split()[0] for line in out.splitlines() if line.startswith("/")]
    assert named == [command.split()[0] for command in COMMANDS]


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
