"""Log-probabilities in the shapes of the two endpoints."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from nanoinfer.server.token_names import Offsets, TokenNames

LEAST = -9999.0  # instead of minus infinity, which JSON cannot write
Entry = dict[int, float]  # the sampled token first, then the likeliest ones


def entries_of_prompt(
    tokens: Sequence[int],
    logprobs: Sequence[float | None] | None,
    likeliest: Sequence[Entry | None] | None,
    count: int,
) -> list[Entry | None]:
    """One entry per token of a prompt, whose `logprobs` and, if `count` is not 0, `likeliest` tokens are those of its
    RequestOutput: the token itself, then the `count` likeliest at its position. None for the first: it follows nothing."""
    assert logprobs is not None, "asked for with the request"
    tops = likeliest if count and likeliest is not None else [None] * len(tokens)
    return [
        None if logprob is None else {token: logprob, **dict(islice((top or {}).items(), count))}
        for token, logprob, top in zip(tokens, logprobs, tops, strict=True)
    ]


def completion_logprobs(
    names: TokenNames, offsets: Offsets, tokens: Sequence[int], entries: Sequence[Entry | None], count: int
) -> dict[str, Any]:
    """Four lists with one item per token. An entry is None for a prompt's first token, which follows nothing. `count`: how
    many likeliest tokens were asked for. With 0, `top_logprobs` are null, so that nobody takes the token itself for one."""
    return {
        "tokens": [names.text(token) for token in tokens],
        "token_logprobs": [
            None if entry is None else max(entry[token], LEAST) for token, entry in zip(tokens, entries, strict=True)
        ],
        "top_logprobs": [_by_text(names, entry) if entry is not None and count else None for entry in entries],
        "text_offset": [offsets.next(token) for token in tokens],
    }


def chat_logprobs(names: TokenNames, entries: Sequence[Entry], count: int) -> dict[str, Any]:
    """`content`: one object per token, with its `count` likeliest alternatives."""
    return {"content": [_chat_entry(names, entry, count) for entry in entries], "refusal": None}


def _chat_entry(names: TokenNames, entry: Entry, count: int) -> dict[str, Any]:
    (token, logprob), *_ = entry.items()
    likeliest = sorted(entry.items(), key=lambda item: -item[1])[:count]
    return {**_one(names, token, logprob), "top_logprobs": [_one(names, *each) for each in likeliest]}


def _one(names: TokenNames, token: int, logprob: float) -> dict[str, Any]:
    return {"token": names.text(token), "logprob": max(logprob, LEAST), "bytes": list(names.bytes(token))}


def _by_text(names: TokenNames, entry: Entry) -> dict[str, float]:
    """By text, the likeliest first. Of two tokens with the same text, the likelier one."""
    found: dict[str, float] = {}
    for token, logprob in sorted(entry.items(), key=lambda item: -item[1]):
        found.setdefault(names.text(token), max(logprob, LEAST))
    return found


def vllm_entries(names: TokenNames, entries: Sequence[Entry | None]) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: at each token's position, log-probabilities by token id."""
    return [
        None
        if entry is None
        else {
            str(token): {"logprob": max(value, LEAST), "decoded_token": names.text(token)}
            for token, value in entry.items()
        }
        for entry in entries
    ]
