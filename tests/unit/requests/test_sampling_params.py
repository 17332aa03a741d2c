"""SamplingParams: what is refused (always by name), and what is kept."""

import math
import re
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
NO_INTS = ("1", 1.0, 2.5, True, False, np.True_, [1], 1j, NAN, INF, -INF)
NO_REALS = ("0.5", None, True, False, [0.5], 1j, np.array([0.5]), NAN, INF, -INF)
REFUSED: dict[str, tuple[Any, ...]] = {
    "max_new_tokens": (0, -1),
    "min_new_tokens": (-1, None),
    "temperature": (-1e-9, 1e-31, 1e31, 10**400),
    "top_p": (0.0, -0.1, 1.0000001),
    "top_k": (-2, None),
    "min_p": (-0.1, 1.1),
    "frequency_penalty": (-2.1, 2.1),
    "presence_penalty": (-2.1, 2.1),
    "repetition_penalty": (0.0, 1e-10, 1e10, -1.0),
    "seed": (-1, 2**64),
    "logprobs": (-1,),
    "prompt_top_logprobs": (-1, 1, None),
    "n": (0, -3, None),
    "stop": ("", ("ok", ""), 5, b"end", ["a", 5], {"a"}, [None]),
    "stop_token_ids": ((3, -1), 5, "12", [1.0], [True], ["2"], {3}),
    "logit_bias": ({-1: 0.5}, [(1, 0.5)], 5, "1", {1.0: 0.5}, {"1": 0.5}, {True: 0.5}),
    "logit_bias[7]": tuple({3: 0.5, 7: value} for value in (NAN, INF, "1", None, True, 10**400, 1.1e20, -1.1e20)),
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field, values in REFUSED.items() for value in values),
        *((field, value) for field in INTS for value in NO_INTS),
        *((field, value) for field in REALS for value in NO_REALS),
        *((field, value) for field in BOOLS for value in (0, 1, "yes", None)),
    ],
)
def test_a_value_out_of_range_or_of_a_wrong_type_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(field)}="):
        SamplingParams(**{field.partition("[")[0]: value})


@pytest.mark.parametrize("field", ["stop", "stop_token_ids", "logits_processors"])
def test_none_means_that_there_are_none(field: str) -> None:
    assert getattr(SamplingParams(**{field: None}), field) == ()


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"min_new_tokens=5: .*max_new_tokens=4"):
        SamplingParams(max_new_tokens=4, min_new_tokens=5)
    assert SamplingParams(max_new_tokens=4, min_new_tokens=4).min_new_tokens == 4
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


def test_a_top_k_of_0_is_off() -> None:
    assert SamplingParams(top_k=0) == SamplingParams()
    assert SamplingParams(top_k=0).draws_from_all


def test_only_temperature_zero_is_greedy() -> None:
    assert SamplingParams(temperature=0.0).greedy
    assert SamplingParams(temperature=-0.0).greedy
    assert not SamplingParams(temperature=1e-30).greedy


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
    assert (type(value), value) == (int, 100)


@pytest.mark.parametrize("value", [np.float16(0.5), np.float32(0.5), np.float64(0.5), Fraction(1, 2)])
@pytest.mark.parametrize("field", REALS)
def test_other_real_numbers_become_plain_ones(field: str, value: Any) -> None:
    kept = getattr(SamplingParams(**{field: value}), field)
    assert (type(kept), kept) == (float, 0.5)


def test_numpy_token_ids_become_plain_ones() -> None:
    assert [type(token) for token in SamplingParams(stop_token_ids=[np.int32(3)]).stop_token_ids] == [int]
