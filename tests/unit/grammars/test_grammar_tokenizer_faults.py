"""A tokenizer that raises while it serves a grammar: one request ends by it, and nothing of it is kept."""

from collections.abc import Callable
from typing import Any

import pytest

from nanoinfer import Engine, FinishReason
from tests.helpers.engines import LetterTokenizer, assert_all_free, finish, greedy, make_engine
from tests.helpers.interrupts import Interrupted

FIELDS: list[dict[str, Any]] = [
    {"regex": "bcdef[xyz]"},
    {"choice": ["bcd", "bce"]},
    {"json_schema": {"const": "abc"}},
    {"grammar": 'start: "bcd"'},
]


class Failing(LetterTokenizer):
    """`encode` raises `error` once, in call number `at`."""

    def __init__(self, error: BaseException):
        super().__init__()
        self.error, self.at, self.calls = error, -1, 0

    def encode(self, text: str, *args: Any, **options: Any) -> list[int]:
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return super().encode(text, *args, **options)


def text_of(engine: Engine, **fields: Any) -> str:
    request_id = engine.add_request([97], greedy(20, **fields))
    return finish(engine)[request_id].text


def added(engine: Engine, fields: dict[str, Any]) -> tuple[int, BaseException | None]:
    """A request's id, or what was raised instead."""
    try:
        return engine.add_request([97], greedy(20, **fields)), None
    except BaseException as error:
        return -1, error


@pytest.mark.parametrize(
    "error", [OSError("no memory"), RuntimeError("busy"), KeyboardInterrupt(), Interrupted()], ids=repr
)
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_a_fault_while_a_grammar_is_prepared_ends_one_request_only(
    error: BaseException, fields: dict[str, Any]
) -> None:
    def engine_of(tokenizer: LetterTokenizer) -> Engine:
        return make_engine(eos=[3], tokenizer=tokenizer)

    whole = Failing(error)
    expected = text_of(engine_of(whole), **fields)
    for at in range(1, whole.calls + 1):
        tokenizer = Failing(error)
        tokenizer.at = at
        engine = engine_of(tokenizer)
        request_id, raised = added(engine, fields)
        if raised is None:
            output = finish(engine)[request_id]
            raised = output.error
            assert output.finish_reason == (FinishReason.STOP if raised is None else FinishReason.ABORT)
        assert raised is error
        for _ in range(2):
            assert text_of(engine, **fields) == expected
        assert_all_free(engine)


def test_a_fault_in_a_step_ends_one_request_and_the_others_go_on() -> None:
    tokenizer = Failing(KeyboardInterrupt())
    engine = make_engine(eos=[3], tokenizer=tokenizer)
    fields = {"regex": "[bx]cdef(gh|gi)klmn"}
    expected = text_of(engine, **fields)
    first = engine.add_request([97], greedy(20, **fields))
    second = engine.add_request([97], greedy(20, **fields))
    tokenizer.at = tokenizer.calls + 1
    last = finish(engine)
    assert isinstance(last[first].error, KeyboardInterrupt)
    assert (last[second].error, last[second].text) == (None, expected)
    assert text_of(engine, **fields) == expected
    assert_all_free(engine)


def test_a_fault_while_the_vocabulary_is_read_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(eos=[3])
    tokenizer: Any = engine.grammars._tokenizer
    decode: Callable[..., str] = tokenizer.decode

    def broken(*args: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(tokenizer, "decode", broken)
    with pytest.raises(KeyboardInterrupt):
        engine.add_request([97], greedy(regex="bcd"))
    monkeypatch.setattr(tokenizer, "decode", decode)
    assert text_of(engine, regex="bcd") == "bcd"
