"""Grammars that cannot be followed or would take the compiler too long: refused on arrival, by name."""

import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nanoinfer import SamplingParams
from nanoinfer.errors import InvalidRequestError
from nanoinfer.sampling.grammar import compiler as compiler_module
from nanoinfer.sampling.grammar.compiler import Compiler, Grammar, Refusal
from nanoinfer.sampling.grammar.trial import PROGRAM, Trials
from nanoinfer.sampling.grammar.vocabulary import Vocabulary
from tests.helpers.engines import LetterTokenizer, finish, greedy, make_engine
from tests.helpers.grammar_engines import engine_with, one
from tests.helpers.waiting import HANG_S


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": "("}, r"^story: regex: "),
        ({"regex": "a" * 200_001}, r"^story: regex: .*200001.*200000"),
        ({"grammar": "start: other"}, r"^story: grammar: .*other"),
        ({"grammar": '{"type": "null"}'}, r"^story: grammar: "),
        ({"grammar": 'start: %lark { start: "a" }'}, r"^story: grammar: %lark"),
        ({"grammar": 'start: "%json {}"'}, r"^story: grammar: %json"),
        ({"grammar": 'start: %json {"minProperties": 3}'}, r"^story: grammar: %json: minProperties=3"),
        ({"grammar": 'start: %json {"x-guidance": {"key_separator": 1}}'}, "x-guidance.key_separator=1"),
        ({"grammar": "root ::= [^a&&b]"}, r"^story: grammar: .*&&"),
        ({"json_schema": "{"}, r"^story: json_schema: "),
        ({"json_schema": {"not": {}}}, r"^story: json_schema: .*\"not\""),
        pytest.param(  # it would take minutes, and gigabytes
            {"json_schema": {"multipleOf": 12345678}}, "^story: json_schema: .*SIGXCPU", marks=pytest.mark.slow
        ),
        ({"json_schema": '{"items":' * 10_000 + "{}" + "}" * 10_000}, "^story: json_schema: .*too deep"),
        ({"tool_calls": {"say": {"not": {}}}}, r"^story: tool_calls: .*\"not\""),
        ({"tool_calls": {"ok": {}, "say": {"x-guidance": {}}}}, r"^story: tool_calls: .*'say': x-guidance"),
    ],
)
def test_what_cannot_be_compiled_is_refused_on_arrival(fields: dict[str, Any], message: str) -> None:
    engine = engine_with()
    with pytest.raises(InvalidRequestError, match=message):
        engine.add_request("a", greedy(**fields), name="story")
    assert not engine.has_unfinished()
    assert one(engine, regex="bcd").text == "bcd"


def test_a_grammar_needs_a_tokenizer_that_can_be_read() -> None:
    engine = make_engine()
    engine.builder.tokenizer = engine.grammars._tokenizer = None
    with pytest.raises(InvalidRequestError, match=r"^prompt: regex: .*tokenizer"):
        engine.add_request([5], greedy(regex="a"))

    class Mumbles(LetterTokenizer):
        def decode(self, token_ids: Any) -> str:
            return "mm" * len(token_ids) + "h" * (len(token_ids) > 5)

    with pytest.raises(InvalidRequestError, match=r"^prompt: choice: .*tokenizer"):
        make_engine(tokenizer=Mumbles()).add_request([5], greedy(choice=["a"]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": "a", "choice": ["b"]}, "regex and choice"),
        ({"regex": 5}, "regex=5"),
        ({"choice": []}, "choice="),
        ({"choice": ["a", ""]}, "choice="),
        ({"json_schema": 5}, "json_schema=5"),
        ({"json_schema": {"a": object()}}, "json_schema"),
        ({"tool_calls": {}}, "tool_calls="),
        ({"tool_calls": {"say": {}}, "regex": "a", "choice": ["b"]}, "regex and choice and tool_calls"),
        ({"reasoning": "yes"}, "reasoning='yes'"),
        ({"parallel_tool_calls": False, "min_new_tokens": 2}, "min_new_tokens=2.*parallel_tool_calls"),
    ],
)
def test_parameters_of_a_wrong_kind_are_refused_when_they_are_made(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**fields)


def test_an_unknown_keyword_alone_is_ignored_as_the_standard_says() -> None:
    assert one(engine_with(), json_schema={"const": "abcdef", "maxLenght": 2}).text == '"abcdef"'


def test_a_schema_may_be_a_dict_or_its_text_and_later_changes_do_not_matter() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"b": {}, "a": {}}}
    params = SamplingParams(json_schema=schema, choice=None)
    assert params == SamplingParams(json_schema=json.dumps(schema))
    assert hash(params) == hash(SamplingParams(json_schema=json.dumps(schema)))
    schema["properties"].clear()
    assert params == SamplingParams(json_schema={"type": "object", "properties": {"b": {}, "a": {}}})
    assert SamplingParams(choice=["a", "b"]).choice == ("a", "b")


# --- the helper process in which a grammar is tried, which may die of it ----------------------------------------------

LONG = Grammar("grammar", "start: r0\n" + "\n".join(f'r{i}: "k" r{i + 1}' for i in range(1600)) + '\nr1600: "z"')
SILENT = "import sys; sys.stdin.read()"


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
