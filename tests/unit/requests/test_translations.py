"""What vLLM and SGLang write otherwise: arguments, prompts, parameters and adapters that are taken as they are there."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from nanoinfer import LLM, AsyncEngine, InvalidRequestError, SamplingParams
from nanoinfer.config import EngineConfig
from nanoinfer.device import resolve_dtype
from nanoinfer.errors import UnknownArgumentError
from nanoinfer.requests.aliases import LLM_ALIASES, LLM_ELSEWHERE
from nanoinfer.requests.keywords import keywords
from tests.helpers.adapters import save_adapter
from tests.helpers.engines import CONTEXT, LetterTokenizer, finish, greedy, make_engine
from tests.helpers.waiting import run

PARAMS = SamplingParams(max_new_tokens=3, temperature=0.0, ignore_eos=True)


@dataclass
class StructuredOutputsParams:
    """vLLM's."""

    json: Any = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_fallback: bool = True
    whitespace_pattern: str | None = None
    _backend: str | None = field(default="guidance", init=False)


class LoRARequest(NamedTuple):
    """vLLM's."""

    lora_name: str
    lora_int_id: int
    lora_path: str


@keywords(LLM_ALIASES, LLM_ELSEWHERE)
def given(**options: Any) -> dict[str, Any]:
    return options


# --- options of an LLM -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"enable_prefix_caching": False}, {"disable_radix_cache": True}),
        ({"enable_prefix_caching": True, "enforce_eager": False, "disable_cuda_graph": None}, {}),
        ({"enable_chunked_prefill": False}, {"chunked_prefill_size": None}),
        ({"enforce_eager": True}, {"capture": False}),
        ({"disable_cuda_graph": True}, {"capture": False}),
        ({"gpu_memory_utilization": 0.5}, {"kv_memory_share": 0.5}),
        ({"mem_fraction_static": 0.5}, {"kv_memory_share": 0.5}),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}},
            {"drafter": "ngram", "draft_model": None, "num_draft_tokens": 5},
        ),
        (
            {"speculative_config": '{"method": "draft_model", "model": "m"}'},
            {"drafter": "model", "draft_model": "m"},
        ),
        (
            {"speculative_config": {"model": "m", "num_speculative_tokens": 2}},
            {"drafter": "model", "draft_model": "m", "num_draft_tokens": 2},
        ),
        (
            {"speculative_config": SimpleNamespace(model="ngram", num_speculative_tokens=2)},
            {"drafter": "ngram", "draft_model": None, "num_draft_tokens": 2},
        ),
        (
            {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": "m", "speculative_eagle_topk": 1},
            {"drafter": "model", "draft_model": "m"},
        ),
        (
            {"speculative_algorithm": "ngram", "speculative_num_draft_tokens": 4},
            {"drafter": "ngram", "num_draft_tokens": 4},
        ),
        ({"lora_paths": ["a=b", "c"]}, {"adapters": {"a": "b", "c": "c"}}),
        ({"lora_paths": {"a": "b"}}, {"adapters": {"a": "b"}}),
        ({"lora_modules": [LoRARequest("a", 1, "b"), {"name": "c", "path": "d"}]}, {"adapters": {"a": "b", "c": "d"}}),
        ({"lora_paths": [], "speculative_algorithm": None}, {}),
    ],
    ids=str,
)
def test_an_option_becomes_ours(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    assert given(**theirs) == ours


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"enable_prefix_caching": 0}, "must be True or False"),
        ({"speculative_config": {"method": "eagle3", "model": "m"}}, "method must be one of ngram, draft_model.*EAGLE"),
        ({"speculative_config": {"method": "draft_model"}}, "the latter with a model"),
        ({"speculative_config": {"model": "m", "quantization": "fp8"}}, "quantization: has no equal here"),
        ({"speculative_config": 5}, "must be a mapping"),
        ({"speculative_config": "{"}, "Expecting property name"),
        ({"speculative_algorithm": "EAGLE"}, "must be one of NGRAM, STANDALONE; .*EAGLE"),
        ({"lora_paths": [5]}, "must be an object or a mapping with lora_name and lora_path"),
        ({"lora_paths": [{"lora_name": "a"}]}, "must have lora_name and lora_path"),
    ],
    ids=str,
)
def test_a_value_without_an_equal_is_refused_by_name(theirs: dict[str, Any], said: str) -> None:
    with pytest.raises(UnknownArgumentError, match=rf"^given: .*{next(iter(theirs))}.*{said}"):
        given(**theirs)


