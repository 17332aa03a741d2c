"""Tokens as log-probabilities show them: their text and their bytes."""

import codecs
from collections.abc import Sequence
from functools import cached_property

from nanoinfer.grammars.vocabulary import byte_letters
from nanoinfer.requests.token_text import token_text
from nanoinfer.requests.tokenizer import REPLACEMENT, Tokenizer

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
        named = self._known.get(token)
        if named is None:
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
        if all(letter in self._letters for letter in name):
            return Bytes(self._letters[letter] for letter in name)
        return None

    @cached_property
    def _letters(self) -> dict[str, int]:
        return byte_letters()


class Offsets:
    """Where in a text its tokens begin, in characters.

    `shows_special`: special tokens are in the text. `prompt`, `prompt_text`: what the text begins with, where a prompt is
    echoed. Its special tokens are not in the text, and its first word may be without the space that its token has.
    """

    def __init__(
        self, names: TokenNames, shows_special: bool = False, prompt: Sequence[int] = (), prompt_text: str = ""
    ):
        self._names, self._shows_special, self._at = names, False, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        begin_at = [self._step(token) for token in prompt]
        surplus = max(self._at - len(prompt_text), 0)
        self._of_prompt = [max(at - surplus, 0) for at in reversed(begin_at)]  # those that were not asked for yet
        self._shows_special, self._at = shows_special, len(prompt_text)
        self._decoder.reset()

    def next(self, token: int) -> int:
        """Where `token`, the next one, begins."""
        return self._of_prompt.pop() if self._of_prompt else self._step(token)

    def _step(self, token: int) -> int:
        at = self._at
        if self._shows_special or self._names.is_text(token):
            self._at += len(self._decoder.decode(self._names.bytes(token)))
        return at
