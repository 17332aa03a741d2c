"""What generation_config.json says about sampling holds where a request says nothing, whichever way it comes."""

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM, AsyncEngine, InvalidRequestError, SamplingParams, UnsupportedModelError
from nanoinfer.llm import make_engine
from nanoinfer.model.loader import load_model
from nanoinfer.server import make_app
from tests.helpers.checkpoints import edited
from tests.helpers.engines import finish
from tests.helpers.loading import PROMPT, Checkpoint
from tests.helpers.servers import ask
from tests.helpers.waiting import run

SAID = {"temperature": 2.0, "top_k": 30, "top_p": 0.9, "min_p": 0.001, "repetition_penalty": 1.3}
LENGTH = {"max_new_tokens": 12, "seed": 5}
# What a request gives, and what it is answered as if it had given.
REQUESTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, SAID),
    ({"temperature": 1.0}, {**SAID, "temperature": 1.0}),
    ({"temperature": 0}, {**SAID, "temperature": 0}),
    ({"top_k": -1, "top_p": 1.0, "min_p": 0.0}, {"temperature": 2.0, "repetition_penalty": 1.3}),
    ({"repetition_penalty": 1}, {**SAID, "repetition_penalty": 1}),
    ({"temperature": 1.0, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1.0}, {}),
]


def saying(said: object, checkpoint: Checkpoint, folder: Path) -> Path:
    """A checkpoint whose generation_config.json says this."""
    path = edited(checkpoint("llama"), folder / "model")
    (path / "generation_config.json").write_text(json.dumps(said))
    return path


@pytest.fixture(scope="module")
def path(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    said = {**SAID, "do_sample": False, "max_length": 20, "temperature_last": True}
    return saying(said, checkpoint, tmp_path_factory.mktemp("said"))


@pytest.fixture(scope="module")
def llm(path: Path) -> LLM:
    return LLM(path, max_total_tokens=256)


@pytest.fixture(scope="module")
def plain(path: Path) -> LLM:
    return LLM(path, max_total_tokens=256, generation_config="none")


def generated(llm: LLM, params: Any) -> list[int]:
    return llm.generate(PROMPT, params)[0].token_ids


def streamed(llm: LLM, params: Any) -> list[int]:
    return [token for piece in llm.stream(PROMPT, params) for token in piece.token_ids]


def awaited(llm: LLM, params: Any) -> list[int]:
    async def ask() -> list[int]:
        return (await AsyncEngine(llm).generate(PROMPT, params)).token_ids

    return run(ask)


def stepped(llm: LLM, params: Any) -> list[int]:
    engine = make_engine(llm.model, llm.config)
    rid = engine.add_request(PROMPT, params)
    return finish(engine)[rid].token_ids


def served(llm: LLM, params: dict[str, Any]) -> list[int]:
    """Fields that are not given are null."""
    names = {"max_new_tokens": "max_tokens"}
    body = {**dict.fromkeys(SAID), **{names.get(name, name): value for name, value in params.items()}}
    body |= {"model": str(llm.model.path), "prompt": PROMPT, "return_token_ids": True}
    token_ids: list[int] = ask(make_app(llm), "POST", "/v1/completions", json=body).json()["choices"][0]["token_ids"]
    return token_ids


def served_by_generate(llm: LLM, params: dict[str, Any]) -> list[int]:
    body = {"input_ids": PROMPT, "sampling_params": {**dict.fromkeys(SAID), **params}}
    token_ids: list[int] = ask(make_app(llm), "POST", "/generate", json=body).json()["output_ids"]
    return token_ids


@pytest.mark.parametrize(("given", "meant"), REQUESTS)
@pytest.mark.parametrize("way", [generated, streamed, awaited, stepped, served, served_by_generate])
def test_a_request_is_answered_as_if_it_had_given_them(
    way: Callable[[LLM, Any], list[int]], given: dict[str, Any], meant: dict[str, Any], llm: LLM, plain: LLM
) -> None:
    assert way(llm, {**given, **LENGTH}) == generated(plain, {**meant, **LENGTH})


def test_what_is_compared_differs(plain: LLM) -> None:
    assert len({str(generated(plain, {**meant, **LENGTH})) for _, meant in REQUESTS}) == len(REQUESTS)


@pytest.mark.parametrize(
    "sent", [lambda params: replace(params, seed=5), lambda params: pickle.loads(pickle.dumps(params)), copy.copy]
)
def test_params_know_what_they_were_given_wherever_they_go(
    sent: Callable[[SamplingParams], SamplingParams], llm: LLM, plain: LLM
) -> None:
    for given, meant in REQUESTS:
        params = SamplingParams(**given, **LENGTH)
        assert sent(params) == params
        assert generated(llm, sent(params)) == generated(plain, {**meant, **LENGTH})
    changed = replace(sent(SamplingParams(**LENGTH)), temperature=1.0)
    assert generated(llm, changed) == generated(plain, {**SAID, "temperature": 1.0, **LENGTH})


def test_without_params_they_hold_too(path: Path) -> None:
    with_seed, without = (LLM(path, max_total_tokens=256, random_seed=3, generation_config=c) for c in ("auto", "none"))
    assert generated(with_seed, None) == generated(without, SAID)
    assert (SamplingParams().temperature, SamplingParams().top_k) == (1.0, -1)
    with pytest.raises(ValueError, match="generation_config='model'"):
        LLM("story", generation_config="model")


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ({"do_sample": True, "temperature": 0.6, "top_k": 20}, {"temperature": 0.6, "top_k": 20}),
        ({"temperature": None, "top_p": 1}, {"top_p": 1.0}),
        ({"repetition_penalty": 1.05, "min_p": 0.1, "typical_p": 0.9}, {"repetition_penalty": 1.05, "min_p": 0.1}),
        ({"top_k": 0}, {"top_k": -1}),
    ],
)
def test_what_is_read(said: dict[str, Any], read: dict[str, Any], checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = saying(said, checkpoint, tmp_path)
    assert load_model(path).sampling_defaults == read
    for off in ("none", "vllm", None):
        assert load_model(path, generation_config=off).sampling_defaults == {}


@pytest.mark.parametrize(("name", "value"), [("temperature", -1), ("temperature", "0.6"), ("top_k", 1.5)])
def test_a_wrong_value_is_named_and_left_out_on_request(
    name: str, value: object, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = saying({name: value}, checkpoint, tmp_path)
    with pytest.raises(UnsupportedModelError, match=f"generation_config.json: {name}="):
        LLM(path)
    assert LLM(path, max_total_tokens=64, generation_config="none").model.sampling_defaults == {}


def test_several_completions_where_the_default_is_greedy(checkpoint: Checkpoint, tmp_path: Path) -> None:
    llm = LLM(saying({"temperature": 0}, checkpoint, tmp_path), max_total_tokens=256)
    with pytest.raises(InvalidRequestError, match="n=3: must be 1 with temperature=0"):
        llm.generate(PROMPT, {"n": 3})
    body = {"input_ids": PROMPT, "sampling_params": {"n": 3, "max_new_tokens": 4}}
    answers = ask(make_app(llm), "POST", "/generate", json=body).json()
    assert [each["output_ids"] for each in answers] == [generated(llm, {"max_new_tokens": 4})] * 3
