"""NumberLimit: numbers in JSON end after some digits."""

import numpy as np

from nanoinfer.grammars.vocabulary import Vocabulary

MAX_DIGITS = 20  # of the whole part, of the fraction and of the exponent of a number, each; a token may go beyond it


class NumberLimit:
    """A schema allows numbers of any length, and a model that likes zeros may never end one. So once MAX_DIGITS digits have
    come in a row outside a string, tokens that begin with a digit are forbidden, unless the schema allows no other token.

    It follows the output byte by byte: is it inside a string, and how many digits came last?
    """

    def __init__(self, vocabulary: Vocabulary):
        self._digits = vocabulary.begins_with_digit
        self._states = [(False, False, 0)]  # after each token: in a string, behind a backslash, digits in a row

    def add(self, token: bytes) -> None:
        """Follow one more token."""
        self._states.append(_after(self._states[-1], token))

    def rollback(self, count: int) -> None:
        """Forget the last `count` tokens."""
        del self._states[len(self._states) - count :]

    def restrict(self, row: np.ndarray, complete: bool) -> None:
        """Clear the bits of tokens that begin with a digit, int32 `[words]`, if the number has to end. `complete`: the
        output may end here, so something else is allowed even if no other token is."""
        if self._is_full(self._states[-1]):
            others = row & ~self._digits
            if complete or others.any():
                row[:] = others

    def count_valid(self, tokens: list[bytes]) -> int:
        """How many of `tokens` come before one that the limit may forbid."""
        state = self._states[-1]
        for i, token in enumerate(tokens):
            if self._is_full(state) and token[:1].isdigit():
                return i
            state = _after(state, token)
        return len(tokens)

    def copy(self) -> "NumberLimit":
        copied = object.__new__(NumberLimit)
        copied._digits, copied._states = self._digits, list(self._states)
        return copied

    @staticmethod
    def _is_full(state: tuple[bool, bool, int]) -> bool:
        return not state[0] and state[2] >= MAX_DIGITS


def _after(state: tuple[bool, bool, int], token: bytes) -> tuple[bool, bool, int]:
    in_string, escaped, digits = state
    for byte in token:
        if in_string:
            in_string, escaped = escaped or byte != 0x22, not escaped and byte == 0x5C
        elif byte == 0x22:
            in_string, digits = True, 0
        else:
            digits = digits + 1 if 0x30 <= byte <= 0x39 else 0
    return in_string, escaped, digits
