"""Names that users of vLLM and SGLang type: they work where they mean the same, and else get an answer that names ours."""

import copy
import dataclasses
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

from nanoinfer import LLM, AsyncEngine, SamplingParams
from nanoinfer.cache.kv_storage import kv_storage_kind
from nanoinfer.config import EngineConfig
from nanoinfer.errors import UnknownArgumentError
from nanoinfer.requests.aliases import (
    COMPLETION_ATTRIBUTES,
    LLM_ALIASES,
    LLM_ATTRIBUTES,
    LLM_ELSEWHERE,
    OUTPUT_ATTRIBUTES,
    SAMPLING_ALIASES,
    SAMPLING_ELSEWHERE,
)
from nanoinfer.requests.keywords import Elsewhere, attribute_answers, keywords, nearest
from tests.helpers.engines import finish, greedy, make_engine

CONSTRAINTS = {"response_format": "json_schema=", "structural_tag": "json_schema="}
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


def test_a_name_that_is_only_somewhat_similar_is_not_taken_for_a_misspelt_one() -> None:
    known = ["top_p", "model_path", "kv_cache_dtype", "repetition_penalty", "page_size"]
    for other, close in (
        ("top_n", "top_p"),
        ("torch_dtype", "kv_cache_dtype"),
        ("length_penalty", "repetition_penalty"),
    ):
        assert nearest(other, known) == f"the nearest name is {close!r}"
    for misspelt, meant in (("topp", "top_p"), ("repeat_penalty", "repetition_penalty"), ("pagesize", "page_size")):
        assert nearest(misspelt, known) == f"did you mean {meant!r}?"


def test_an_attribute_of_other_engines_is_answered_with_ours_and_any_other_as_by_python() -> None:
    @attribute_answers({"theirs": "ours"})
    class Thing:
        ours = 5

    assert Thing().ours == 5
    assert not hasattr(Thing(), "nothing")
    for name, said in (("theirs", "^'Thing' object has no attribute 'theirs'; use ours$"), ("its", "attribute 'its'$")):
        with pytest.raises(AttributeError, match=said) as caught:
            getattr(Thing(), name)
        assert caught.value.name == name
        assert isinstance(caught.value.obj, Thing)


def test_outputs_and_llm_name_what_vllm_and_sglang_call_otherwise() -> None:
    engine = make_engine()
    engine.add_request([5], greedy(1))
    (output,) = engine.step()
    for name, ours in OUTPUT_ATTRIBUTES.items():
        assert hasattr(output, re.split(r"\W", ours)[0])
        with pytest.raises(AttributeError, match=f"'{name}'; use {re.escape(ours)}$"):
            getattr(output, name)
    for name, ours in COMPLETION_ATTRIBUTES.items():
        with pytest.raises(AttributeError, match=f"'{name}'; use {re.escape(ours)}$"):
            getattr(output.outputs[0], name)
    with pytest.raises(TypeError, match=r"an output has attributes: use output\.text$"):
        output["text"]  # type: ignore[index]
    assert copy.deepcopy(output).token_ids == pickle.loads(pickle.dumps(output)).token_ids == [6]
    for name, ours in LLM_ATTRIBUTES.items():
        with pytest.raises(AttributeError, match=f"'{name}'; use {re.escape(ours)}$"):
            getattr(LLM.__new__(LLM), name)


def test_the_sum_of_log_probabilities_is_there_under_vllms_name() -> None:
    engine = make_engine()
    engine.add_request([5], greedy(3, logprobs=2))
    engine.add_request([5], greedy(3))
    asked, not_asked = finish(engine).values()
    wanted = sum(entry[token] for token, entry in zip(asked.token_ids, asked.logprobs, strict=True))
    assert asked.outputs[0].cumulative_logprob == pytest.approx(wanted)
    assert (asked.outputs[0].index, not_asked.outputs[0].cumulative_logprob) == (0, None)


