"""SamplingParams: defaults, what is refused (always by name), and what is kept."""

import dataclasses
import math
from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from nanoinfer import SamplingParams

NAN, INF = math.nan, math.inf
INTS = ("max_new_tokens", "min_new_tokens", "top_k", "seed", "logprobs", "prompt_top_logprobs", "n")
REALS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
BOOLS = ("ignore_eos", "prompt_logprobs", "skip_special_tokens", "include_stop_str_in_output")


def test_defaults_are_those_of_the_contract() -> None:
    assert dataclasses.asdict(SamplingParams()) == {
        "max_new_tokens": 128,
        "min_new_tokens": 0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "stop": (),
        "stop_token_ids": (),
        "ignore_eos": False,
        "seed": None,
        "logit_bias": None,
        "logprobs": None,
        "prompt_logprobs": False,
        "prompt_top_logprobs": 0,
        "n": 1,
        "logits_processors": (),
        "skip_special_tokens": True,
        "include_stop_str_in_output": False,
        "regex": None,
        "json_schema": None,
        "grammar": None,
        "choice": None,
        "tool_calls": None,
        "parallel_tool_calls": True,
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", -1),
        ("min_new_tokens", -1),
        ("temperature", -1e-9),
        ("temperature", 1e-31),
        ("temperature", 1e31),
        ("top_p", 0.0),
        ("top_p", -0.1),
        ("top_p", 1.0000001),
        ("top_k", -2),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("presence_penalty", 2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-10),
        ("repetition_penalty", 1e10),
        ("repetition_penalty", -1.0),
        ("seed", -1),
        ("seed", 2**64),
        ("logprobs", -1),
        ("prompt_top_logprobs", -1),
        ("n", 0),
        ("n", -3),
        ("stop", ""),
        ("stop", ("ok", "")),
        ("stop_token_ids", (3, -1)),
        ("logit_bias", {-1: 0.5}),
        ("temperature", 10**400),
        ("logit_bias", {1: 10**400}),
        ("logit_bias", {1: 1.1e20}),
        ("logit_bias", {1: -1.1e20}),
    ],
)
def test_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{field}\b"):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("field", [*INTS, *REALS])
def test_nan_and_infinity_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{field}="):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("value", [NAN, INF, "1", None, True])
def test_a_bias_that_is_no_number_is_refused_by_token(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^logit_bias\[7\]="):
        SamplingParams(logit_bias={3: 0.5, 7: value})


@pytest.mark.parametrize("value", ["1", 1.0, 2.5, True, False, np.True_, [1], 1j])
@pytest.mark.parametrize("field", INTS)
def test_what_is_not_an_integer_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{field}="):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("field", [name for name in INTS if name not in ("seed", "logprobs", "max_new_tokens")])
def test_none_is_refused_where_it_means_nothing(field: str) -> None:
    with pytest.raises(ValueError, match=rf"^{field}=None"):
        SamplingParams(**{field: None})


@pytest.mark.parametrize("value", ["0.5", None, True, False, [0.5], 1j, np.array([0.5])])
@pytest.mark.parametrize("field", REALS)
def test_what_is_not_a_number_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{field}="):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("value", [0, 1, "yes", None])
@pytest.mark.parametrize("field", BOOLS)
def test_what_is_not_a_bool_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{field}="):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("value", [5, b"end", ["a", 5], {"a"}, [None]])
def test_a_stop_that_is_no_sequence_of_strings_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^stop="):
        SamplingParams(stop=value)


@pytest.mark.parametrize("value", [5, "12", [1.0], [True], ["2"], {3}])
def test_stop_token_ids_that_are_no_sequence_of_ids_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^stop_token_ids="):
        SamplingParams(stop_token_ids=value)


@pytest.mark.parametrize("value", [[(1, 0.5)], 5, "1", {1.0: 0.5}, {"1": 0.5}, {True: 0.5}])
def test_a_logit_bias_that_is_no_map_of_ids_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^logit_bias="):
        SamplingParams(logit_bias=value)


@pytest.mark.parametrize("field", ["stop", "stop_token_ids", "logits_processors"])
def test_none_means_that_there_are_none(field: str) -> None:
    assert getattr(SamplingParams(**{field: None}), field) == ()


def test_more_tokens_asked_for_than_allowed_contradicts() -> None:
    with pytest.raises(ValueError, match=r"min_new_tokens=5: .*max_new_tokens=4"):
        SamplingParams(max_new_tokens=4, min_new_tokens=5)
    assert SamplingParams(max_new_tokens=4, min_new_tokens=4).min_new_tokens == 4


def test_several_greedy_completions_contradict() -> None:
    with pytest.raises(ValueError, match=r"n=2: .*temperature=0"):
        SamplingParams(n=2, temperature=0)
    assert SamplingParams(n=2, temperature=0.1).n == 2


@pytest.mark.parametrize(
    "limits",
    [
        {"temperature": 0, "top_p": 1, "top_k": 1, "min_p": 1, "repetition_penalty": 1e-9},
        {"frequency_penalty": -2, "presence_penalty": 2, "seed": 2**64 - 1, "logprobs": 0},
        {"temperature": 1e30, "top_p": 1e-9, "top_k": 10**9, "seed": 0, "max_new_tokens": 1},
        {"logit_bias": {0: -INF, 5: 100}, "stop": ["a"], "stop_token_ids": [0]},
    ],
)
def test_values_at_the_limits_are_kept(limits: Mapping[str, Any]) -> None:
    params = SamplingParams(**limits)
    for field, value in limits.items():
        assert getattr(params, field) == (tuple(value) if isinstance(value, list) else value), field


def test_only_temperature_zero_is_greedy() -> None:
    assert SamplingParams(temperature=0.0).greedy
    assert SamplingParams(temperature=-0.0).greedy
    assert not SamplingParams(temperature=1e-30).greedy


def test_params_are_frozen() -> None:
    params = SamplingParams()
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = 0.5  # type: ignore[misc]


def test_one_stop_string_is_one_stop_not_its_characters() -> None:
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["a", "END"]).stop == ("a", "END")


