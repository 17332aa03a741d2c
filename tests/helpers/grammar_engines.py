"""Engines for requests with grammars.

Their model counts: greedily, the token after t is t + 1, if it is allowed, and else the first that is. A token is an ASCII
character.
"""

from typing import Any

from nanoinfer import Engine, RequestOutput
from tests.helpers.engines import assert_all_free, finish, greedy, make_engine

EOS = 3


def engine_with(**options: Any) -> Engine:
    return make_engine(eos=[EOS], **options)


def one(engine: Engine, prompt: str = "a", **fields: Any) -> RequestOutput:
    request_id = engine.add_request(prompt, greedy(**{"max_new_tokens": 20, **fields}))
    output = finish(engine)[request_id]
    assert_all_free(engine)
    return output
