"""Grammars that are too deep or too large to be compiled without a trial in a helper process."""

import ast
import importlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import Engine
from nanoinfer.errors import InvalidRequestError
from nanoinfer.grammars.compiler import Compiler
from nanoinfer.grammars.grammar import Grammar, Refusal
from nanoinfer.grammars.trial import PROGRAM, tried
from nanoinfer.grammars.vocabulary import Vocabulary
from tests.helpers.engines import LetterTokenizer, finish, greedy, make_engine
from tests.helpers.interrupts import Interrupted, raising
from tests.helpers.waiting import HANG_S

LONG = Grammar("grammar", "start: r0\n" + "\n".join(f'r{i}: "k" r{i + 1}' for i in range(1600)) + '\nr1600: "z"')


def program(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code)


class Helpers:
    """Makes trials with another program, and keeps their verdicts."""

    def __init__(self, *command: str):
        self.command, self.verdicts = command, list[Refusal | None]()

    def __call__(self, text: str, limits: dict[str, Any]) -> Refusal | None:
        self.verdicts.append(tried(text, limits, self.command))
        return self.verdicts[-1]


def compiler_with(trial: Any, **options: Any) -> Compiler:
    return Compiler(Vocabulary(LetterTokenizer(), 128, [3]), trial=trial, **options)


def test_what_the_helper_survives_is_compiled_and_tried_only_once() -> None:
    helpers = Helpers(*PROGRAM)
    compiler = compiler_with(helpers)
    for _ in range(2):
        assert compiler.compile(LONG).matcher(frozenset()).forced_tokens()[:3] == [ord("k")] * 3
    assert helpers.verdicts == [None]


def test_an_ordinary_grammar_needs_no_helper() -> None:
    compiler = compiler_with(Helpers("no such program"))
    fields = {f"field_{i}": {"type": "string", "format": "date-time"} for i in range(100)}
    items = {"type": "object", "properties": {**fields, "next": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}}}
    for kind, text in (
        ("json_schema", json.dumps({"$defs": {"A": items}, "type": "array", "items": {"$ref": "#/$defs/A"}})),
        ("regex", "(ab|[cd])?" * 100),
        ("choice", json.dumps([f"option {i}" for i in range(5000)])),
    ):
        compiler.compile(Grammar(kind, text))


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGXCPU"])
def test_a_helper_that_dies_of_the_grammar_has_given_the_verdict(name: str) -> None:
    helpers = Helpers(*program(f"import os, signal; os.kill(os.getpid(), signal.{name})"))
    compiler = compiler_with(helpers)
    for _ in range(2):
        with pytest.raises(Refusal, match=name):
            compiler.compile(LONG)
    assert len(helpers.verdicts) == 1


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (program("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), "SIGKILL"),
        (program("raise SystemExit(3)"), "status 3"),
        (("no such program",), "no such program"),
    ],
    ids=["killed", "failed", "missing"],
)
def test_a_helper_that_fails_by_itself_refuses_one_request_only(command: tuple[str, ...], why: str) -> None:
    helpers = Helpers(*command)
    compiler = compiler_with(helpers)
    with pytest.raises(Refusal, match=why):
        compiler.compile(LONG)
    helpers.command = PROGRAM
    compiler.compile(LONG)


class Silent:
    """A trial that does not end before it is told to."""

    def __init__(self) -> None:
        self.begun, self.end = threading.Event(), threading.Event()

    def __call__(self, text: str, limits: dict[str, Any]) -> None:
        self.begun.set()
        assert self.end.wait(HANG_S)


def engine_with(monkeypatch: pytest.MonkeyPatch, trial: Any, **options: Any) -> Engine:
    engine = make_engine(eos=[3])
    compiler = Compiler(engine.grammars._compiler.get(HANG_S).vocabulary, trial=trial, **options)
    monkeypatch.setattr(engine.grammars._compiler, "get", lambda seconds: compiler)
    return engine


def test_a_helper_that_never_answers_ends_the_request_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    silent, now = Silent(), [0.0]

    def clock() -> float:
        now[0] += silent.begun.is_set()  # a second, each look
        return now[0]

    engine = engine_with(monkeypatch, silent, clock=clock)
    for timeout_s, limit in ((7, "timeout_s=7"), (None, "30")):
        with pytest.raises(InvalidRequestError, match=f"^prompt: grammar: .*{limit} seconds"):
            engine.add_request("a", greedy(grammar=LONG.text), timeout_s=timeout_s)
    request_id = engine.add_request("a", greedy(regex="bcd"), timeout_s=7)
    assert finish(engine)[request_id].text == "bcd"
    silent.end.set()
    engine.add_request("a", greedy(grammar=LONG.text))  # a deadline says nothing about the grammar


def test_a_signal_handler_that_raises_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting(Silent):
        def __call__(self, text: str, limits: dict[str, Any]) -> None:
            os.kill(os.getpid(), signal.SIGUSR1)
            super().__call__(text, limits)

    trial = Interrupting()
    engine = engine_with(monkeypatch, trial)
    with raising(signal.SIGUSR1), pytest.raises(Interrupted):
        engine.add_request("a", greedy(grammar=LONG.text))
    trial.end.set()
    assert not engine.has_unfinished()


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


def test_the_helpers_program_imports_little_and_can_be_imported_without_running() -> None:
    """As graders do, who load all of the package at once."""
    importlib.import_module("nanoinfer.grammars.trial_program")
    tree = ast.parse(Path(PROGRAM[-1]).read_text(encoding="utf-8"))
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert found - set(sys.stdlib_module_names) == {"llguidance"}