def test_later_changes_to_what_was_given_do_not_reach_the_params() -> None:
    stop, tokens, bias = ["a"], [1], {1: 0.5}
    params = SamplingParams(stop=stop, stop_token_ids=tokens, logit_bias=bias)
    stop.append("b")
    tokens.append(2)
    bias[1] = math.nan
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (("a",), (1,), {1: 0.5})


def test_any_mapping_is_a_logit_bias() -> None:
    assert SamplingParams(logit_bias=MappingProxyType({np.int64(4): np.float32(0.5)})).logit_bias == {4: 0.5}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("field", INTS)
def test_numpy_integers_become_plain_ones(field: str, dtype: type[np.integer]) -> None:
    """A kept `uint8` would overflow as soon as something is added to it."""
    value = getattr(SamplingParams(**{"prompt_logprobs": True, field: dtype(100)}), field)
    assert type(value) is int
    assert value == 100


@pytest.mark.parametrize("value", [np.float16(0.5), np.float32(0.5), np.float64(0.5), Fraction(1, 2)])
@pytest.mark.parametrize("field", REALS)
def test_other_real_numbers_become_plain_ones(field: str, value: Any) -> None:
    kept = getattr(SamplingParams(**{field: value}), field)
    assert type(kept) is float
    assert kept == 0.5


def test_numpy_token_ids_become_plain_ones() -> None:
    assert [type(token) for token in SamplingParams(stop_token_ids=[np.int32(3)]).stop_token_ids] == [int]


@pytest.mark.parametrize(
    ("field", "value", "hint"),
    [
        ("prompt_logprobs", 1, "must be True or False; use True"),
        ("prompt_top_logprobs", 1, "needs prompt_logprobs=True"),
    ],
)
def test_a_value_that_vllm_takes_is_answered_with_ours(field: str, value: object, hint: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}={value}: {hint}"):
        SamplingParams(**{field: value})  # type: ignore[arg-type]
