"""Matcher: where the output of one completion is in its grammar, and which tokens may come next."""

import re
from collections.abc import Collection
from typing import Any

import numpy as np

from nanoinfer.sampling.grammar.vocabulary import Vocabulary

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
MAX_DIGITS = 20  # of the whole part, of the fraction and of the exponent of a number, each; a token may go beyond it


class Matcher:
    """The state of one completion; a Req has it as it has its detokenizer, so a retracted request keeps it.

    A *row* is a bit mask over the vocabulary, int32 `[words]`: bit `i % 32` of word `i // 32` says whether token `i` is
    allowed. `words` is one more than the vocabulary needs in some cases; bits beyond it mean nothing.

    `ends`: the tokens that end the output. They are allowed exactly when it is complete.

    Where the grammar forces some text, only the tokenizer's own tokens of it are allowed. What is allowed depends only on
    the grammar and on the tokens that were accepted and not rolled back.

    `limits_numbers`, for JSON: a schema allows numbers of any length, and a model that likes zeros may never end one. So
    once MAX_DIGITS digits have come in a row outside a string, tokens that begin with a digit are forbidden, unless the
    schema allows no other. `takes_drafts`: whether tokens can be taken back. `vocabulary`: the bytes that are read.
    `thought`: with which tags a thought that precedes the JSON begins (empty: it has begun) and ends; None: there is none.
    """

    def __init__(
        self,
        state: Any,
        vocabulary: Vocabulary,
        ends: Collection[int],
        limits_numbers: bool = False,
        takes_drafts: bool = True,
        thought: tuple[bytes, bytes] | None = None,
    ):
        self.vocabulary, self.takes_drafts = vocabulary, takes_drafts
        self._state, self._ends, self._limits_numbers = state, frozenset(ends), limits_numbers
        self._thought = thought
        self._ended = False  # by one of `ends`
        self._end_bits = vocabulary.bit_mask(sorted(self._ends))
        self._written: list[int] = []  # the tokens that were accepted, without the one that ended the output
        self._forced: list[tuple[int, list[int]]] = []  # runs of forced tokens, and the position at which each begins
        self._mask: np.ndarray | None = None  # llguidance's, of the current position; None if it is not known

    @property
    def words(self) -> int:
        """The length of a row."""
        return self.vocabulary.words

    @property
    def is_complete(self) -> bool:
        """True when the output so far matches the grammar."""
        return not self._has_failed and bool(self._state.is_accepting())

    @property
    def must_stop(self) -> bool:
        """True when the output has ended: nothing can follow it."""
        return self._ended or (self._state.is_stopped() and self.is_complete)

    @property
    def error(self) -> str:
        """Why matching cannot go on; empty as long as it can. One step may need more time or memory than is allowed."""
        return reason(self._state.get_error()) if self._has_failed else ""

    def fill_mask(self, row: np.ndarray) -> bool:
        """Write into `row` which tokens may come next. False if none may: all bits are zero then."""
        row[:] = 0
        if self._ended:
            return False
        if forced := self.forced_tokens():
            row[:] = self.vocabulary.bit_mask(forced[:1])
            return True
        mask = self._computed_mask()
        if self._has_failed:
            return False
        row[:] = mask
        word, bit = divmod(self.vocabulary.end, 32)
        complete = bool(row[word] >> bit & 1)
        row[word] &= ~np.int32(1 << bit if bit < 31 else -(1 << 31))
        row &= ~self._end_bits
        if self._limits_numbers and self._number_is_full():
            others = row & ~self.vocabulary.begins_with_digit
            if complete or others.any():
                row[:] = others
        if complete:
            row |= self._end_bits
        return bool(row.any())

    def accept(self, token_id: int) -> bool:
        """Move on by a token that the mask allows. False if it does not, or if matching fails (see `error`)."""
        if self._ended:
            return False
        if token_id in self._ends:
            self._ended = self.is_complete
            return self._ended
        self._mask = None
        if not self._state.consume_token(token_id):
            return False
        self._written.append(token_id)
        return True

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens that were accepted."""
        if count and self._ended:
            self._ended = False
            count -= 1
        if count:
            self._mask = None
            self._state.rollback(count)
            del self._written[-count:]
        while self._forced and self._forced[-1][0] > len(self._written):
            self._forced.pop()

    def forced_tokens(self) -> list[int]:
        """The tokens that must come next, as far as no other is allowed. Empty if there is a choice.

        A run of them is computed once, at its beginning, so that it is the same whatever is rolled back in between.
        """
        if self._ended or self._has_failed:
            return []
        position = len(self._written)
        if self._forced:
            start, tokens = self._forced[-1]
            if rest := tokens[position - start :]:
                return rest
        self._computed_mask()  # first, as most of the work is the same, and here other threads can run meanwhile
        if self._has_failed:
            return []
        if forced := list(self._state.compute_ff_tokens()):
            self._forced.append((position, forced))
        return forced

    def _computed_mask(self) -> np.ndarray:
        if self._mask is None:
            self._mask = np.zeros(self.words, dtype=np.int32)
            if not self._has_failed:
                self._state.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        return self._mask

    @property
    def _has_failed(self) -> bool:
        return bool(self._state.is_error())

    def _number_is_full(self) -> bool:
        """Whether the output ends with MAX_DIGITS digits outside a string."""
        tokens = self.vocabulary.tokens
        end = b"".join([tokens[token] for token in self._written[-MAX_DIGITS:]])[-MAX_DIGITS:]
        if re.fullmatch(rb"[0-9]{%d}" % MAX_DIGITS, end) is None:
            return False
        output = b"".join([tokens[token] for token in self._written])
        if self._thought is not None and output.startswith(self._thought[0]):
            _, tag, output = output.partition(self._thought[1])
            if not tag:
                return False
        return b'"' not in _STRING.sub(b"", output)  # else, it is inside a string that is open


def reason(error: str) -> str:
    """What llguidance says, as one sentence: without what follows for its developers, such as the state or a backtrace."""
    lines = re.split(r"\n *(?:<|stack backtrace|backtrace|\d+: )", error[:4000].strip(), maxsplit=1)[0]
    return " ".join(lines.removesuffix("<non-verbose/>").split())[:500]
