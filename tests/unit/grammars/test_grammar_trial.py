"""Grammars are tried in a helper process, which may die of one, or never answer."""

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nanoinfer.errors import InvalidRequestError
from nanoinfer.grammars import compiler as compiler_module
from nanoinfer.grammars.compiler import Compiler, Grammar, Refusal
from nanoinfer.grammars.trial import PROGRAM, Trials
from nanoinfer.grammars.vocabulary import Vocabulary
from tests.helpers.engines import LetterTokenizer, finish, greedy, make_engine
from tests.helpers.waiting import HANG_S

LONG = Grammar("grammar", "start: r0\n" + "\n".join(f'r{i}: "k" r{i + 1}' for i in range(1600)) + '\nr1600: "z"')
SILENT = "import sys; sys.stdin.read()"
COUNTING = "import sys\nfor line in sys.stdin: print(line.count('k'), flush=True)"


def program(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code)


@pytest.fixture
def trials() -> Iterator[Trials]:
    trials = Trials()
    yield trials
    trials.close()


def compiler_with(trials: Trials) -> Compiler:
    return Compiler(Vocabulary(LetterTokenizer(), 128, [3]), trials)


def test_what_the_helper_survives_is_compiled_and_tried_only_once(trials: Trials) -> None:
    compiler = compiler_with(trials)
    for _ in range(2):
        assert compiler.compile(LONG).matcher(frozenset()).forced_tokens()[:3] == [ord("k")] * 3
        trials.program = ("no such program",)
        trials.close()


def test_one_helper_tries_all_grammars_of_one_thread(trials: Trials) -> None:
    compiler = compiler_with(trials)
    compiler.compile(Grammar("regex", "a"))
    trials.program = ("no such program",)
    compiler.compile(Grammar("regex", "b"))


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGXCPU", "SIGKILL"])
def test_a_helper_that_dies_refuses_the_grammar_and_no_other(name: str, trials: Trials) -> None:
    compiler = compiler_with(trials)
    trials.program = program(f"import os, signal; input(); os.kill(os.getpid(), signal.{name})")
    with pytest.raises(Refusal, match=name):
        compiler.compile(LONG)
    trials.program = PROGRAM
    compiler.compile(LONG)


@pytest.mark.parametrize("text", ["a" * 100_000, "b"], ids=["a pipe is full", "a pipe is not"])
def test_a_helper_that_is_gone_before_it_is_asked_refuses_the_grammar(text: str, trials: Trials) -> None:
    trials.program = program("raise SystemExit(3)")
    assert "status 3" in trials.failure(text, {}, 60.0)


def test_a_helper_that_never_answers_ends_the_request_at_its_deadline(
    monkeypatch: pytest.MonkeyPatch, trials: Trials
) -> None:
    engine = make_engine(eos=[3])
    monkeypatch.setattr(engine.grammars, "_compiler", compiler_with(trials))
    trials.program = program(SILENT)
    with pytest.raises(InvalidRequestError, match=r"^prompt: grammar: .*timeout_s=0.01 seconds"):
        engine.add_request("a", greedy(grammar=LONG.text), timeout_s=0.01)
    trials.program = PROGRAM
    engine.add_request("a", greedy(grammar=LONG.text))  # a deadline says nothing about the grammar
    request_id = engine.add_request("a", greedy(regex="bcd"))
    assert finish(engine)[request_id].text == "bcd"


def test_the_time_that_compiling_takes_counts_towards_the_requests_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    engine = make_engine(eos=[3], clock=lambda: now[0])
    prepare = engine.grammars.prepare

    def slow(*args: Any) -> Any:
        now[0] += 5.0
        return prepare(*args)

    monkeypatch.setattr(engine.grammars, "prepare", slow)
    request_id = engine.add_request("a", greedy(20, regex="b+"), timeout_s=7)
    engine.step()
    now[0] += 2.5  # 7.5 seconds after it came
    assert finish(engine)[request_id].finish_reason == "timeout"


def test_compiling_that_goes_on_too_long_ends_the_wait(monkeypatch: pytest.MonkeyPatch, trials: Trials) -> None:
    compiler, end, original = compiler_with(trials), threading.Event(), compiler_module._start

    def slow(*args: Any) -> None:
        assert end.wait(HANG_S)

    monkeypatch.setattr(compiler_module, "_start", slow)
    monkeypatch.setattr(trials, "failure", lambda *_: "")
    with pytest.raises(TimeoutError):
        compiler.compile(Grammar("regex", "abc"), 0.01)
    end.set()
    monkeypatch.setattr(compiler_module, "_start", original)
    compiler.compile(Grammar("regex", "abc"))
