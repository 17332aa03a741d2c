"""What the grammar of a format makes a model write is read as calls that the schemas allow, in every format."""

import json
import random
from collections import Counter
from copy import copy
from typing import Any

import jsonschema
import numpy as np
import pytest

from nanoinfer.requests.tool_calls.gptoss import CHANNELS
from nanoinfer.requests.tool_calls.registry import CALL_FORMATS
from nanoinfer.requests.tool_calls.reply import ReplyParser
from nanoinfer.sampling.grammar.compiler import Compiler, Grammar, Refusal
from nanoinfer.sampling.grammar.vocabulary import Vocabulary
from tests.helpers.grammars import EOS, random_output, story_tokenizer
from tests.helpers.random_grammars import random_schema
from tests.unit.requests.test_call_formats import FORMATS
from tests.unit.requests.test_tool_calls import calls_of, read, text_of

SEEDS = 10  # of each format, which has its own


def parameters(rng: np.random.Generator) -> dict[str, Any]:
    names = ["a", "b-1", "c.d"][: int(rng.integers(0, 4))]
    required = [name for name in names if rng.random() < 0.5]
    return {"type": "object", "properties": {name: random_schema(rng, 1) for name in names}, "required": required}


@pytest.mark.parametrize("name", FORMATS)
def test_what_must_be_called_is_read_as_calls_that_the_schemas_allow(name: str) -> None:
    tokenizer: Any = copy(story_tokenizer())
    tokenizer.tool_call_parser = name
    compiler = Compiler(Vocabulary(tokenizer, len(tokenizer.hf_tokenizer), [EOS]))
    seen = Counter[str]()
    first = SEEDS * [*FORMATS].index(name)
    for seed in range(first, first + SEEDS):
        rng, chance = np.random.default_rng(seed), random.Random(seed)
        functions = {"f": parameters(rng), "get-it": parameters(rng)}
        try:
            grammar = Grammar("tool_calls", json.dumps([functions, seed % 2 == 0]))
            compiled = compiler.compile(grammar)
        except Refusal as refusal:
            seen[f"refused: {str(refusal).rpartition(': ')[2]}"] += 1
            continue
        for _ in range(4):
            output = random_output(compiled.matcher(frozenset([EOS])), chance, most=300)
            if output is None:
                continue
            text = output.decode()
            cuts = [chance.randrange(len(text) + 1) for _ in range(9)]
            parser = ReplyParser(FORMATS[name], CHANNELS if name == "gptoss" else None, schemas=functions)
            parts = read(parser, text, cuts)
            calls = calls_of(parts)
            assert text_of(parts) == "", text
            assert len(calls) == 1 or (seed % 2 == 0 and len(calls) > 1), text
            for called, arguments in calls:
                jsonschema.validate(json.loads(arguments), functions[called])
                seen[called] += 1
            seen["several"] += len(calls) > 1
    assert seen["f"] > 1, seen
    assert seen["get-it"] > 1, seen
    assert seen["several"] or name == "gptoss", seen
    refused = {each for each in seen if each.startswith("refused")}
    wanted = {"refused: cannot be demanded in this model's tool-call format"} if name == "qwen3_coder" else set()
    assert refused == wanted
    assert [each.name for each in CALL_FORMATS] == [*FORMATS]
