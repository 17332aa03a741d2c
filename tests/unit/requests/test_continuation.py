"""A request that another engine has begun goes on as if this one had sampled its first tokens, too."""

from dataclasses import replace
from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.errors import InvalidRequestError
from nanoinfer.outputs import RequestOutput, StreamPiece
from nanoinfer.requests.pieces import PieceReader
from nanoinfer.requests.request import Request

PROMPT = "Once upon a time, there was a little fox"
PARAMS = {
    "greedy": SamplingParams(max_new_tokens=12, temperature=0),
    "sampled": SamplingParams(max_new_tokens=12, seed=7),
    "penalties": SamplingParams(max_new_tokens=12, seed=3, frequency_penalty=1.5, repetition_penalty=1.3),
    "log-probabilities": SamplingParams(max_new_tokens=12, seed=5, logprobs=2),
    "a stop string across pieces": SamplingParams(max_new_tokens=40, temperature=0, stop=["the park", " day he"]),
    "a least number of tokens": SamplingParams(max_new_tokens=12, seed=2, min_new_tokens=10),
    "a grammar": SamplingParams(max_new_tokens=24, seed=4, regex="[a-z]{3,9}( [a-z]{2,5}){1,4}"),
    "a choice": SamplingParams(max_new_tokens=24, seed=4, choice=[" happy and merry", " sad and lonely"]),
}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("story", max_total_tokens=2048, max_running_requests=4)


def run(llm: LLM, request: Request) -> tuple[list[StreamPiece], RequestOutput]:
    """Its pieces, one per pass, and its last output."""
    group = llm.engine.prepare(request)
    reader, pieces = PieceReader(group), list[StreamPiece]()
    llm.engine.submit(group)
    while not group.finished:
        llm.engine.step()
        pieces += reader.read()
    llm.engine.check_integrity()
    return pieces, group.output()


def joined(pieces: list[StreamPiece]) -> tuple[Any, ...]:
    text, tokens = "".join(piece.text for piece in pieces), [token for piece in pieces for token in piece.token_ids]
    return text, tokens, pieces[-1].finish_reason, pieces[-1].stop_reason


def logprobs_of(pieces: list[StreamPiece]) -> list[dict[int, float]]:
    return [entry for piece in pieces for entry in piece.logprobs or ()]


@pytest.mark.parametrize("kind", PARAMS)
def test_what_two_engines_give_together_is_what_one_gives_alone(llm: LLM, kind: str) -> None:
    request = Request(PROMPT, PARAMS[kind])
    alone, whole = run(llm, request)
    assert len(whole.token_ids) == len(alone) > 2
    for cut in range(1, len(alone)):
        begun = [token for piece in alone[:cut] for token in piece.token_ids]
        rest, output = run(llm, replace(request, output_ids=begun))
        assert joined(alone[:cut] + rest) == joined(alone), f"cut after {cut} tokens"
        close = [pytest.approx(entry, abs=1e-4) for entry in logprobs_of(alone)]
        assert logprobs_of(alone[:cut] + rest) == close, f"cut after {cut} tokens"
        assert (output.text, output.token_ids) == (whole.text, whole.token_ids)
        assert rest[0].prompt_tokens == whole.prompt_tokens
        assert rest[0].cached_tokens <= whole.prompt_tokens


def test_the_known_output_is_found_in_the_cache_where_it_is(llm: LLM) -> None:
    params = SamplingParams(max_new_tokens=12, temperature=0)
    _, whole = run(llm, Request(PROMPT, params))
    before = llm.engine.stats().prompt_tokens, llm.engine.stats().cached_tokens
    _, output = run(llm, Request(PROMPT, params, output_ids=whole.token_ids[:6]))
    after = llm.engine.stats().prompt_tokens, llm.engine.stats().cached_tokens
    assert output.cached_tokens == output.prompt_tokens == after[0] - before[0] == after[1] - before[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_ids": [5] * 12}, "ends with token 11 of 12"),
        ({"output_ids": [5, 6], "params": SamplingParams(stop_token_ids=[5])}, "ends with token 0 of 2"),
        ({"output_ids": [5, 6], "params": SamplingParams(regex="[0-9]+")}, "ends with token 0 of 2"),
    ],
)
def test_an_output_that_cannot_be_continued_is_refused(llm: LLM, changes: dict[str, Any], message: str) -> None:
    request = replace(Request(PROMPT, SamplingParams(max_new_tokens=12)), **changes)
    with pytest.raises(InvalidRequestError, match=f"^prompt: output_ids: .*{message}"):
        llm.engine.prepare(request)
    assert not llm.engine.has_unfinished()
