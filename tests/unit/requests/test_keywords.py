"""Names that users of vLLM and SGLang type: they work where they mean the same, and others get the nearest of ours."""

from collections.abc import Callable
from dataclasses import fields, replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM, AsyncEngine, InvalidRequestError, SamplingParams
from nanoinfer.config import EngineConfig
from nanoinfer.errors import UnknownArgumentError
from nanoinfer.keywords import ALIASES
from tests.helpers.engines import CONTEXT, LetterTokenizer, finish, greedy, make_engine

NOWHERE = "no/such/model/anywhere"  # what is refused is refused before a model is looked for
VALUES: dict[str, Any] = {
    "include_stop_str_in_output": True,
    "stop": ("a", "b"),
    "json_schema": {"type": "null"},
    "choice": ["a"],
    "regex": "a+",
    "grammar": 'start: "a"',
}
OF_SAMPLING = {each.name for each in fields(SamplingParams)}
OF_LLM = signature(LLM.__init__).parameters.keys() | {each.name for each in fields(EngineConfig)}


@pytest.mark.parametrize(("theirs", "ours"), [pair for pair in ALIASES.items() if pair[1] in OF_SAMPLING])
def test_a_sampling_alias_sets_the_field_of_ours(theirs: str, ours: str) -> None:
    value = VALUES.get(ours, 7)
    assert SamplingParams(**{theirs: value}) == SamplingParams(**{ours: value})
    with pytest.raises(UnknownArgumentError, match=theirs):
        SamplingParams(**{theirs: value, ours: value})


@pytest.mark.parametrize(("theirs", "ours"), [pair for pair in ALIASES.items() if pair[1] in OF_LLM])
def test_an_alias_of_an_option_reaches_it(theirs: str, ours: str) -> None:
    with pytest.raises(UnknownArgumentError, match=f"{theirs} .*{ours}"):
        LLM(**{"model": NOWHERE, theirs: 8, ours: 8})


def test_an_alias_is_checked_as_the_argument_that_it_names() -> None:
    with pytest.raises(ValueError, match=r"^max_new_tokens=0: "):
        SamplingParams(max_tokens=0)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"^page_size=0: "):
        LLM(NOWHERE, block_size=0)
    assert replace(SamplingParams(max_tokens=5), n=2).max_new_tokens == 5  # type: ignore[call-arg]
    with pytest.raises(UnknownArgumentError, match=r"model_path .*model"):
        LLM(NOWHERE, model_path=NOWHERE)


@pytest.mark.parametrize(
    ("called", "args", "name", "near"),
    [
        (SamplingParams, (), "temprature", "temperature"),
        (SamplingParams, (), "max_token", "max_new_tokens"),
        (LLM, (NOWHERE,), "page_sise", "page_size"),
        (LLM, (NOWHERE,), "max_model_length", "max_context_len"),
        (EngineConfig, (1, 8, 8), "max_que", "max_queue"),
        (LLM.generate, (None, "a"), "timeout", "timeout_s"),
        *(
            (method, (None, "a"), "parms", "params")
            for cls in (LLM, AsyncEngine)
            for method in (cls.generate, cls.stream, cls.chat, cls.stream_chat)
        ),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_ones(
    called: Callable[..., Any], args: tuple[Any, ...], name: str, near: str
) -> None:
    with pytest.raises(UnknownArgumentError, match=rf"{name}.*: .*\b{near}\b") as caught:
        called(*args, **{name: 5})
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


# --- values that are taken as they are there -------------------------------------------------------------------------


@pytest.mark.parametrize("pool", [CONTEXT, 20])
def test_without_a_number_of_tokens_a_request_gets_the_rest_of_the_context(pool: int) -> None:
    engine = make_engine(slots=pool)
    engine.add_request([5, 6, 7], SamplingParams(max_tokens=None, temperature=0))  # type: ignore[call-arg]
    (output,) = finish(engine).values()
    assert output.finish_reason == "length"
    assert len(output.token_ids) == min(CONTEXT, pool) - 3
    with pytest.raises(InvalidRequestError, match=r"max_context_len=64"):
        engine.add_request([5] * CONTEXT, greedy(None))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"^prompt: min_new_tokens=70: "):
        engine.add_request([5], greedy(None, min_new_tokens=70))  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [{}, {"prompt": None}, {"prompt": "x"}, None], ids=str)
def test_a_prompt_may_be_in_a_mapping_and_so_may_params(more: dict[str, Any] | None) -> None:
    prompt: Any = {"prompt": "\5\6"} if more is None else {"prompt_token_ids": [5, 6], **more}
    engine = make_engine(tokenizer=LetterTokenizer())
    engine.add_request(prompt, {"max_tokens": 2, "temperature": 0})
    (output,) = finish(engine).values()
    assert (output.prompt_token_ids, output.token_ids) == ([5, 6], [7, 8])
    with pytest.raises(UnknownArgumentError, match="temprature"):
        engine.add_request(prompt, {"temprature": 0})


def test_generate_takes_sglangs_params_and_vllms_prompts(checkpoint: Callable[..., Path]) -> None:
    llm = LLM(checkpoint("llama"), max_total_tokens=256)
    one: Any = {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}
    params = SamplingParams(**one)
    wanted = [output.token_ids for output in llm.generate([[5, 6], [7, 8]], params)]
    prompts: Any = [{"prompt_token_ids": [5, 6]}, {"prompt_token_ids": [7, 8]}]
    for some in (one, [one, params]):
        assert [output.token_ids for output in llm.generate(prompts, some)] == wanted
    for given in ({"prompts": prompts[0]}, {"prompt_token_ids": [5, 6]}, {"input_ids": [5, 6]}):
        assert llm.generate(**given, sampling_params=one)[0].token_ids == wanted[0]
    assert [token for piece in llm.stream(prompts[0], one) for token in piece.token_ids] == wanted[0]
    for method in (llm.generate, llm.stream, llm.chat, llm.stream_chat, llm.engine.add_request):
        with pytest.raises(TypeError, match="positional"):
            method([5], params, None)  # type: ignore[operator]


def test_a_share_of_the_memory_is_for_kv(checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float | None] = []
    monkeypatch.setattr("nanoinfer.llm.memory_for_kv", lambda device, share: asked.append(share) or int(2**20 * share))
    llm = LLM(checkpoint("llama"), gpu_memory_utilization=0.25)
    assert asked == [0.25]
    assert llm.config.max_total_tokens == 2**18 // llm.model.kv_bytes_per_token()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        *(({"kv_memory_share": share}, "kv_memory_share") for share in (0, 1.5, -1, True, "0.9", float("nan"))),
        ({"kv_memory_share": 0.5, "max_total_tokens": 64}, "kv_memory_share"),
        *(({"draft_model": value, "drafter": "model"}, "draft_model") for value in ("", {}, 3, [], False)),
        ({"draft_model": 3}, "draft_model"),
        ({"max_adapters_on_device": 10**12}, "max_adapters_on_device"),
    ],
    ids=str,
)
def test_an_option_that_nothing_could_serve_is_refused_before_a_model_is_looked_for(
    options: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValueError, match=f"^{field}="):
        LLM(NOWHERE, **options)
