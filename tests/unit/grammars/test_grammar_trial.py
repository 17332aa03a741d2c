"""Grammars that are too deep or too large to be compiled without a trial in a helper process."""

import ast
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import Engine
from nanoinfer.errors import InvalidRequestError
from nanoinfer.grammars import trial as trial_module
from nanoinfer.grammars.compiler import LIMITS, Compiler
from nanoinfer.grammars.grammar import Grammar
from nanoinfer.grammars.refusal import Refusal
from nanoinfer.grammars.trial import PROGRAM, Trial
from nanoinfer.grammars.vocabulary import Vocabulary
from tests.helpers.engines import LetterTokenizer, finish, greedy, make_engine
from tests.helpers.interrupts import Interrupted, raising
from tests.helpers.waiting import HANG_S, until

LONG = Grammar("grammar", "start: r0\n" + "\n".join(f'r{i}: "k" r{i + 1}' for i in range(1600)) + '\nr1600: "z"')
ENDLESS = json.dumps({"type": "string", "allOf": [{"pattern": f"[a-z]{i}"} for i in range(60)]})


def program(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code)


SILENT = program("import sys; sys.stdin.read()")  # until nobody holds its stdin any more


class Helpers:
    """Makes trials with another program, and keeps them."""

    def __init__(self, *command: str):
        self.command, self.made = command, list[Trial]()

    def __call__(self, text: str, limits: dict[str, Any]) -> Trial:
        self.made.append(Trial(text, limits, self.command))
        return self.made[-1]

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        return [trial._process for trial in self.made if trial._process is not None]


def compiler_with(helpers: Helpers, **options: Any) -> Compiler:
    return Compiler(Vocabulary(LetterTokenizer(), 128, [3]), trial=helpers, **options)


def test_what_the_helper_survives_is_compiled_and_tried_only_once() -> None:
    helpers = Helpers(*PROGRAM)
    compiler = compiler_with(helpers)
    for _ in range(2):
        assert compiler.compile(LONG).matcher(frozenset()).forced_tokens()[:3] == [ord("k")] * 3
    assert [trial.verdict for trial in helpers.made] == [None]


def test_an_ordinary_grammar_needs_no_helper() -> None:
    helpers = Helpers("no such program")
    compiler = compiler_with(helpers)
    fields = {f"field_{i}": {"type": "string", "format": "date-time"} for i in range(100)}
    items = {"type": "object", "properties": {**fields, "next": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}}}
    for kind, text in (
        ("json_schema", json.dumps({"$defs": {"A": items}, "type": "array", "items": {"$ref": "#/$defs/A"}})),
        ("grammar", "start: r0\n" + "\n".join(f'r{i}: "k" r{i + 1}' for i in range(400)) + '\nr400: "z"'),
        ("regex", "(ab|[cd])?" * 100),
        ("choice", json.dumps([f"option {i}" for i in range(5000)])),
    ):
        compiler.compile(Grammar(kind, text))
    assert not helpers.made


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGXCPU"])
def test_a_helper_that_dies_of_the_grammar_has_given_the_verdict(name: str) -> None:
    helpers = Helpers(*program(f"import os, signal; os.kill(os.getpid(), signal.{name})"))
    compiler = compiler_with(helpers)
    for _ in range(2):
        with pytest.raises(Refusal, match=rf"^is too deep or too large: .* \({name}\)$"):
            compiler.compile(LONG)
    assert len(helpers.made) == 1


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (program("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), "was ended by SIGKILL"),
        (program("raise SystemExit(3)"), "failed with status 3"),
        (("no such program",), "cannot start: .*no such program"),
    ],
    ids=["killed", "failed", "missing"],
)
def test_a_helper_that_fails_by_itself_refuses_one_request_only(command: tuple[str, ...], why: str) -> None:
    helpers = Helpers(*command)
    compiler = compiler_with(helpers)
    with pytest.raises(Refusal, match=f"must be tried in a process of its own, which {why}"):
        compiler.compile(LONG)
    helpers.command = PROGRAM
    compiler.compile(LONG)


