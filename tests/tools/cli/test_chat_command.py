"""`python -m nanoinfer chat`: its commands on a conversation, and how it behaves in a terminal."""

import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.cli.chat import Chat
from tests.helpers.command_line import run

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


def test_reset_forgets_all_but_the_system_message(chat: Chat) -> None:
    for line in ("/system Be brief.", "Hello", "/reset"):
        assert chat.handle(line)
    assert chat.messages == [{"role": "system", "content": "Be brief."}]


def test_stats_tell_the_conversation_and_the_engine(chat: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    chat.handle("Hello")
    capsys.readouterr()
    chat.handle("/stats")
    rows = dict(re.findall(r"^(\w+) +(.*)$", capsys.readouterr().out, re.MULTILINE))
    (answer,) = chat.llm.chat([{"role": "user", "content": "Hello"}], GREEDY)
    assert f" {answer.prompt_tokens + len(answer.token_ids)} of 1024 tokens" in rows["conversation"]
    assert int(rows["total_slots"]) == chat.llm.config.max_total_tokens
    assert {name for name, value in chat.llm.engine.stats().items() if value != ""} <= rows.keys()


def test_save_writes_what_llm_chat_reads(chat: Chat, llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    chat.handle("Grüß dich")
    chat.handle("/save ~/a chat.json")
    assert json.loads((tmp_path / "a chat.json").read_text(encoding="utf-8")) == chat.messages
    assert "Grüß" in (tmp_path / "a chat.json").read_text(encoding="utf-8")


def test_save_overwrites_no_other_file(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="already exists"):
        chat.handle(f"/save {tmp_path / 'thesis.txt'}")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    with pytest.raises(ValueError, match="/save FILE"):
        chat.handle("/save")


@pytest.mark.parametrize("limits", [{"max_context_len": 60}, {"max_context_len": 60, "max_total_tokens": 40}])
def test_a_full_conversation_is_kept_until_it_is_reset(limits: dict[str, int]) -> None:
    chat = Chat(LLM("story", max_running_requests=1, **limits), GREEDY)
    chat.handle("Hello")
    before = list(chat.messages)
    with pytest.raises(ValueError, match="/reset"):
        chat.handle("fox " * 60)
    assert chat.messages == before
    assert len(before) == 2
    chat.handle("/reset")
    chat.handle("Hello")
    assert len(chat.messages) == 2


def test_bundled_adapters_are_loaded_when_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    chat = Chat(LLM("story", max_running_requests=1), GREEDY)
    chat.handle("/adapter")
    assert "base *, rhymes, sea" in capsys.readouterr().out
    chat.handle("/adapter sea")
    assert [*chat.llm.adapters] == ["sea"]
    chat.handle("Hello")
    (answer,) = chat.llm.chat([{"role": "user", "content": "Hello"}], GREEDY, adapter="sea")
    assert chat.messages[-1]["content"] == answer.text
    with pytest.raises(ValueError, match="nope"):
        chat.handle("/adapter nope")
    chat.handle("/adapter base")
    assert chat.adapter == "base"


# --- from a pipe -----------------------------------------------------------------------------------------------------


def test_piped_lines_and_commands_work_and_a_wrong_one_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "chat.json"
    argv = ["chat", "--temperature", "0", "--max-new-tokens", "8"]
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"Hello\n\n /what now?\n/save {saved}\n/quit\nmore\n"))
    code, out, err = run(argv, capsys)
    assert (code, err) == (0, "")
    assert "> " not in out
    messages = json.loads(saved.read_text())
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    assert messages[2]["content"] == "/what now?", "a space in front makes a slash text"
    for wrong in ("/nothing", "/adapter sky", "/save /no-such-folder/x"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{wrong}\n"))
        code, _, err = run(argv, capsys)
        assert (code, len(err.splitlines())) == (2, 1)
        assert wrong.split()[-1] in err or "sky" in err
