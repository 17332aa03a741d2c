"""Log-probabilities in the shapes of the endpoints, and tokens as they show them: their text, bytes and offsets."""

import codecs
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

from nanoinfer.grammars.vocabulary import byte_letters
from nanoinfer.requests.tokenizer import REPLACEMENT, Tokenizer, token_text

LEAST = -9999.0  # instead of minus infinity, which JSON cannot write
Entry = dict[int, float]  # the sampled token first, then the likeliest ones
Bytes = bytes  # inside the class, `bytes` is a method
Named = tuple[str, bytes, bool]


class TokenNames:
    """The tokens of one tokenizer. Without one, a token's name is its id. `special`: the tokens that are no text."""

    def __init__(self, tokenizer: Tokenizer | None, special: frozenset[int]):
        self._tokenizer, self._special = tokenizer, special
        self._known: dict[int, Named] = {}

    def text(self, token: int) -> str:
        """The token's text; if it is only a part of a character, its bytes, as OpenAI writes them: `bytes:\\xe2\\x80`."""
        return self._named(token)[0]

    def bytes(self, token: int) -> Bytes:
        """The token's bytes."""
        return self._named(token)[1]

    def is_text(self, token: int) -> bool:
        """False for a special token, which is not in the text."""
        return self._named(token)[2]

    def _named(self, token: int) -> Named:
        if (named := self._known.get(token)) is None:
            named = self._known[token] = self._name(token)
        return named

    def _name(self, token: int) -> Named:
        if self._tokenizer is None:
            return str(token), str(token).encode(), True
        text, is_text = token_text(self._tokenizer, [token]), token not in self._special
        spelled = self._spelled_bytes(token) if REPLACEMENT in text else None
        if spelled is None:
            return text, text.encode(), is_text
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled), spelled, is_text

    def _spelled_bytes(self, token: int) -> Bytes | None:
        """The bytes of a token that is part of a character, as byte-level BPE or SentencePiece spells them."""
        assert self._tokenizer is not None
        name = self._tokenizer.hf_tokenizer.convert_ids_to_tokens(token)
        if not isinstance(name, str):
            return None
        if len(name) == len("<0x00>") and name.startswith("<0x"):
            return Bytes.fromhex(name[3:5])
        letters = byte_letters()
        return Bytes(map(letters.__getitem__, name)) if set(name) <= letters.keys() else None


class Offsets:
    """Where in a text its tokens begin, in characters.

    `shows_special`: special tokens are in the text. `prompt`, `prompt_text`: what the text begins with, where a prompt is
    echoed. Its special tokens are in the text if the client wrote them; those that a tokenizer adds come before them. Its
    first word may be without the space that its token has.
    """

    def __init__(
        self, names: TokenNames, shows_special: bool = False, prompt: Sequence[int] = (), prompt_text: str = ""
    ):
        self._names, self._shows_special, self._at = names, True, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._hidden = Counter(token for token in prompt if not names.is_text(token))
        for token in self._hidden:
            self._hidden[token] -= prompt_text.count(names.text(token))
        begin_at = [self._step(token) for token in prompt]
        surplus = max(self._at - len(prompt_text), 0)
        self._of_prompt = [max(at - surplus, 0) for at in reversed(begin_at)]  # those that were not asked for yet
        self._shows_special, self._at = shows_special, len(prompt_text)
        self._hidden.clear()
        self._decoder.reset()

    def next(self, token: int) -> int:
        """Where `token`, the next one, begins."""
        return self._of_prompt.pop() if self._of_prompt else self._step(token)

    def _step(self, token: int) -> int:
        at = self._at
        if self._hidden[token] > 0:
            self._hidden[token] -= 1
        elif self._shows_special or self._names.is_text(token):
            self._at += len(self._decoder.decode(self._names.bytes(token)))
        return at


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
