"""Vocabulary: the bytes of every token, which a grammar needs to say which tokens may come next."""

import json
import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from nanoinfer.requests.tokenizer import REPLACEMENT

CHECKED_TOGETHER = 500  # tokens, whose bytes are compared with the text that the tokenizer decodes them to
# A text is encoded behind one of these where the tokenizer changes the beginning of a text.
ANCHORS = ("\x02", "a", " ")


class Vocabulary:
    """The tokens of a model as bytes.

    `tokens`: one entry per token id, `size` in all, empty for an id that stands for no text; then one more, which no model
    samples: `end`, by which the compiler of grammars says that the output is complete. `special`: ids of special tokens,
    which no text matches; the model's end tokens, `end_ids`, are among them.

    ValueError when the bytes of the tokens cannot be found out.
    """

    def __init__(self, tokenizer: Any, size: int, end_ids: Sequence[int] = ()):
        self.tokenizer, self.size, self.end = tokenizer, size, size
        self.special = frozenset(token for token in (*tokenizer.special_ids, *end_ids) if 0 <= token < size)
        spelled = _spelled_bytes(getattr(tokenizer, "hf_tokenizer", None), size)
        self.tokens = _decoded_bytes(tokenizer, size, self.special) if spelled is None else spelled
        _check(tokenizer, self.tokens, self.special)
        self.tokens.append(b"<end of output>")

    @property
    def words(self) -> int:
        """The number of 32-bit words in a bit mask over all tokens and `end`."""
        return len(self.tokens) // 32 + (len(self.tokens) % 32 > 0)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens as a grammar reads it: their bytes, none of which is left out or added. Special tokens are not
        in it unless `skip_special_tokens=False`."""
        shown = (token for token in token_ids if not skip_special_tokens or token not in self.special)
        return b"".join(self.tokens[token] for token in shown).decode(errors="replace")

    @cached_property
    def _special_texts(self) -> dict[bytes, int]:
        return {self.tokens[token]: token for token in sorted(self.special)}

    def lark_tag(self, tag: str) -> str:
        """A tag as a Lark grammar has it: its token if that is special, or else its text."""
        token = self._special_texts.get(tag.encode())
        return json.dumps(tag, ensure_ascii=False) if token is None else f"<[{token}]>"

    @cached_property
    def begins_with_digit(self) -> np.ndarray:
        """A bit mask, int32 `[words]`: the tokens whose first character is one of 0 to 9."""
        return self.bit_mask([i for i, token in enumerate(self.tokens) if token[:1].isdigit()])

    def bit_mask(self, token_ids: Sequence[int]) -> np.ndarray:
        """A bit mask, int32 `[words]`, with the bits of `token_ids` set."""
        mask = np.zeros(self.words, dtype=np.uint32)
        for token in token_ids:
            mask[token // 32] |= np.uint32(1 << token % 32)
        return mask.view(np.int32)

    @cached_property
    def compiled(self) -> Any:
        """The vocabulary as llguidance keeps it: a prefix tree of all tokens."""
        from llguidance import LLTokenizer

        wrapper: Any = _ForLLGuidance(self)
        made: Any = LLTokenizer(wrapper)
        return made

    def encode(self, text: bytes) -> list[int]:
        """The tokens that the tokenizer would write `text` with in the middle of an output. If that cannot be found out,
        or the tokenizer fails at it, the longest token each time."""
        try:
            decoded = text.decode()
            for before in ("", *ANCHORS):
                start = self._encode(before) if before else []
                ids = self._encode(before + decoded)
                if ids[: len(start)] == start and self._bytes_of(ids[len(start) :]) == text:
                    return ids[len(start) :]
        except Exception:  # bytes that are no text, or text that this tokenizer cannot encode; they raise many kinds
            pass
        return self._longest_tokens(text)

    def _encode(self, text: str) -> list[int]:
        hf_tokenizer = getattr(self.tokenizer, "hf_tokenizer", None)
        if hf_tokenizer is None:
            return list(self.tokenizer.encode(text))
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _longest_tokens(self, text: bytes) -> list[int]:
        """`text` from left to right, as the longest token each time; as far as there is one."""
        ids, at = [], 0
        while at < len(text):
            ends = range(min(len(text), at + self._longest), at, -1)
            end = next((end for end in ends if text[at:end] in self._by_bytes), None)
            if end is None:
                break
            ids.append(self._by_bytes[text[at:end]])
            at = end
        return ids

    @cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        ordinary = [i for i in range(self.size) if i not in self.special and self.tokens[i]]
        return {self.tokens[i]: i for i in reversed(ordinary)}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._by_bytes))

    def _bytes_of(self, ids: Sequence[int]) -> bytes | None:
        if any(token >= self.size or token in self.special for token in ids):
            return None
        return b"".join(self.tokens[token] for token in ids)


class _ForLLGuidance:
    """What llguidance asks a tokenizer for.

    It must not keep the vocabulary alive, which owns what llguidance makes of it: Python's garbage collector cannot see
    through objects written in Rust, so such a circle would stay for ever.
    """

    bos_token_id = None
    is_tokenizer_wrapper = True  # by which llguidance knows that it takes text

    def __init__(self, vocabulary: Vocabulary):
        self.eos_token_id = vocabulary.end
        self.tokens = vocabulary.tokens
        self.special_token_ids = [*sorted(vocabulary.special), vocabulary.end]
        self._vocabulary = weakref.ref(vocabulary)

    def __call__(self, text: str) -> list[int]:
        vocabulary = self._vocabulary()
        assert vocabulary is not None, "every matcher has its vocabulary"
        return vocabulary.encode(text.encode())


def _spelled_bytes(hf_tokenizer: Any, size: int) -> list[bytes] | None:
    """The bytes of all tokens of a tokenizer that spells them in one of two known ways; None for any other tokenizer.

    Byte-level BPE writes each byte as one of 256 visible characters. A SentencePiece vocabulary writes a space as "▁" and
    has tokens such as <0x0A> for single bytes.
    """
    backend = getattr(hf_tokenizer, "backend_tokenizer", None)
    decoder = "" if backend is None or backend.decoder is None else repr(backend.decoder)
    if "ByteLevel" in decoder:
        numbers = dict.fromkeys(range(256), 256) | {ord(letter): byte for letter, byte in byte_letters().items()}

        def spell(token: str) -> bytes:
            try:
                return token.translate(numbers).encode("latin-1")
            except UnicodeEncodeError:  # not all of it is such letters
                return token.encode()

    elif "ByteFallback" in decoder or "Metaspace" in decoder:

        def spell(token: str) -> bytes:
            if len(token) == len("<0x00>") and token.startswith("<0x") and token.endswith(">"):
                return bytes.fromhex(token[3:5])
            return token.replace("▁", " ").encode()

    else:
        return None
    assert backend is not None
    tokens = [b""] * size
    for token, i in backend.get_vocab(with_added_tokens=True).items():
        if i < size:
            tokens[i] = spell(token)
    return tokens


def byte_letters() -> dict[str, int]:
    """Character → byte, as byte-level BPE spells them: visible characters of Latin-1 stand for themselves, and the other
    bytes, in order, for the characters from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _decoded_bytes(tokenizer: Any, size: int, special: frozenset[int]) -> list[bytes]:
    """What each token adds to a text that another token begins."""
    tokens = [b""] * size
    ordinary = [i for i in range(size) if i not in special]
    texts = {i: _decode(tokenizer, [i]) for i in ordinary}
    anchors = [i for i in ordinary if texts[i] and REPLACEMENT not in texts[i]]
    if not anchors:
        raise ValueError("the tokenizer has no token that stands for text")
    before = texts[anchors[0]]
    for i in ordinary:
        text = _decode(tokenizer, [anchors[0], i])
        if not text.startswith(before):
            raise ValueError(f"the text of tokens {anchors[0]} and {i} does not begin with that of token {anchors[0]}")
        if REPLACEMENT not in text:  # a token that is part of a character is never allowed: its bytes are not known
            tokens[i] = text[len(before) :].encode()
    return tokens


def _check(tokenizer: Any, tokens: Sequence[bytes], special: frozenset[int]) -> None:
    """ValueError unless the bytes of tokens, put together, are the text that the tokenizer decodes them to."""
    readable = [i for i, token in enumerate(tokens) if i not in special and token and _is_text(token)]
    if not readable:
        raise ValueError("the tokenizer has no token that stands for text")
    for start in range(0, len(readable), CHECKED_TOGETHER):
        ids = [readable[0], *readable[start : start + CHECKED_TOGETHER]]
        # A tokenizer may drop a space at the start of a text.
        text, expected = _decode(tokenizer, ids).lstrip(" "), b"".join(tokens[i] for i in ids).decode().lstrip(" ")
        if text != expected:
            raise ValueError(f"some of tokens {ids[1]}..{ids[-1]} are other text together than one by one")


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    try:
        return str(tokenizer.decode(ids))
    except Exception as error:  # tokenizers raise many kinds
        raise ValueError(f"the tokenizer cannot decode tokens {list(ids[:8])}: {error}") from error


def _is_text(token: bytes) -> bool:
    try:
        token.decode()
    except UnicodeDecodeError:
        return False
    return True
