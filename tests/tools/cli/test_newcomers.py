"""What somebody meets in the first hour: the first command, the chat's adapters and its notes, the sessions' demo."""

import re
import signal
import threading
from pathlib import Path

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.cli.chat import Chat
from nanoinfer.cli.main import main
from tests.helpers.interrupts import raising
from tests.helpers.waiting import until

ROOT = Path(__file__).parent.parent.parent.parent
GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("story", max_running_requests=2, max_total_tokens=256)


def test_the_first_command_installs_the_package() -> None:
    first, *_ = re.findall(r"^python3 -m venv .*$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert "pip install -r requirements.txt -e . && " in first


def test_a_chat_finds_bundled_adapters(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    chat = Chat(llm, GREEDY)
    chat.handle("/adapter")
    assert "base *, rhymes, sea" in capsys.readouterr().out
    chat.handle("/adapter sea")
    assert "answers by sea from now on" in capsys.readouterr().out
    assert [*llm.adapters] == ["sea"]
    chat.handle("/adapter")
    assert "base, sea *, rhymes" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no such adapter"):
        chat.handle("/adapter nope")
    assert "`/adapter NAME`" in (ROOT / "nanoinfer" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("pool", "limit", "said"),
    [(256, 6, "max_new_tokens"), (40, 64, "the end of the pool"), (256, 256, "the end of the context")],
)
def test_a_cut_answer_says_which_limit_cut_it(
    pool: int, limit: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = LLM("story", max_running_requests=1, max_total_tokens=pool, max_context_len=64)
    chat = Chat(llm, SamplingParams(max_new_tokens=limit, temperature=0.0, ignore_eos=True))
    chat.handle("Hello")
    assert f"0 cached, cut off at {said}" in capsys.readouterr().out


def test_an_answer_that_ctrl_c_stops_in_a_pass_counts_as_aborted(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    before = llm.engine.stats()
    forward_batch = llm.engine.model_runner.forward_batch

    def interrupted(*args: object) -> object:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]
        until(lambda: llm.engine.turns.later, "the end of the call")
        return forward_batch(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(llm.engine.model_runner, "forward_batch", interrupted)
    with raising(signal.SIGINT, KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        llm.generate("Once", GREEDY)
    after = llm.engine.stats()
    assert (after.aborted, after.failed) == (before.aborted + 1, before.failed)


@pytest.mark.parametrize("text", ['{"type": "object",', "[]", "", '{"type": "nope"}', '"\\ud800"'])
def test_a_malformed_schema_file_is_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "schema.json"
    file.write_text(text)
    assert main(["generate", "x", "--json-schema", str(file)]) == 2
    assert f"--json-schema {file}: " in capsys.readouterr().err


def test_the_sessions_demo_tells_stories(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "sessions"]) == 0
    texts = re.split(r"### request \d\n", capsys.readouterr().out)[1:]
    assert len(texts) == 3
    for text in texts:
        words = re.findall(r"[A-Za-z]+", text)
        assert len(words) > 25
        assert len(set(words)) > len(words) / 2, "it repeats itself"
