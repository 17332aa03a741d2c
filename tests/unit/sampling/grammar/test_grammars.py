"""Requests with grammars through an engine: how they end, and what other parameters do to them."""

import json
import math
import re
from typing import Any

import pytest

from nanoinfer import Engine, FinishReason, RequestOutput, SamplingParams
from nanoinfer.errors import InvalidRequestError, NoTokenAllowedError
from tests.helpers.engines import assert_all_free, finish, greedy, make_engine, step
from tests.helpers.grammar_engines import EOS, engine_with, one

# --- how a request ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"regex": "bcd"}, "bcd"),
        ({"regex": "[x-z]{3}"}, "xyz"),
        ({"choice": ["yes", "no"]}, "no"),
        ({"grammar": 'start: "b" other\nother: "cd" | "x"'}, "bcd"),
        ({"json_schema": {"const": {"a": [1, "b", None]}}}, '{"a":[1,"b",null]}'),
        ({"json_schema": json.dumps({"enum": [True]})}, "true"),
        ({"json_schema": "true", "logit_bias": {ord("t"): 50.0}}, "true"),
    ],
)
def test_a_complete_output_ends_the_request(fields: dict[str, Any], text: str) -> None:
    output = one(engine_with(), **fields)
    assert (output.text, output.finish_reason, output.stop_reason) == (text, FinishReason.STOP, None)
    assert output.token_ids == list(text.encode())  # no end token was needed


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "[^\\s\\S]"},
        {"json_schema": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}},
        {"grammar": "start: r0\n" + "\n".join(f"r{i}: r{i + 1} | /{i}x+/" for i in range(2600)) + '\nr2600: "z"'},
        {"grammar": "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(40)) + '\nr40: "z"'},
    ],
    ids=["nothing", "endless", "choices", "doubled"],
)
def test_what_could_not_be_followed_for_a_few_tokens_is_refused_before_anything_changes(
    fields: dict[str, Any],
) -> None:
    engine = engine_with()
    with pytest.raises(InvalidRequestError, match=f"{next(iter(fields))}: it is too large, or no output"):
        engine.add_request("a", greedy(**fields))
    assert_all_free(engine)


LIKES_TO_END = {EOS: 100.0}
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize(
    ("fields", "text", "reason", "ends"),
    [  # ends: the stop_reason, or that the end token was chosen
        ({"regex": "abc+", "logit_bias": LIKES_TO_END}, "abc", STOP, EOS),  # only when the output is complete
        ({"regex": "(abc)?", "logit_bias": LIKES_TO_END}, "", STOP, EOS),
        ({"regex": "bcdef", "max_new_tokens": 3}, "bcd", LENGTH, None),
        ({"regex": "bcdef", "max_new_tokens": 5}, "bcdef", STOP, None),
        ({"regex": ""}, "", STOP, EOS),
        ({"regex": "b{2,4}", "ignore_eos": True}, "bbbb", STOP, None),
        ({"regex": "b{2,4}", "ignore_eos": True, "logit_bias": LIKES_TO_END}, "bbbb", STOP, None),
        ({"regex": "b+", "ignore_eos": True, "max_new_tokens": 6}, "bbbbbb", LENGTH, None),
        ({"regex": "b+", "min_new_tokens": 4, "logit_bias": LIKES_TO_END}, "bbbb", STOP, EOS),
        ({"regex": "bcd", "min_new_tokens": 8}, "bcd", STOP, None),
        ({"regex": "bcdef", "stop": "de"}, "bc", STOP, "de"),
        ({"regex": "bcdef", "stop_token_ids": [ord("d")]}, "bcd", STOP, ord("d")),  # allowed where its text is
        ({"regex": "bcef", "stop_token_ids": [ord("d")]}, "bcef", STOP, None),
        ({"choice": ["yes", "no"], "logit_bias": {ord("z"): 1e20}}, "no", STOP, None),
        ({"choice": ["yes", "no"], "logit_bias": {ord("y"): 1e20}}, "yes", STOP, None),
        ({"regex": "ab*", "logit_bias": {ord("b"): -math.inf, EOS: -math.inf}}, "a", STOP, None),  # it is complete
    ],
    ids=str,
)
def test_other_parameters_have_their_say_within_a_grammar(
    fields: dict[str, Any], text: str, reason: FinishReason, ends: Any
) -> None:
    output = one(engine_with(), **fields)
    assert (output.text, output.finish_reason, output.error) == (text, reason, None)
    assert (output.token_ids[-1:] == [EOS]) == (ends == EOS)
    assert output.stop_reason == (None if ends == EOS else ends)


def test_without_an_end_token_an_output_ends_where_it_can_go_on_no_more() -> None:
    for regex, text in (("b{2,4}", "bbbb"), ("", "")):
        output = one(make_engine(), regex=regex)
        assert (output.text, output.finish_reason, output.error) == (text, FinishReason.STOP, None)


# --- other parameters ------------------------------------------------------------------------------------------------


def test_penalties_apply_among_the_tokens_that_are_allowed() -> None:
    output = one(engine_with(), regex="[bx]{6}", presence_penalty=2.0, repetition_penalty=1e9, frequency_penalty=2.0)
    assert re.fullmatch("[bx]{6}", output.text)
    assert set(output.text) == {"b", "x"}