@pytest.mark.parametrize(
    ("theirs", "also", "ours"),
    [
        ({"enforce_eager": True}, {"capture": True}, "capture"),
        ({"speculative_algorithm": "NGRAM"}, {"drafter": "tree"}, "drafter"),
        ({"lora_paths": ["a=b"]}, {"lora_modules": ["c=d"]}, "adapters"),
    ],
)
def test_what_is_given_twice_is_refused(theirs: dict[str, Any], also: dict[str, Any], ours: str) -> None:
    with pytest.raises(UnknownArgumentError, match=f"^LLM: .* is another name of {ours}, which is given as well"):
        LLM("no/such/model/anywhere", **theirs, **also)


def test_names_of_dtypes() -> None:
    assert resolve_dtype("half") is torch.float16
    assert resolve_dtype("float") is torch.float32


def test_a_share_of_the_memory_is_for_kv(checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float | None] = []
    monkeypatch.setattr(
        "nanoinfer.frontends.llm.memory_for_kv", lambda device, share: asked.append(share) or int(2**20 * share)
    )
    llm = LLM(checkpoint("llama"), gpu_memory_utilization=0.25)
    assert asked == [0.25]
    assert llm.config.max_total_tokens == 2**18 // llm.model.kv_bytes_per_token()
    for share in (0, 1.5, -1, True, "0.9", float("nan")):
        with pytest.raises(ValueError, match=r"^kv_memory_share=.*: must be None or a number above 0 and at most 1$"):
            LLM("no/such/model/anywhere", mem_fraction_static=share)
    with pytest.raises(ValueError, match=r"^kv_memory_share=0.5: must be None with max_total_tokens=64$"):
        LLM("no/such/model/anywhere", kv_memory_share=0.5, max_total_tokens=64)


# --- parameters of requests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [dict, StructuredOutputsParams], ids=lambda form: form.__name__)
@pytest.mark.parametrize("name", ["structured_outputs", "guided_decoding"])
def test_what_an_output_must_be_like_may_be_said_in_vllms_way(form: Callable[..., Any], name: str) -> None:
    for theirs, ours in (
        ({"json": {"type": "null"}}, {"json_schema": {"type": "null"}}),
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
        ({"json_object": True}, {"json_schema": {"type": "object"}}),
        ({"json_object": False}, {}),
    ):
        assert SamplingParams(**{name: form(**theirs)}) == SamplingParams(**ours)  # type: ignore[arg-type]
    for wrong, said in (
        (form(regex="a", choice=["a"]), "must have one of json, regex"),
        (form(whitespace_pattern="a"), "whitespace_pattern: use one of json, regex, choice, grammar"),
        (5, "must be an object or a mapping with one of json"),
    ):
        with pytest.raises(UnknownArgumentError, match=rf"^SamplingParams: {name}=.*: {said}"):
            SamplingParams(**{name: wrong})


def test_a_top_k_of_0_is_off() -> None:
    assert SamplingParams(top_k=0) == SamplingParams()
    assert SamplingParams(top_k=0).draws_from_all


@pytest.mark.parametrize("pool", [CONTEXT, 20])
def test_without_a_number_of_tokens_a_request_gets_the_rest_of_the_context(pool: int) -> None:
    engine = make_engine(slots=pool)
    engine.add_request([5, 6, 7], SamplingParams(max_tokens=None, temperature=0))  # type: ignore[call-arg]
    (output,) = finish(engine).values()
    assert output.finish_reason == "length"
    assert len(output.token_ids) == min(CONTEXT, pool) - 3
    with pytest.raises(InvalidRequestError, match=r"max_context_len=64"):
        engine.add_request([5] * CONTEXT, greedy(None))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"^prompt: min_new_tokens=70: must not exceed max_new_tokens="):
        engine.add_request([5], greedy(None, min_new_tokens=70))  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [{}, {"prompt": None}, {"prompt": "x"}, None], ids=str)