def test_an_unknown_name_gets_the_nearest_one_of_ours_and_of_other_engines() -> None:
    with pytest.raises(UnknownArgumentError, match=r"^function: no argument 'lenght'; did you mean 'length'\?$"):
        function(1, lenght=5)  # type: ignore[call-arg]
    with pytest.raises(UnknownArgumentError, match=r"no argument 'b_alia'; did you mean 'b_alias', here 'b'\?$"):
        function(1, b_alia=5)  # type: ignore[call-arg]
    with pytest.raises(UnknownArgumentError, match=r"no argument 'gonne'; did you mean 'gone'\?$"):
        function(1, gonne=5)  # type: ignore[call-arg]
    with pytest.raises(UnknownArgumentError, match=r"no argument 'lens'; the nearest name is 'length'$"):
        function(1, lens=5)  # type: ignore[call-arg]
    with pytest.raises(
        UnknownArgumentError, match=r"^LLM: no argument 'max_model_length'; did you mean 'max_model_len', "
    ):
        LLM(NOWHERE, max_model_length=5)
    with pytest.raises(UnknownArgumentError, match=r"^LLM: no argument 'qqq'; the nearest name is '\w+', here '\w+'$"):
        LLM(NOWHERE, qqq=5)


def test_everything_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(UnknownArgumentError, match=r"gone=5: use b; no argument 'lenght'"):
        function(1, gone=5, lenght=5)  # type: ignore[call-arg]


def test_such_an_error_is_a_type_error_and_a_value_error() -> None:
    assert issubclass(UnknownArgumentError, TypeError)
    assert issubclass(UnknownArgumentError, ValueError)


# --- SamplingParams --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alias", [name for name, ours in SAMPLING_ALIASES.items() if isinstance(ours, str)])
def test_a_sampling_alias_sets_the_field_of_ours(alias: str) -> None:
    others = {"no_stop_trim": True, "stop_strs": ("a", "b"), "guided_json": {"type": "null"}, "guided_choice": ["a"]}
    grammars = {"guided_regex": "a+", "guided_grammar": 'start: "a"', "ebnf": 'root ::= "a"'}
    value: Any = {**others, **grammars}.get(alias, 7)
    ours: Any = SAMPLING_ALIASES[alias]
    params = SamplingParams(**{alias: value})
    assert params == SamplingParams(**{ours: value})
    with pytest.raises(ValueError, match=alias):
        SamplingParams(**{alias: value, ours: value})


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
        ("length_penalty", 1.2, "beam search is not implemented"),
        ("return_logprob", True, "logprobs=0"),
        *((name, {"json": "{}"}, ours) for name, ours in CONSTRAINTS.items()),
        ("stop_regex", "a+", r"stop=\.\.\."),
        ("stream", True, "method stream"),
        ("temprature", 1.0, "'temperature'"),
    ],
)
def test_a_sampling_name_without_an_equal_is_answered_with_ours(name: str, value: Any, ours: str) -> None:
    with pytest.raises(UnknownArgumentError, match=rf"^SamplingParams: .*{name}.*{ours}"):
        SamplingParams(**{name: value})


def test_what_another_engine_has_by_default_changes_nothing() -> None:
    given: dict[str, Any] = {"best_of": None, "bad_words": None, "detokenize": True, "length_penalty": 1.0}
    given |= {"return_logprob": False, "stream": False, "structured_outputs": None, **dict.fromkeys(CONSTRAINTS)}
    assert SamplingParams(**given) == SamplingParams()


def test_params_may_still_be_replaced() -> None:
    assert dataclasses.replace(SamplingParams(max_tokens=5), n=2).max_new_tokens == 5  # type: ignore[call-arg]


# --- LLM and EngineConfig --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alias", [name for name, ours in LLM_ALIASES.items() if isinstance(ours, str)])
def test_an_option_under_two_names_is_refused(alias: str) -> None:
    with pytest.raises(UnknownArgumentError, match=rf"^LLM: {alias} is another name of {LLM_ALIASES[alias]},"):
        LLM(**{"model": NOWHERE, alias: 8, LLM_ALIASES[alias]: 8})