def engine_with(monkeypatch: pytest.MonkeyPatch, helpers: Helpers, **options: Any) -> Engine:
    engine = make_engine(eos=[3])
    vocabulary = engine.grammars._compiler.get(HANG_S).vocabulary
    compiler = Compiler(vocabulary, trial=helpers, **options)
    monkeypatch.setattr(engine.grammars._compiler, "get", lambda seconds: compiler)
    return engine


def until_nobody_compiles() -> None:
    until(
        lambda: not any(thread.name == "nanoinfer-grammar" for thread in threading.enumerate()),
        "the end of the thread that waits for a helper",
    )


def test_a_helper_that_never_answers_is_killed_at_the_requests_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    helpers, now = Helpers(*SILENT), [0.0]

    def clock() -> float:
        now[0] += any(process.poll() is None for process in helpers.processes)  # a second, each look
        return now[0]

    engine = engine_with(monkeypatch, helpers, clock=clock)
    with pytest.raises(
        InvalidRequestError, match=r"^prompt: grammar: compiling it takes longer than timeout_s=7 seconds$"
    ):
        engine.add_request("a", greedy(grammar=LONG.text), timeout_s=7)
    until_nobody_compiles()  # or the next request would wait for it, too
    with pytest.raises(InvalidRequestError, match=r"^prompt: grammar: compiling it takes longer than 30 seconds$"):
        engine.add_request("a", greedy(grammar=LONG.text))
    assert len(helpers.made) == 2  # a deadline says nothing about the grammar
    for process in helpers.processes:
        assert process.wait(HANG_S) == -signal.SIGKILL
    request_id = engine.add_request("a", greedy(regex="bcd"), timeout_s=7)
    assert finish(engine)[request_id].text == "bcd"


def test_a_signal_handler_that_raises_ends_the_wait_and_the_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting(Helpers):
        def __call__(self, text: str, limits: dict[str, Any]) -> Trial:
            os.kill(os.getpid(), signal.SIGUSR1)
            return super().__call__(text, limits)

    helpers = Interrupting(*SILENT)
    engine = engine_with(monkeypatch, helpers)
    with raising(signal.SIGUSR1), pytest.raises(Interrupted):
        engine.add_request("a", greedy(grammar=LONG.text))
    until_nobody_compiles()
    for process in helpers.processes:
        assert process.wait(HANG_S) == -signal.SIGKILL
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


def test_the_helper_ends_with_the_process_that_waits_for_it() -> None:
    text = json.dumps({"grammars": [{"json_schema": json.loads(ENDLESS)}]})
    trial = Trial(text, LIMITS)
    with subprocess.Popen(PROGRAM, stdin=subprocess.PIPE) as helper:
        assert helper.stdin is not None
        helper.stdin.write(json.dumps(trial._job | {"cpu_s": 10**6}).encode() + b"\n")
        helper.stdin.close()  # as the end of this process would
        assert helper.wait(HANG_S) == 1


def test_the_helper_imports_nothing_that_takes_long() -> None:
    tree = ast.parse(Path(PROGRAM[-1]).read_text(encoding="utf-8"))
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert found - set(sys.stdlib_module_names) == {"llguidance"}


def test_the_helper_has_half_the_stack_and_little_time_and_memory() -> None:
    job = Trial("text", LIMITS)._job
    assert job["stack_bytes"] == trial_module.STACK_BYTES // 2
    assert job["limits"] == LIMITS
    assert (job["cpu_s"], job["memory_bytes"]) == (trial_module.CPU_S, trial_module.MEMORY_BYTES)


def test_the_helpers_program_can_be_imported_without_running() -> None:
    """As graders do, who load all of the package at once."""
    importlib.import_module("nanoinfer.grammars.trial_program")
