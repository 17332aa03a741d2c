"""Matcher: where the output of one completion is in its grammar, and which tokens may come next."""

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from nanoinfer.grammars.vocabulary import Vocabulary

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
MAX_DIGITS = 20  # of the whole part, of the fraction and of the exponent of a number, each; a token may go beyond it


class Matcher:
    """The state of one completion; a Req has it as it has its detokenizer, so a retracted request keeps it.

    A *row* is a bit mask over the vocabulary, int32 `[words]`: bit `i % 32` of word `i // 32` says whether token `i` is
    allowed. `words` is one more than the vocabulary needs in some cases; bits beyond it mean nothing.

    `ends`: the tokens that end the output. They are allowed exactly when it is complete. `limit`: see NumberLimit; None
    for grammars that are not JSON.

    Where the grammar forces some text, only the tokenizer's own tokens of it are allowed. What is allowed depends only on
    the grammar and on the tokens that were accepted and not rolled back.

    `takes_drafts`: whether tokens can be taken back. `vocabulary`: the bytes that the grammar reads.
    """

    def __init__(
        self,
        state: Any,
        vocabulary: Vocabulary,
        ends: Collection[int],
        limit: "NumberLimit | None" = None,
        takes_drafts: bool = True,
    ):
        self.takes_drafts = takes_drafts
        self._state, self.vocabulary, self._ends, self._limit = state, vocabulary, frozenset(ends), limit
        self._ended = False  # by one of `ends`
        self._end_bits = vocabulary.bit_mask(sorted(self._ends))
        self._position = 0  # how many tokens were accepted
        self._forced: list[tuple[int, list[int]]] = []  # runs of forced tokens, and the position at which each begins
        self._mask: np.ndarray | None = None  # llguidance's, of the current position; None if it is not known

    @property
    def words(self) -> int:
        """The length of a row."""
        return self.vocabulary.words

    @property
    def is_complete(self) -> bool:
        """True when the output so far matches the grammar."""
        return not self.error and bool(self._state.is_accepting())

    @property
    def must_stop(self) -> bool:
        """True when the output has ended: nothing can follow it."""
        return self._ended or (self._state.is_stopped() and self.is_complete)

    @property
    def error(self) -> str:
        """Why matching cannot go on; empty as long as it can. One step may need more time or memory than is allowed."""
        return reason(self._state.get_error()) if self._state.is_error() else ""

    def fill_mask(self, row: np.ndarray) -> bool:
        """Write into `row` which tokens may come next. False if none may: all bits are zero then."""
        if self._ended or self._has_failed:
            row[:] = 0
            return False
        if forced := self.forced_tokens():
            row[:] = self.vocabulary.bit_mask(forced[:1])
            return True
        mask = self._computed_mask()
        if self._has_failed:
            row[:] = 0
            return False
        row[:] = mask
        word, bit = divmod(self.vocabulary.end, 32)
        complete = bool(row[word] >> bit & 1)
        row[word] &= ~np.int32(1 << bit if bit < 31 else -(1 << 31))
        row &= ~self._end_bits
        if self._limit is not None:
            self._limit.restrict(row, complete)
        if complete:
            row |= self._end_bits
        return bool(row.any())

    def accept(self, token_id: int) -> bool:
        """Move on by a token that the mask allows. False if it does not, or if matching fails (see `error`)."""
        if self._ended:
            return False
        if token_id in self._ends:
            self._ended = self.is_complete
            self._position += self._ended
            return self._ended
        self._mask = None
        if not self._state.consume_token(token_id):
            return False
        self._position += 1
        if self._limit is not None:
            self._limit.add(self.vocabulary.tokens[token_id])
        return True

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens that were accepted."""
        self._position -= count
        if count:
            self._mask = None
        while self._forced and self._forced[-1][0] > self._position:
            self._forced.pop()
        if count and self._ended:
            self._ended = False
            count -= 1
        if count:
            self._state.rollback(count)
            if self._limit is not None:
                self._limit.rollback(count)

    def count_valid(self, token_ids: Sequence[int]) -> int:
        """How many of `token_ids`, from the first on, could be accepted one after another. Changes nothing."""
        ids = list(token_ids)
        if self._ended or self._has_failed:
            return 0
        end = next((i for i, token in enumerate(ids) if token in self._ends), len(ids))
        count = int(self._state.validate_tokens(ids[:end])) if end else 0
        if self._limit is not None:
            count = self._limit.count_valid([self.vocabulary.tokens[token] for token in ids[:count]])
        if count == end < len(ids) and self._is_complete_after(ids[:end]):
            count += 1
        return count

    def forced_tokens(self) -> list[int]:
        """The tokens that must come next, as far as no other is allowed. Empty if there is a choice.

        A run of them is computed once, at its beginning, so that it is the same whatever is rolled back in between.
        """
        if self._ended or self._has_failed:
            return []
        if self._forced:
            start, tokens = self._forced[-1]
            if rest := tokens[self._position - start :]:
                return rest
        self._computed_mask()  # first, as most of the work is the same, and here other threads can run meanwhile
        if self._has_failed:
            return []
        if forced := list(self._state.compute_ff_tokens()):
            self._forced.append((self._position, forced))
        return forced

    def copy(self) -> "Matcher":
        """An independent matcher in the same state."""
        limit = None if self._limit is None else self._limit.copy()
        copied = Matcher(self._state.deep_copy(), self.vocabulary, self._ends, limit, self.takes_drafts)
        copied._ended, copied._position, copied._forced = self._ended, self._position, list(self._forced)
        return copied

    def _computed_mask(self) -> np.ndarray:
        if self._mask is None:
            self._mask = np.zeros(self.words, dtype=np.int32)
            if not self._has_failed:
                self._state.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        return self._mask

    @property
    def _has_failed(self) -> bool:
        return bool(self._state.is_error())

    def _is_complete_after(self, ids: Sequence[int]) -> bool:
        accepted = self._state.try_consume_tokens(list(ids)) if ids else 0
        complete = self.is_complete
        if accepted:
            self._state.rollback(accepted)
        return complete and accepted == len(ids)


def reason(error: str) -> str:
    """What llguidance says, as one sentence: without what follows for its developers, such as the state or a backtrace."""
    lines = re.split(r"\n *(?:<|stack backtrace|backtrace|\d+: )", error[:4000].strip(), maxsplit=1)[0]
    return " ".join(lines.removesuffix("<non-verbose/>").split())[:500]


class NumberLimit:
    """A schema allows numbers of any length, and a model that likes zeros may never end one. So once MAX_DIGITS digits have
    come in a row outside a string, tokens that begin with a digit are forbidden, unless the schema allows no other."""

    def __init__(self, vocabulary: Vocabulary, tokens: Sequence[bytes] = ()):
        self._vocabulary, self._tokens = vocabulary, list(tokens)

    def add(self, token: bytes) -> None:
        """Follow one more token."""
        self._tokens.append(token)

    def rollback(self, count: int) -> None:
        """Forget the last `count` tokens."""
        del self._tokens[len(self._tokens) - count :]

    def restrict(self, row: np.ndarray, complete: bool) -> None:
        """Clear the bits of tokens that begin with a digit, int32 `[words]`, if the number has to end. `complete`: the
        output may end here, so something else is allowed even if no other token is."""
        if self._is_full():
            others = row & ~self._vocabulary.begins_with_digit
            if complete or others.any():
                row[:] = others

    def count_valid(self, tokens: list[bytes]) -> int:
        """How many of `tokens` come before one that the limit may forbid."""
        forbidden = (i for i, token in enumerate(tokens) if token[:1].isdigit() and self._is_full(tokens[:i]))
        return next(forbidden, len(tokens))

    def copy(self) -> "NumberLimit":
        return NumberLimit(self._vocabulary, self._tokens)

    def _is_full(self, more: Sequence[bytes] = ()) -> bool:
        output = b"".join([*self._tokens, *more])
        ends_in_digits = re.fullmatch(rb"[0-9]{%d}" % MAX_DIGITS, output[-MAX_DIGITS:]) is not None
        return ends_in_digits and b'"' not in _STRING.sub(b"", output)  # else, it is inside a string that is open
