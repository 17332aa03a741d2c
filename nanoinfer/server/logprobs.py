"""Log-probabilities in the shapes of the endpoints, and tokens as they show them: their text, bytes and offsets."""

import codecs
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from nanoinfer.outputs import RequestOutput, StreamPiece
from nanoinfer.requests.tokenizer import REPLACEMENT, Tokenizer, token_text
from nanoinfer.sampling.grammar.vocabulary import byte_letters

LEAST = -9999.0  # instead of minus infinity, which JSON cannot write
Entry = dict[int, float]  # the sampled token first, then the likeliest ones


class TokenName(NamedTuple):
    """`text`: if the token is only a part of a character, its bytes, as OpenAI writes them: `bytes:\\xe2\\x80`. `data`: its
    bytes. `is_text`: False for a special token, which is not in the text."""

    text: str
    data: bytes
    is_text: bool


class TokenNames(dict[int, TokenName]):
    """The tokens of one tokenizer, named when they are asked for. Without one, a token's name is its id. `special`: the
    tokens that are no text."""

    def __init__(self, tokenizer: Tokenizer | None, special: frozenset[int]):
        super().__init__()
        self._tokenizer, self._special = tokenizer, special

    def __missing__(self, token: int) -> TokenName:
        if self._tokenizer is None:
            text, spelled = str(token), None
        else:
            text = token_text(self._tokenizer, [token])
            spelled = _spelled_bytes(self._tokenizer, token) if REPLACEMENT in text else None
        if spelled is not None:
            text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)
        name = self[token] = TokenName(text, text.encode() if spelled is None else spelled, token not in self._special)
        return name


def _spelled_bytes(tokenizer: Tokenizer, token: int) -> bytes | None:
    """The bytes of a token that is part of a character, as byte-level BPE or SentencePiece spells them."""
    name = tokenizer.hf_tokenizer.convert_ids_to_tokens(token)
    if not isinstance(name, str):
        return None
    if len(name) == len("<0x00>") and name.startswith("<0x"):
        return bytes.fromhex(name[3:5])
    letters = byte_letters()
    return bytes(map(letters.__getitem__, name)) if set(name) <= letters.keys() else None


class Offsets:
    """Where in a text its tokens begin, in characters.

    `shows_special`: special tokens are in the text. `prompt`, `prompt_text`: what the text begins with, where a prompt is
    echoed. Its special tokens are in the text if the client wrote them; those that a tokenizer adds come before them. Its
    first word may be without the space that its token has.
    """

    def __init__(
        self, names: TokenNames, shows_special: bool = False, prompt: Sequence[int] = (), prompt_text: str = ""
    ):
        self._names, self._at = names, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        begin_at = [self._step(token, names[token].text in prompt_text) for token in prompt]
        surplus = max(self._at - len(prompt_text), 0)
        self._of_prompt = [max(at - surplus, 0) for at in reversed(begin_at)]  # those that were not asked for yet
        self._shows_special, self._at = shows_special, len(prompt_text)
        self._decoder.reset()

    def next(self, token: int) -> int:
        """Where `token`, the next one, begins."""
        return self._of_prompt.pop() if self._of_prompt else self._step(token, self._shows_special)

    def _step(self, token: int, is_shown: bool) -> int:
        at, name = self._at, self._names[token]
        if is_shown or name.is_text:
            self._at += len(self._decoder.decode(name.data))
        return at


def prompt_entries(tokens: Sequence[int], found: RequestOutput | StreamPiece, count: int) -> list[Entry | None]:
    """One entry per token of a prompt, from what was `found` with it: the token itself, then the `count` likeliest at its
    position. None for the first: it follows nothing."""
    assert found.prompt_logprobs is not None, "asked for with the request"
    tops = found.prompt_top_logprobs if count and found.prompt_top_logprobs is not None else [None] * len(tokens)
    return [
        None if logprob is None else {token: logprob, **dict(islice((top or {}).items(), count))}
        for token, logprob, top in zip(tokens, found.prompt_logprobs, tops, strict=True)
    ]


def completion_logprobs(
    names: TokenNames, offsets: Offsets, tokens: Sequence[int], entries: Sequence[Entry | None], count: int
) -> dict[str, Any]:
    """Four lists with one item per token. An entry is None for a prompt's first token, which follows nothing. `count`: how
    many likeliest tokens were asked for. With 0, `top_logprobs` are null, so that nobody takes the token itself for one."""
    return {
        "tokens": [names[token].text for token in tokens],
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
    return {"token": names[token].text, "logprob": max(logprob, LEAST), "bytes": list(names[token].data)}


def _by_text(names: TokenNames, entry: Entry) -> dict[str, float]:
    """By text, the likeliest first. Of two tokens with the same text, the likelier one."""
    found: dict[str, float] = {}
    for token, logprob in sorted(entry.items(), key=lambda item: -item[1]):
        found.setdefault(names[token].text, max(logprob, LEAST))
    return found


def prompt_logprobs(names: TokenNames, output: RequestOutput, count: int) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs` of a choice: at each token's position, `count` likeliest tokens' by token id."""

    def shown(entry: Entry) -> dict[str, Any]:
        return {str(t): {"logprob": max(value, LEAST), "decoded_token": names[t].text} for t, value in entry.items()}

    entries = prompt_entries(output.prompt_token_ids, output, count)
    return [None if entry is None else shown(entry) for entry in entries]
