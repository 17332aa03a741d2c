"""Tokenizer (text to token ids and back, chats) and IncrementalDetokenizer (tokens to text, one token at a time); and the
text of tokens as pictures and traces show it."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nanoinfer.errors import ContextLengthError
from nanoinfer.requests.chat import Messages, render_chat
from nanoinfer.requests.gguf_header import SUFFIX
from nanoinfer.requests.tokenizer_files import read_tokenizer_files
from nanoinfer.requests.tool_calls.reply import ReplyParser, end_of_first_call

TokenIds = Sequence[int] | np.ndarray
REPLACEMENT = "\ufffd"  # what an incomplete UTF-8 sequence decodes to


class Tokenizer:
    """A Hugging Face tokenizer, reduced to what the engine needs. `tool_call_parser`, `reasoning_parser`: names of formats
    in `tool_calls/registry.py`, where the chat template does not say how the model writes."""

    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    _decodes_itself = False  # whether its part in Rust, asked directly, decodes as the whole does

    def __init__(self, hf_tokenizer: Any):
        self.hf_tokenizer = hf_tokenizer
        self.eos_token_id: int | None = hf_tokenizer.eos_token_id
        if (backend := getattr(hf_tokenizer, "backend_tokenizer", None)) is not None:
            backend.no_truncation()  # now, because its first call would do it and could disturb a call in another thread
            backend.no_padding()
        self._decodes_itself = backend is not None and _has_plain_decode(hf_tokenizer)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "Tokenizer | None":
        """The tokenizer of a checkpoint directory or a GGUF file; None if it has none (the model then serves only ids).

        UnsupportedModelError naming the file that cannot be read, or the package needed to read it.
        """
        if Path(path).suffix == SUFFIX:
            from nanoinfer.requests.gguf_tokenizer import read_gguf_tokenizer

            hf_tokenizer = read_gguf_tokenizer(Path(path))
        else:
            hf_tokenizer = read_tokenizer_files(Path(path))
        return None if hf_tokenizer is None else cls(hf_tokenizer)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The tokens that are no text: those that tokenizer.json flags as special, and those that transformers names, which
        are few of them. A model's end tokens are special, too: see `RequestBuilder.special_ids`."""
        hf_tokenizer = getattr(self, "hf_tokenizer", None)
        if hf_tokenizer is None:
            return frozenset()
        flagged = (token for token, added in hf_tokenizer.added_tokens_decoder.items() if added.special)
        return frozenset((*flagged, *hf_tokenizer.all_special_ids))

    @cached_property
    def max_chars_per_token(self) -> int | None:
        """The number of characters of the longest token, for `check_length`; None if there is no vocabulary."""
        hf_tokenizer = getattr(self, "hf_tokenizer", None)
        return None if hf_tokenizer is None else max(map(len, hf_tokenizer.get_vocab()), default=None)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt, including the special tokens (such as the one for the beginning of a text) that the
        tokenizer adds. ValueError when the text cannot be encoded. May be called from several threads.
        """
        try:
            return self.hf_tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]
        except (TypeError, UnicodeError) as error:  # lone surrogates
            raise ValueError("is text that cannot be encoded as UTF-8") from error
        except BaseException as error:
            if not _is_panic(error):
                raise
            raise ValueError(f"the tokenizer fails on this text: {error}") from error

    def decode(self, token_ids: TokenIds, skip_special_tokens: bool = True) -> str:
        """Text of token ids, without special tokens unless `skip_special_tokens=False`. ValueError when a tokenizer written
        in Rust fails.

        Optimisation: a tokenizer in Rust is asked directly if transformers would add nothing to its answer, because what
        transformers does before it asks takes longer than the answer.
        """
        try:
            if self._decodes_itself:
                ids = list(map(int, token_ids))
                return self.hf_tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
            return self.hf_tokenizer.decode(
                token_ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
            )
        except BaseException as error:
            if not _is_panic(error):
                raise
            raise ValueError(f"the tokenizer fails on these tokens: {error}") from error

    def encode_chat(
        self, messages: Messages, template_kwargs: Mapping[str, Any] | None = None, max_tokens: int | None = None
    ) -> list[int]:
        """Token ids of a conversation up to the assistant's next turn; arguments and errors as `render_chat`, `encode`
        and, where `max_tokens` is given, `check_length`."""
        text = render_chat(self.hf_tokenizer, messages, template_kwargs)
        check_length(text, max_tokens, self, "messages")
        try:
            return self.encode(text, add_special_tokens=False)
        except ValueError as error:
            raise ValueError(f"messages: {error}") from error


def check_length(text: str, max_tokens: int | None, tokenizer: Any, name: str = "prompt") -> None:
    """ContextLengthError when the text of `name` is too long for `max_tokens` tokens, the context's, even if all of them
    were the longest that the tokenizer has: tokenizing takes time for every character, minutes for megabytes on one line.
    Costs nothing for short texts."""
    if max_tokens is None or len(text) <= max_tokens:
        return
    longest = getattr(tokenizer, "max_chars_per_token", None)
    if longest is not None and len(text) > max_tokens * longest:
        raise ContextLengthError(
            f"{name}: has {len(text)} characters: must not exceed {max_tokens * longest} (max_context_len={max_tokens} "
            f"tokens of at most {longest} characters)",
            name,
        )


def _is_panic(error: BaseException) -> bool:
    """Whether code written in Rust has failed. What it raises then is no Exception, and is known by its name only."""
    return type(error).__name__ == "PanicException"


def _has_plain_decode(hf_tokenizer: Any) -> bool:
    """Whether a tokenizer decodes as all do that have nothing but a tokenizer.json: as its `backend_tokenizer` does."""
    from transformers import PreTrainedTokenizerFast  # loaded already, by what has made the tokenizer

    made = type(hf_tokenizer)
    return all(getattr(made, name) is getattr(PreTrainedTokenizerFast, name) for name in ("decode", "_decode"))


class IncrementalDetokenizer:
    """Turns the tokens of one request into text, one by one, and finds what ends it: a stop string, or a tool call.

    Text is held back while it is uncertain: a character with missing bytes, or an ending that may be the start of a stop
    string. Text that has been returned never changes.

    `context`: the last prompt tokens. Decoding continues from them, because some tokenizers decode a token differently at
    the start of a text. `stop_found` is the stop string once there is one; the text ends before it, or after it with
    `include_stop`. `special_ids`: the tokens that are no text; None: the tokenizer's. With `skip_special_tokens=False` the
    text has them, too; the one that ends the request is there only if `include_stop` is set as well. One that is itself a
    stop string ends the text wherever it stands, shown or not. `first_call`: finds the first tool call, which is the end.
    """

    CONTEXT_TOKENS = 5

    def __init__(
        self,
        tokenizer: Tokenizer,
        context: TokenIds = (),
        stop: Sequence[str] = (),
        skip_special_tokens: bool = True,
        include_stop: bool = False,
        special_ids: frozenset[int] | None = None,
        first_call: ReplyParser | None = None,
    ):
        self.stop_found: str | None = None
        self.call_found, self._first_call = False, first_call
        self._given = 0  # characters that `first_call` has read
        self._tokenizer, self._stop, self._include_stop = tokenizer, stop, include_stop
        self._special = tokenizer.special_ids if special_ids is None else special_ids
        self._shows_special = not skip_special_tokens
        self._window: list[int] = []  # tokens that are decoded together
        self._whole = 0  # with so many of them, the last character is whole
        self._certain = ""  # what the window's text begins with: it is released already, or the prompt's
        shown = (int(token) for token in reversed(context) if self._shows_special or token not in self._special)
        self._start(list(islice(shown, self.CONTEXT_TOKENS + 6))[::-1])
        self._held = ""  # characters held back because they may begin a stop string

    @property
    def stopped(self) -> bool:
        """True once a stop string was found, or the call that ends the text."""
        return self.stop_found is not None or self.call_found

    def add(self, token_id: int, look_for_stop: bool = True, ends: bool = False) -> str:
        """Add a token and return the text that has become certain. With `look_for_stop=False` stop strings are plain text.

        `ends`: this token is a stop token or an end token, so it is the last.
        """
        if token_id in self._special and (not self._shows_special or (ends and not self._include_stop)):
            return self._pass_over(token_id, look_for_stop)
        self._window.append(token_id)
        text = self._decode(self._window)
        if not text.startswith(self._certain.rstrip(REPLACEMENT)):
            # With byte fallback, one byte more makes a whole run of bytes invalid.
            self._window, self._certain = self._window[self._whole :], ""
            self._whole, text = 0, self._decode(self._window)
        certain = _certain(text)
        if new_text := self._new(certain):
            self._certain = certain
        if not text.endswith(REPLACEMENT):
            self._whole = len(self._window)
        if self._whole > 2 * self.CONTEXT_TOKENS:
            self._start(self._window)
        elif len(self._window) - self._whole > 4 * self.CONTEXT_TOKENS:
            self._shorten()
        return self._up_to_call(self._release(new_text, look_for_stop))

    def flush(self) -> str:
        """Return the text that is still held back; call it after the last token. Empty after a stop string."""
        if self.stopped:
            return ""
        rest = self._held + self._new(self._decode(self._window))
        self._held, self._window, self._certain = "", [], ""
        return rest

    def _up_to_call(self, text: str) -> str:
        """`text` as far as the end of the first call, if that ends the text."""
        if self._first_call is None:
            return text
        self._given += len(text)
        if (end := end_of_first_call(self._first_call, text)) is None:
            return text
        self.call_found = True
        return text[: max(len(text) - (self._given - end), 0)]

    def _pass_over(self, token_id: int, look_for_stop: bool) -> str:
        """Add a special token that is not shown. Only if it is a stop string, there is text: what was held back."""
        if not (self._stop and look_for_stop) or self.stopped:
            return ""
        name = self._tokenizer.decode([token_id], skip_special_tokens=False)
        if name not in self._stop:
            return ""
        text = self.flush()
        self.stop_found = name
        return text

    def _decode(self, tokens: list[int]) -> str:
        if self._shows_special:
            return self._tokenizer.decode(tokens, skip_special_tokens=False)
        return self._tokenizer.decode(tokens)

    def _new(self, text: str) -> str:
        """What the window's `text` has beyond the text that is certain. A prompt may have ended with U+FFFD in place of a
        character that is complete now."""
        known = self._certain
        while not text.startswith(known):
            known = known[:-1]
        return text[len(known) :]

    def _start(self, tokens: list[int]) -> None:
        """Begin a window with the last of `tokens`: with those that end in a whole character, or with the first bytes of
        one. It begins and ends within four tokens, as it has at most four bytes; if it seems not to, bytes are stray.
        """
        size, context = len(tokens), self.CONTEXT_TOKENS
        ends = range(size, max(size - 4, -1), -1)
        spans = ((max(end - length, 0), end) for end in ends for length in range(context, context + 4))
        whole = ((begin, end) for begin, end in spans if not self._decode(tokens[begin:end]).endswith(REPLACEMENT))
        starts = (begin if end == size else end for begin, end in whole)
        self._window = tokens[next(starts, max(size - context - 3, 0)) :]
        self._certain = self._decode(self._window)
        self._whole = 0 if self._certain.endswith(REPLACEMENT) else len(self._window)

    def _shorten(self) -> None:
        """Drop most of a long run of stray bytes from the window. The first stay: with byte fallback, they make the run
        invalid. The last stay: they are what is held back, and enough before it to decode to the same."""
        self._window = self._window[self._whole : self._whole + 4] + self._window[-12:]
        self._whole, self._certain = 0, _certain(self._decode(self._window))

    def _release(self, new_text: str, look_for_stop: bool) -> str:
        text = self._held + new_text
        if self.stopped or not (self._stop and look_for_stop):
            self._held = ""
            return "" if self.stopped else text
        matches = [(at, len(stop), stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if matches:
            at, length, self.stop_found = min(matches)
            self._held = ""
            return text[: at + length * self._include_stop]
        keep = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, wanted: str) -> int:
    """How many of the last characters of `text` may begin `wanted`: the longest suffix that is a proper prefix of it."""
    return next((n for n in range(min(len(text), len(wanted) - 1), 0, -1) if text.endswith(wanted[:n])), 0)


def _certain(text: str) -> str:
    """`text` without the U+FFFD that a character's first bytes, at most three, may have left at its end."""
    return text[: max(len(text.rstrip(REPLACEMENT)), len(text) - 3)]


def token_text(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """The text of tokens as a picture should show it: special tokens by name, and words with their leading space."""
    text = tokenizer.decode(token_ids)
    spell = getattr(getattr(tokenizer, "hf_tokenizer", None), "convert_ids_to_tokens", None)
    if spell is None or len(token_ids) != 1:
        return text
    (name,) = spell(list(token_ids))
    if name and name.startswith("▁"):  # of which the tokenizer leaves a space out at the start of a text
        return name.replace("▁", " ")
    return text or name or ""


def whole_characters(
    tokens: Sequence[int], texts: dict[int, str], decode: Callable[[Sequence[int]], str]
) -> dict[int, str]:
    """Position → text, for positions whose text is not `texts[token]`. If a character consists of several tokens' bytes,
    the last token gets the character, and the others have no text."""
    pieces: dict[int, str] = {}
    incomplete: list[int] = []
    for i, token in enumerate(tokens):
        if not incomplete and REPLACEMENT not in texts[token]:
            continue
        incomplete.append(token)
        text = decode(incomplete)
        pieces[i] = ""
        if not text.endswith(REPLACEMENT) or len(incomplete) == 4 or i + 1 == len(tokens):  # of at most 4 bytes
            pieces[i], incomplete = text, []
    return pieces