def test_a_logits_processor_comes_before_the_grammar() -> None:
    def only_z(token_ids: Any, logits: Any) -> Any:
        return logits.index_fill(0, logits.new_tensor([ord("z")]).long(), 99.0)

    assert one(engine_with(), regex="[a-z]{3}", logits_processors=[only_z]).text == "zzz"
    assert one(engine_with(), regex="[a-c]{3}", logits_processors=[only_z]).text == "bca"


def test_a_request_that_has_no_token_left_ends_with_an_error_and_no_other_does() -> None:
    engine = engine_with()
    banned = {ord("c"): -float("inf")}
    stuck = engine.add_request("a", greedy(8, regex="bcd", logit_bias=banned, logprobs=2))
    fine = engine.add_request("a", greedy(8, regex="bcd"))
    plain = engine.add_request("a", greedy(8))
    sampled = engine.add_request("a", SamplingParams(max_new_tokens=8, regex="bcd", logit_bias=banned, seed=1))
    last = finish(engine)
    for request_id in (stuck, sampled):
        output = last[request_id]
        assert (output.text, output.finish_reason) == ("b", FinishReason.ABORT)
        assert isinstance(output.error, NoTokenAllowedError)
        assert str(output.error).startswith(f"request {request_id}: ")
    logprobs = last[stuck].logprobs
    assert logprobs is not None
    assert len(logprobs) == 1
    assert (last[fine].text, last[fine].error) == ("bcd", None)
    assert (last[plain].text, last[plain].error) == ("bcdefghi", None)
    assert_all_free(engine)


def test_logprobs_are_the_models_own() -> None:
    free = one(engine_with(), logprobs=3, max_new_tokens=3)
    bound = one(engine_with(), logprobs=3, regex="bcd")
    assert free.text == bound.text == "bcd"
    assert free.logprobs == bound.logprobs
    other = one(engine_with(), logprobs=0, regex="x").logprobs
    assert other is not None
    assert other[0][ord("x")] < -10  # as unlikely as the model finds it


@pytest.mark.parametrize("temperature", [1.0, 2.0, 1000.0])
def test_sampled_outputs_match_at_any_temperature(temperature: float) -> None:
    engine = engine_with(rows=16)
    params = [
        SamplingParams(
            max_new_tokens=30, regex="(a|bc){2,5}[x-z]", seed=seed, temperature=temperature, top_p=0.9, top_k=3
        )
        for seed in range(12)
    ]
    ids = [engine.add_request("a", each) for each in params]
    last = finish(engine)
    assert all(re.fullmatch("(a|bc){2,5}[x-z]", last[i].text) for i in ids)
    assert len({last[i].text for i in ids}) > 3


@pytest.mark.parametrize("count", [2_500, 10_000])
def test_a_choice_has_as_many_options_as_it_may(count: int) -> None:
    options = [f"{i:05d}" for i in range(count)]
    assert one(engine_with(), choice=options).text in options
    output = one(engine_with(), choice=[*options, "a", "ab"][2:], logit_bias={ord("a"): 99.0, EOS: 50.0})
    assert output.token_ids == [ord("a"), EOS]  # "ab" would be allowed, too


# --- scheduling ------------------------------------------------------------------------------------------------------


def mixed(engine: Engine) -> dict[int, RequestOutput]:
    """Requests with and without grammars, greedy and sampled, of several lengths."""
    ids = []
    for seed in range(8):
        grammar: dict[str, Any] = [{"regex": "([a-f]x)*y"}, {}, {"choice": ["abcdefgh", "abcabc"]}][seed % 3]
        params = SamplingParams(max_new_tokens=12, seed=seed, temperature=seed % 2, ignore_eos=True, **grammar)
        ids.append(engine.add_request("abcdefghijk"[: seed + 3], params))
    last = finish(engine)
    assert_all_free(engine)
    return {i: last[request_id] for i, request_id in enumerate(ids)}


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 40, "schedule_conservativeness": 0.01},
        {"chunked_prefill_size": 4},
        {"num_scheduler_steps": 3},
        {"page_size": 4},
        {"disable_radix_cache": True},
        {"rows": 1},
    ],
    ids=str,
)
def test_how_requests_are_scheduled_changes_no_token(options: dict[str, Any]) -> None:
    expected = mixed(engine_with(rows=8))
    engine = engine_with(**{"rows": 8, **options})
    found = mixed(engine)
    for i, output in expected.items():
        assert (found[i].token_ids, found[i].finish_reason) == (output.token_ids, output.finish_reason)
    if "slots" in options:
        assert engine.stats()["retractions"] > 0


def test_a_paused_request_goes_on_where_it_was() -> None:
    engine = engine_with()
    request_id = engine.add_request("a", greedy(20, regex="bcdefgh"))
    for _ in range(3):
        step(engine)
    engine.pause(request_id)
    assert not step(engine)
    engine.resume(request_id)
    assert finish(engine)[request_id].text == "bcdefgh"


def test_requests_without_grammars_keep_the_fast_path() -> None:
    engine = engine_with()
    engine.add_request("a", greedy(3))
    step(engine)
    assert engine.last_batch is not None
    assert engine.last_batch.only_likeliest
    engine.add_request("a", greedy(3, regex="xyz"))
    step(engine)
    assert not engine.last_batch.only_likeliest
