"""Tokenizer (text to token ids and back, chats) and IncrementalDetokenizer (tokens to text, one token at a time)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nanoinfer.requests.chat import Messages, render_chat
from nanoinfer.requests.text_bound import check_length, max_chars_per_token
from nanoinfer.requests.tokenizer_files import read_tokenizer_files
from nanoinfer.requests.tool_calls import CallParser
from nanoinfer.threads.cache_locks import kept
from nanoinfer.threads.exit_gate import exit_gate

TokenIds = Sequence[int] | np.ndarray
REPLACEMENT = "\ufffd"  # what an incomplete UTF-8 sequence decodes to


class Tokenizer:
    """A Hugging Face tokenizer, reduced to what the engine needs."""

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
        """The tokenizer of a checkpoint directory; None if it has no tokenizer files (the model then serves only ids).

        UnsupportedModelError naming the file that cannot be read, or the package needed to read it.
        """
        hf_tokenizer = read_tokenizer_files(Path(path))
        return None if hf_tokenizer is None else cls(hf_tokenizer)

    @kept
    def max_chars_per_token(self) -> int | None:
        """The largest number of characters that one token can stand for; None if that is not certain."""
        return max_chars_per_token(getattr(self, "hf_tokenizer", None))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt, including the special tokens (such as the one for the beginning of a text) that the
        tokenizer adds. ValueError when the text cannot be encoded. May be called from several threads.
        """
        try:
            with exit_gate:
                return self.hf_tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]
        except (TypeError, UnicodeError) as error:  # lone surrogates
            raise ValueError("is text that cannot be encoded as UTF-8") from error
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # what a tokenizer written in Rust raises when it fails
                raise
            raise ValueError(f"the tokenizer fails on this text: {error}") from error

    def decode(self, token_ids: TokenIds, skip_special_tokens: bool = True) -> str:
        """Text of token ids, without special tokens unless `skip_special_tokens=False`.

        Optimisation: a tokenizer in Rust is asked directly if transformers would add nothing to its answer, because what
        transformers does before it asks takes longer than the answer.
        """
        if self._decodes_itself and isinstance(token_ids, list) and all(type(token) is int for token in token_ids):
            return self.hf_tokenizer.backend_tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return self.hf_tokenizer.decode(
            token_ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )

    def encode_chat(
        self, messages: Messages, template_kwargs: Mapping[str, Any] | None = None, max_tokens: int | None = None
    ) -> list[int]:
        """Token ids of a conversation up to the assistant's next turn; arguments and errors as `render_chat`, `encode`
        and, where `max_tokens` is given, `check_length`."""
        text = render_chat(self.hf_tokenizer, messages, template_kwargs)
        try:
            check_length(text, max_tokens, self)
            return self.encode(text, add_special_tokens=False)
        except ValueError as error:
            raise ValueError(f"messages: {error}") from error


def _has_plain_decode(hf_tokenizer: Any) -> bool:
    """Whether a tokenizer decodes as all do that have nothing but a tokenizer.json: as its `backend_tokenizer` does."""
    from transformers import PreTrainedTokenizerFast  # loaded already, by what has made the tokenizer

    names, made = ("decode", "_decode"), type(hf_tokenizer)
    is_plain = all(getattr(made, name) is getattr(PreTrainedTokenizerFast, name) for name in names)
    return is_plain and not vars(hf_tokenizer).keys() & names


class IncrementalDetokenizer:
    """Turns the tokens of one request into text, one by one, and finds what ends it: a stop string, or a tool call.

    Text is held back while it is uncertain: a character with missing bytes, or an ending that may be the start of a stop
    string. Text that has been returned never changes.

    `context`: the last prompt tokens. Decoding continues from them, because some tokenizers decode a token differently at
    the start of a text. `stop_found` is the stop string once there is one; the text ends before it, or after it with
    `include_stop`. With `skip_special_tokens=False` the text has special tokens, too; the one that ends the request is
    there only if `include_stop` is set as well. `first_call`: finds the first tool call, which ends the text.
    """

    CONTEXT_TOKENS = 5

    def __init__(
        self,
        tokenizer: Tokenizer,
        context: TokenIds = (),
        stop: Sequence[str] = (),
        skip_special_tokens: bool = True,
        include_stop: bool = False,
        first_call: CallParser | None = None,
    ):
        self.stop_found: str | None = None
        self.call_found, self._first_call = False, first_call
        self._tokenizer, self._stop, self._include_stop = tokenizer, stop, include_stop
        self._shows_special = not skip_special_tokens
        self._window: list[int] = []  # tokens that are decoded together
        self._whole = 0  # with so many of them, the last character is whole
        self._certain = ""  # what the window's text begins with: it is released already
        self._start(context)
        self._held = ""  # characters held back because they may begin a stop string

    @property
    def stopped(self) -> bool:
        """True once a stop string was found, or the call that ends the text."""
        return self.stop_found is not None or self.call_found

    def add(self, token_id: int, look_for_stop: bool = True, ends: bool = False) -> str:
        """Add a token and return the text that has become certain. With `look_for_stop=False` stop strings are plain text.

        `ends`: this token is a stop token or an end token, so it is the last.
        """
        if ends and self._shows_special and not self._include_stop and not self._tokenizer.decode([token_id]):
            return ""  # it is a special token
        self._window.append(token_id)
        text = self._decode(self._window)
        if not text.startswith(self._certain):  # with byte fallback, one byte more makes a whole run of bytes invalid
            self._window, self._certain = self._window[self._whole :], ""
            text = self._decode(self._window)
        certain = text.rstrip(REPLACEMENT)
        new_text = certain[len(self._certain) :]
        self._certain = certain
        if certain == text:
            self._whole = len(self._window)
            if self._whole > 2 * self.CONTEXT_TOKENS:
                self._start(self._window)
        return self._up_to_call(self._release(new_text, look_for_stop))

    def flush(self) -> str:
        """Return the text that is still held back; call it after the last token. Empty after a stop string."""
        if self.stopped:
            return ""
        rest = self._held + self._decode(self._window)[len(self._certain) :]
        self._held, self._window, self._certain = "", [], ""
        return rest

    def _up_to_call(self, text: str) -> str:
        """`text` as far as the end of the first call, if that ends the text."""
        if self._first_call is None:
            return text
        for each in self._first_call.read(text):
            if not isinstance(each, str):
                self.call_found = True
                return text[: len(text) - len(self._first_call.held)]
        return text

    def _decode(self, tokens: TokenIds) -> str:
        if self._shows_special:
            return self._tokenizer.decode(tokens, skip_special_tokens=False)
        return self._tokenizer.decode(tokens)

    def _start(self, tokens: TokenIds) -> None:
        """Begin a window with the last of `tokens`, at a character's first byte: a partial one looks incomplete. Its last
        character may be incomplete, too; a character has at most four bytes."""
        size = self.CONTEXT_TOKENS
        while size < len(tokens) and self._decode(tokens[-size:]).startswith(REPLACEMENT):
            size += 1 if size < 2 * self.CONTEXT_TOKENS else size
        self._window = [int(token) for token in tokens[-size:]]
        ends = range(len(self._window), max(len(self._window) - 4, -1), -1)
        whole = (end for end in ends if not self._decode(self._window[:end]).endswith(REPLACEMENT))
        self._whole = next(whole, len(self._window))  # else that character is in the text itself
        self._certain = self._decode(self._window[: self._whole]).rstrip(REPLACEMENT)

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


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
