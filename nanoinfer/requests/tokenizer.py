"""Tokenizer (text ↔ token ids, chats) and IncrementalDetokenizer (tokens → text, one token at a time)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nanoinfer.requests.tokenizer_files import read_tokenizer_files

TokenIds = Sequence[int] | np.ndarray
REPLACEMENT = "\ufffd"  # what an incomplete UTF-8 sequence decodes to


class Tokenizer:
    """A Hugging Face tokenizer, reduced to what the engine needs."""

    def __init__(self, hf_tokenizer: Any):
        self.hf_tokenizer = hf_tokenizer
        self.eos_token_id: int | None = hf_tokenizer.eos_token_id

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "Tokenizer | None":
        """The tokenizer of a checkpoint directory; None if it has no tokenizer files (it then serves token ids only).

        UnsupportedModelError naming the file that cannot be read, or the package that reading it needs.
        """
        hf_tokenizer = read_tokenizer_files(Path(path))
        return None if hf_tokenizer is None else cls(hf_tokenizer)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, including special tokens (such as begin of text) that the tokenizer adds."""
        return self.hf_tokenizer(text)["input_ids"]

    def decode(self, token_ids: TokenIds) -> str:
        """Text of token ids, special tokens left out."""
        return self.hf_tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation up to where the assistant's next turn begins, by the model's chat template.

        `messages`: `[{"role": ..., "content": ...}, ...]`. ValueError when the model has no template or it refuses them.
        """
        if not self.hf_tokenizer.chat_template:
            raise ValueError("this model has no chat template; use generate with a plain prompt")
        for i, message in enumerate(messages):
            if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
                raise ValueError(f"messages[{i}]={message!r}: must have role and content")
        if not messages:
            raise ValueError("messages: a conversation needs at least one message")
        from jinja2 import TemplateError

        try:
            text = self.hf_tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except (TemplateError, TypeError) as error:  # TypeError: content that is not text
            raise ValueError(f"messages: the model's chat template refuses them: {error}") from error
        return self.hf_tokenizer(text, add_special_tokens=False)["input_ids"]


class IncrementalDetokenizer:
    """Turns the tokens of one request into text one by one, and finds its stop strings.

    Text is held back while it is uncertain: a character whose bytes are incomplete, or an end that may be the beginning of
    a stop string. Returned text never changes.

    `context`: the last prompt tokens. Decoding continues from them, because some tokenizers render a token differently at
    the start of a text. `stopped` becomes True once a stop string is found; the text ends before it.
    """

    CONTEXT_TOKENS = 5

    def __init__(self, tokenizer: Tokenizer, context: TokenIds = (), stop: Sequence[str] = ()):
        self.stopped = False
        self._tokenizer, self._stop = tokenizer, stop
        self._window = self._recent(context)  # tokens decoded together
        self._done = self._certain_len()  # number of the window's characters already released
        self._held = ""  # characters held back because they may begin a stop string

    def add(self, token_id: int, look_for_stop: bool = True) -> str:
        """Add a token; returns the text that is certain now. With `look_for_stop=False` stop strings are plain text."""
        self._window.append(token_id)
        text = self._tokenizer.decode(self._window)
        certain = text.rstrip(REPLACEMENT)
        new_text = certain[self._done :]
        self._done = len(certain)
        if certain == text and len(self._window) > 2 * self.CONTEXT_TOKENS:
            self._window = self._recent(self._window)
            self._done = self._certain_len()
        return self._release(new_text, look_for_stop)

    def flush(self) -> str:
        """The text held back so far, to be called after the last token; empty after a stop string."""
        if self.stopped:
            return ""
        rest = self._held + self._tokenizer.decode(self._window)[self._done :]
        self._held, self._window, self._done = "", [], 0
        return rest

    def _recent(self, tokens: TokenIds) -> list[int]:
        """The last of `tokens`, beginning at a character's first byte: a partial character would look incomplete."""
        size = self.CONTEXT_TOKENS
        while size < len(tokens) and self._tokenizer.decode(tokens[-size:]).startswith(REPLACEMENT):
            size *= 2
        return [int(token) for token in tokens[-size:]]

    def _certain_len(self) -> int:
        return len(self._tokenizer.decode(self._window).rstrip(REPLACEMENT)) if self._window else 0

    def _release(self, new_text: str, look_for_stop: bool) -> str:
        text = self._held + new_text
        if self.stopped or not (self._stop and look_for_stop):
            self._held = ""
            return "" if self.stopped else text
        found = [at for at in map(text.find, self._stop) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
