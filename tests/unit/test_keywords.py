"""Names that users of vLLM and SGLang type: they work where they mean the same, and else get an answer that names ours."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from nanoinfer import LLM, AsyncEngine, SamplingParams
from nanoinfer.config import EngineConfig
from nanoinfer.errors import UnknownArgumentError
from nanoinfer.requests.aliases import LLM_ALIASES, LLM_ELSEWHERE, SAMPLING_ALIASES, SAMPLING_ELSEWHERE
from nanoinfer.requests.keywords import Elsewhere, keywords
from tests.helpers.engines import greedy, make_engine

NOWHERE = "no/such/model/anywhere"  # what is refused is refused before a model is looked for


@keywords({"b_alias": "b", "also_b": "b"}, {"gone": Elsewhere("use b", (None, 1))})
def function(a: int, b: int = 0, length: int = 0) -> tuple[int, int, int]:
    return a, b, length


# --- the decorator ---------------------------------------------------------------------------------------------------


def test_an_alias_gives_its_argument_a_value() -> None:
    assert function(1, b_alias=5, length=2) == (1, 5, 2)  # type: ignore[call-arg]
    assert function(a=1, b=5) == (1, 5, 0)


@pytest.mark.parametrize(
    ("args", "given", "names"),
    [
        ((1,), {"b": 5, "b_alias": 5}, ["b_alias"]),
        ((1, 5), {"b_alias": 5}, ["b_alias"]),
        ((1,), {"b_alias": 5, "also_b": 5}, ["also_b"]),
    ],
    ids=["by keyword", "by position", "two aliases"],
)
def test_an_argument_under_two_names_is_refused(args: Any, given: Any, names: list[str]) -> None:
    with pytest.raises(UnknownArgumentError, match=rf"^function: {names[0]} is another name of b, which is given"):
        function(*args, **given)


def test_a_name_without_an_equal_gets_its_sentence_unless_it_asks_for_what_happens_anyway() -> None:
    assert function(1, gone=None) == function(1, gone=1) == (1, 0, 0)  # type: ignore[call-arg]
    for value in (2, True, 1.0):  # equal to 1, but not the same
        with pytest.raises(UnknownArgumentError, match=rf"^function: gone={value}: use b$"):
            function(1, gone=value)  # type: ignore[call-arg]


def test_a_misspelt_name_gets_the_nearest_and_any_other_all_of_them() -> None:
    with pytest.raises(UnknownArgumentError, match=r"^function: no argument 'lenght'; did you mean 'length'\?$"):
        function(1, lenght=5)  # type: ignore[call-arg]
    with pytest.raises(UnknownArgumentError, match=r"no argument 'b_alia'; did you mean 'b'\?$"):  # not the alias
        function(1, b_alia=5)  # type: ignore[call-arg]
    with pytest.raises(UnknownArgumentError, match=r"no argument 'zzz'; has a, b, length$"):
        function(1, zzz=5)  # type: ignore[call-arg]


def test_everything_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(UnknownArgumentError, match=r"gone=5: use b; no argument 'lenght'"):
        function(1, gone=5, lenght=5)  # type: ignore[call-arg]


def test_such_an_error_is_a_type_error_and_a_value_error() -> None:
    assert issubclass(UnknownArgumentError, TypeError)
    assert issubclass(UnknownArgumentError, ValueError)


# --- SamplingParams --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alias", SAMPLING_ALIASES)
def test_a_sampling_alias_sets_the_field_of_ours(alias: str) -> None:
    value: Any = True if alias == "no_stop_trim" else 7
    params = SamplingParams(**{alias: value})
    assert params == SamplingParams(**{SAMPLING_ALIASES[alias]: value})
    with pytest.raises(ValueError, match=alias):
        SamplingParams(**{alias: value, SAMPLING_ALIASES[alias]: value})


def test_an_alias_is_checked_as_the_field_it_names() -> None:
    with pytest.raises(ValueError, match=r"^max_new_tokens=0: "):
        SamplingParams(max_tokens=0)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "value", "ours"),
    [
        ("best_of", 3, "n="),
        ("bad_words", ["no"], "logit_bias"),
        ("max_length", 20, "max_new_tokens"),
        ("do_sample", False, "temperature=0"),
        ("temprature", 1.0, "'temperature'"),
    ],
)
def test_a_sampling_name_without_an_equal_is_answered_with_ours(name: str, value: Any, ours: str) -> None:
    with pytest.raises(UnknownArgumentError, match=rf"^SamplingParams: .*{name}.*{ours}"):
        SamplingParams(**{name: value})


def test_what_another_engine_has_by_default_changes_nothing() -> None:
    assert SamplingParams(best_of=None, bad_words=None, detokenize=True) == SamplingParams()  # type: ignore[call-arg]


def test_params_may_still_be_replaced() -> None:
    assert dataclasses.replace(SamplingParams(max_tokens=5), n=2).max_new_tokens == 5  # type: ignore[call-arg]


# --- LLM and EngineConfig --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alias", LLM_ALIASES)
def test_an_option_under_two_names_is_refused(alias: str) -> None:
    with pytest.raises(UnknownArgumentError, match=rf"^LLM: {alias} is another name of {LLM_ALIASES[alias]},"):
        LLM(**{"model": NOWHERE, alias: 8, LLM_ALIASES[alias]: 8})


@pytest.mark.parametrize(
    ("name", "value", "ours"),
    [
        ("gpu_memory_utilization", 0.9, "max_total_tokens"),
        ("trust_remote_code", True, "never run"),
        ("tensor_parallel_size", 2, "one process"),
        ("enable_prefix_caching", False, "disable_radix_cache"),
        ("page_sise", 4, "'page_size'"),
        ("temperature", 0, "SamplingParams"),
        ("max_tokens", 5, "SamplingParams.max_new_tokens"),
    ],
)
def test_an_option_that_llm_does_not_have_is_answered_with_ours(name: str, value: Any, ours: str) -> None:
    with pytest.raises(UnknownArgumentError, match=rf"^LLM: .*{name}.*{ours}"):
        LLM(NOWHERE, **{name: value})


def test_engine_config_names_the_nearest_field() -> None:
    with pytest.raises(UnknownArgumentError, match=r"^EngineConfig: no argument 'max_que'; did you mean 'max_queue'\?"):
        EngineConfig(1, 8, 8, max_que=5)  # type: ignore[call-arg]


def test_every_sentence_is_about_a_name_that_is_not_ours() -> None:
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    options = {field.name for field in dataclasses.fields(EngineConfig)}
    assert not fields & {*SAMPLING_ALIASES, *SAMPLING_ELSEWHERE}
    assert not options & {*LLM_ALIASES, *LLM_ELSEWHERE}
    assert set(SAMPLING_ALIASES.values()) <= fields


# --- requests --------------------------------------------------------------------------------------------------------


METHODS = {
    LLM: ("generate", "stream", "chat", "stream_chat"),
    AsyncEngine: ("add", "generate", "stream", "chat", "stream_chat"),
}


@pytest.mark.parametrize(
    "method", [getattr(cls, name) for cls, names in METHODS.items() for name in names], ids=lambda it: it.__qualname__
)
def test_a_call_that_is_given_what_it_does_not_have_says_what_to_use(method: Callable[..., Any]) -> None:
    for given, answer in (
        ({"max_tokens": 5}, r"max_tokens=5: belongs in SamplingParams: .*SamplingParams\(max_new_tokens="),
        ({"timeout": 5}, r"no argument 'timeout'; did you mean 'timeout_s'\?"),
        ({"params": None, "sampling_params": None}, "sampling_params is another name of params"),
        ({"tools": [{}]}, "tools=.*chat_template_kwargs"),
    ):
        with pytest.raises(UnknownArgumentError, match=answer):
            method(None, "a", **given)


def test_add_request_takes_sampling_params_too() -> None:
    engine = make_engine()
    engine.add_request([5], sampling_params=greedy(1))  # type: ignore[call-arg]
    assert engine.step()[0].token_ids == [6]
    with pytest.raises(UnknownArgumentError, match=r"^Engine\.add_request: no argument 'parms'; did you mean 'params'"):
        engine.add_request([5], parms=greedy(1))  # type: ignore[call-arg]