@pytest.mark.parametrize(
    ("name", "value", "ours"),
    [
        ("kv_cache_memory_bytes", 2**30, "max_total_tokens"),
        ("num_gpu_blocks_override", 100, "kv_memory_share"),
        ("trust_remote_code", True, "never run"),
        ("pipeline_parallel_size", 2, "tensor_parallel_size"),
        ("data_parallel_size", 2, "one engine"),
        ("load_format", "gguf", "safetensors"),
        ("tokenizer_mode", "slow", "the checkpoint's files"),
        ("revision", "main", "snapshot_download"),
        ("hf_token", "secret", "HF_TOKEN"),
        ("chat_template", "{{ x }}", "chat_template_kwargs"),
        ("rope_scaling", {"factor": 2}, "config.json"),
        ("lora_paths", 5, "use adapters="),
        ("speculative_num_steps", 3, "num_draft_tokens"),
        ("cpu_offload_gb", 4, "stay on the device"),
        ("disable_overlap_schedule", False, "after the previous one"),
        ("multi_step_stream_outputs", True, "must be None or False, as there is nothing else here"),
        ("async_scheduling", True, "must be None or False"),
        ("page_sise", 4, "'page_size'"),
        ("temperature", 0, "SamplingParams"),
        ("max_tokens", 5, "SamplingParams.max_new_tokens"),
    ],
)
def test_an_option_that_llm_does_not_have_is_answered_with_ours(name: str, value: Any, ours: str) -> None:
    with pytest.raises(UnknownArgumentError, match=rf"^LLM: .*{name}.*{ours}"):
        LLM(NOWHERE, **{name: value})


def test_options_that_ask_for_what_happens_anyway_are_accepted() -> None:
    given: dict[str, Any] = dict.fromkeys(("pipeline_parallel_size", "data_parallel_size", "tp"), 1)
    given |= {"load_format": "auto", "tokenizer_mode": "auto", "kv_cache_dtype": "auto", "cpu_offload_gb": 0}
    given |= {"swap_space": 4, "disable_log_stats": True, "async_scheduling": False, "guided_decoding_backend": "auto"}
    given |= {"gpu_memory_utilization": None, "speculative_config": None, "enable_prefix_caching": True}
    given |= {"max_lora_rank": 8, "enable_lora": True, "disable_cuda_graph": False, "lora_paths": None}
    with pytest.raises(FileNotFoundError, match=NOWHERE):  # all of them are checked before the model is looked for
        LLM(NOWHERE, **given)
    assert kv_storage_kind("auto") is kv_storage_kind(None)


def test_engine_config_names_the_nearest_field() -> None:
    with pytest.raises(UnknownArgumentError, match=r"^EngineConfig: no argument 'max_que'; did you mean 'max_queue'\?"):
        EngineConfig(1, 8, 8, max_que=5)  # type: ignore[call-arg]


def test_a_secret_is_not_shown() -> None:
    with pytest.raises(UnknownArgumentError, match=r"^LLM: hf_token=\.\.\.: set the environment variable HF_TOKEN"):
        LLM(NOWHERE, hf_token="hf_secret")


def test_every_sentence_is_about_a_name_that_is_not_ours() -> None:
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    options = {field.name for field in dataclasses.fields(EngineConfig)}
    assert not fields & {*SAMPLING_ALIASES, *SAMPLING_ELSEWHERE}
    assert not options & {*LLM_ALIASES, *LLM_ELSEWHERE}
    assert {ours for ours in SAMPLING_ALIASES.values() if isinstance(ours, str)} <= fields


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
        ({"response_format": {}}, "response_format=.*json_schema="),
        ({"json_schema": {}}, r"json_schema=.*belongs in SamplingParams"),
    ):
        with pytest.raises(UnknownArgumentError, match=answer):
            method(None, "a", **given)


def test_add_request_takes_sampling_params_too() -> None:
    engine = make_engine()
    engine.add_request([5], sampling_params=greedy(1))  # type: ignore[call-arg]
    assert engine.step()[0].token_ids == [6]
    with pytest.raises(UnknownArgumentError, match=r"^Engine\.add_request: no argument 'parms'; did you mean 'params'"):
        engine.add_request([5], parms=greedy(1))  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "method",
    [getattr(AsyncEngine, name) for name in METHODS[AsyncEngine]],
    ids=lambda it: it.__qualname__,
)
def test_a_request_id_after_the_params_is_refused_rather_than_taken_for_a_key(method: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="positional argument"):
        method(None, "a", greedy(1), "req-1")