def test_a_prompt_may_be_in_a_mapping_and_so_may_params(more: dict[str, Any] | None) -> None:
    prompt: Any = {"prompt": "\5\6"} if more is None else {"prompt_token_ids": [5, 6], **more}
    engine = make_engine(tokenizer=LetterTokenizer())
    engine.add_request(prompt, {"max_tokens": 2, "temperature": 0})  # type: ignore[arg-type]
    (output,) = finish(engine).values()
    assert (output.prompt_token_ids, output.token_ids) == ([5, 6], [7, 8])
    with pytest.raises(UnknownArgumentError, match=r"^SamplingParams: no argument 'temprature'"):
        engine.add_request(prompt, {"temprature": 0})


def test_generate_takes_sglangs_params_and_vllms_prompts(checkpoint: Callable[..., Path]) -> None:
    llm = LLM(checkpoint("llama"), max_total_tokens=256)
    fields = {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}
    wanted = [output.token_ids for output in llm.generate([[5, 6], [7, 8]], PARAMS)]
    prompts: Any = [{"prompt_token_ids": [5, 6]}, {"prompt_token_ids": [7, 8]}]
    for params in (fields, [fields, PARAMS]):
        assert [output.token_ids for output in llm.generate(prompts, params)] == wanted
    assert llm.generate(prompts[0], sampling_params=fields)[0].token_ids == wanted[0]  # type: ignore[call-arg]
    assert [token for piece in llm.stream(prompts[0], fields) for token in piece.token_ids] == wanted[0]


def test_all_after_a_prompt_and_its_params_is_by_keyword(checkpoint: Callable[..., Path]) -> None:
    llm = LLM(checkpoint("llama"), max_total_tokens=64)
    for method in (llm.generate, llm.stream, llm.chat, llm.stream_chat, llm.engine.add_request):
        with pytest.raises(TypeError, match="positional"):
            method([5], PARAMS, None)  # type: ignore[operator, arg-type]


# --- adapters --------------------------------------------------------------------------------------------------------


def test_a_request_may_bring_its_adapter(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    llm = LLM(checkpoint("llama"), max_total_tokens=256)
    folder = save_adapter(tmp_path / "one", llm.model.model)
    request = LoRARequest("one", 1, str(folder))
    brought = llm.generate([[5, 6]] * 2, PARAMS, lora_request=[request, None])  # type: ignore[call-arg]
    assert [*llm.adapters] == ["one"]
    wanted = llm.generate([[5, 6]] * 2, PARAMS, adapter=["one", None])
    assert [output.token_ids for output in brought] == [output.token_ids for output in wanted]
    mapping = {"lora_name": "one", "lora_path": folder}
    assert llm.generate([5, 6], PARAMS, lora_request=mapping)[0].token_ids == wanted[0].token_ids  # type: ignore[call-arg]
    assert llm.generate([5, 6], PARAMS, lora_path="one")[0].token_ids == wanted[0].token_ids  # type: ignore[call-arg]
    for wrong, said in (
        (LoRARequest("one", 1, "elsewhere"), "adapter 'one': is loaded already, from .*one; unload it first"),
        (LoRARequest("two", 2, str(tmp_path / "no")), "adapter '.*no': no such folder"),
        ("one", "must be an object or a mapping with lora_name and lora_path"),
    ):
        with pytest.raises(ValueError, match=said):
            llm.generate([5, 6], PARAMS, lora_request=wrong)  # type: ignore[call-arg]
    assert [*llm.adapters] == ["one"]


def test_a_coroutines_request_may_bring_its_adapter(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    llm = LLM(checkpoint("llama"), max_total_tokens=256)
    request = LoRARequest("one", 1, str(save_adapter(tmp_path / "one", llm.model.model)))

    async def serve() -> None:
        async with AsyncEngine(llm) as engine:
            output = await engine.generate([5, 6], PARAMS, lora_request=request)  # type: ignore[call-arg]
            assert output.token_ids == (await engine.generate([5, 6], PARAMS, adapter="one")).token_ids

    run(serve)
    assert [*llm.adapters] == ["one"]


# --- values that nothing could serve ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", {}, 3, [], False])
@pytest.mark.parametrize("drafter", [None, "model"])
def test_a_draft_model_that_is_none_is_refused_by_name(drafter: str | None, value: Any) -> None:
    with pytest.raises(ValueError, match=r"^draft_model=.*: must be a model's name or directory, or None$"):
        LLM("story", drafter=drafter, draft_model=value)


def test_more_places_for_adapters_than_memory_has_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^max_adapters_on_device=1000000000000: must be in 1..65536$"):
        EngineConfig(1, 8, 8, max_adapters_on_device=10**12)
