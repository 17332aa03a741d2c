"""Structured output with the tokenizers of real models, which flag many more special tokens than they name."""

import dataclasses
import json
import re

import jsonschema
import pytest

from nanoinfer import Engine, SamplingParams
from nanoinfer.config import EngineConfig
from nanoinfer.frontends.llm import make_engine
from nanoinfer.model.random_model import random_model
from nanoinfer.requests.tokenizer import IncrementalDetokenizer, Tokenizer
from tests.helpers.engines import finish
from tests.helpers.real_tokenizers import real_tokenizer

pytestmark = pytest.mark.slow
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["straße", "😀", "a b"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 500}, "maxItems": 3},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}
REGEX = r" [a-z ]{3,9}: (é|中|👩)[0-9]{2}"


@pytest.fixture(scope="module", params=["llama3_1", "llama3", "gemma3", "qwen3", "deepseek_v3", "gptoss"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    read = Tokenizer.from_pretrained(real_tokenizer(request.param))
    assert read is not None
    return read


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer) -> Engine:
    """Random weights behind a real tokenizer."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = random_model(vocab_size=len(tokenizer.hf_tokenizer), num_key_value_heads=1, **sizes)
    return make_engine(dataclasses.replace(model, tokenizer=tokenizer), EngineConfig(8, 4096, 512))


def outputs(engine: Engine, **fields: object) -> list[str]:
    """Texts of random outputs, each of which must be what transformers decodes the tokens to."""
    engine.add_request("Hi:", SamplingParams(max_new_tokens=200, temperature=1.0, n=8, **fields))  # type: ignore[arg-type]
    (output,) = finish(engine).values()
    for completion in output.outputs:
        ids, decode = completion.token_ids, engine.builder.tokenizer.hf_tokenizer.decode
        assert completion.finish_reason == "stop"
        assert completion.text == decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return [completion.text for completion in output.outputs]


def test_json_schemas_expressions_and_choices_hold(engine: Engine) -> None:
    for text in outputs(engine, json_schema=SCHEMA):
        jsonschema.validate(json.loads(text), SCHEMA)
    for text in outputs(engine, regex=REGEX):
        assert re.fullmatch(REGEX, text)
    assert {*outputs(engine, choice=["yes", " no", "中 é"])} <= {"yes", " no", "中 é"}


def test_no_special_token_passes_as_text(engine: Engine, tokenizer: Tokenizer) -> None:
    flagged = {i for i, token in tokenizer.hf_tokenizer.added_tokens_decoder.items() if token.special}
    names = [tokenizer.decode([i], skip_special_tokens=False) for i in sorted(flagged)]
    assert set(outputs(engine, choice=names)) <= {*names}  # spelled with ordinary tokens


def test_text_comes_out_token_by_token_as_it_is_decoded_at_once(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(" Schöne Grüße, 日本語 👩‍🚀!\n\tx = [1, 2]  # ok", add_special_tokens=False) * 3
    for cut in range(0, len(ids), 3):
        detokenizer = IncrementalDetokenizer(tokenizer, ids[:cut])
        out = "".join(detokenizer.add(token) for token in ids[cut:]) + detokenizer.flush()
        assert tokenizer.decode(ids[:cut]).rstrip("\ufffd") + out == tokenizer.decode(ids)
