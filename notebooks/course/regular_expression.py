"""A regular expression as a machine that says which tokens may come next: the idea behind grammars, made small.

    (0|1)*1     ─parse─►  a tree of parts  ─derive─►  states and arrows  ─walk each token─►  a mask over the vocabulary

The *derivative* of an expression by a character is what may follow that character (Brzozowski, 1964): the derivative of
`ab*` by `a` is `b*`, and by any other character it is nothing. Expressions are the states of the machine, and derivatives
its arrows. A state is accepting when its expression matches the empty text. There are finitely many states, because equal
expressions are one state.

`regex` in SamplingParams is served by llguidance, which knows far more syntax, and whole grammars. This one knows
characters, `.`, classes such as `[a-z]` and `[^,]`, `\\d`, `\\w` and `\\s` (of ASCII), groups, `|`, `*`, `+`, `?`, `{m}`
and `{m,n}`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np


@dataclass(frozen=True)
class Chars:
    """One character: of `members`, or with `negated` one that is not."""

    members: frozenset[str]
    negated: bool = False


@dataclass(frozen=True)
class Concatenation:
    """`first`, then `rest`."""

    first: "Expression"
    rest: "Expression"


@dataclass(frozen=True)
class Either:
    """One of `parts`, of which there are at least two; with no parts it is NOTHING, which matches no text at all."""

    parts: frozenset["Expression"]


@dataclass(frozen=True)
class Repeat:
    """`part`, any number of times."""

    part: "Expression"


Expression = Chars | Concatenation | Either | Repeat
NOTHING = Either(frozenset())
EMPTY = Repeat(NOTHING)  # matches the empty text only
MOST_REPEATS = 100  # each is a part of its own
CLASSES = {
    "d": frozenset("0123456789"),
    "w": frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"),
    "s": frozenset(" \t\n\r\f\v"),
}


def sequence(first: Expression, rest: Expression) -> Expression:
    """`first` and then `rest`, in the simplest form."""
    if NOTHING in (first, rest):
        return NOTHING
    if isinstance(first, Concatenation):  # always to the right, so that equal expressions are equal objects
        return sequence(first.first, sequence(first.rest, rest))
    return rest if first == EMPTY else first if rest == EMPTY else Concatenation(first, rest)


def either(*parts: Expression) -> Expression:
    """One of `parts`, in the simplest form: without doubles, and without NOTHING."""
    flat = frozenset().union(*(part.parts if isinstance(part, Either) else {part} for part in parts))
    return next(iter(flat)) if len(flat) == 1 else Either(flat)


def matches_empty(expression: Expression) -> bool:
    """True when the empty text matches."""
    match expression:
        case Chars():
            return False
        case Concatenation(first, rest):
            return matches_empty(first) and matches_empty(rest)
        case Either(parts):
            return any(map(matches_empty, parts))
    return True


@lru_cache(maxsize=100_000)
def derivative(expression: Expression, char: str) -> Expression:
    """What may follow `char` in a text that `expression` matches."""
    match expression:
        case Chars(members, negated):
            return EMPTY if (char in members) != negated else NOTHING
        case Concatenation(first, rest):
            after = sequence(derivative(first, char), rest)
            return either(after, derivative(rest, char)) if matches_empty(first) else after
        case Either(parts):
            return either(*(derivative(part, char) for part in parts))
        case Repeat(part):
            return sequence(derivative(part, char), expression)


class Parser:
    """Reads a pattern from left to right, one function per level: alternatives, then sequences, then repetitions."""

    def __init__(self, pattern: str):
        self._pattern, self._at = pattern, 0

    def parse(self) -> Expression:
        """The whole pattern. ValueError with the position of what cannot be read."""
        try:
            expression = self._alternatives()
            hash(expression)  # states are compared by it
        except RecursionError:
            raise self._error("too many parts, one inside or behind the other") from None
        if self._peek():
            raise self._error("a bracket closes that was never opened")
        return expression

    def _alternatives(self) -> Expression:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        return either(*parts)

    def _sequence(self) -> Expression:
        parts = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repetition())
        expression: Expression = EMPTY
        for part in reversed(parts):
            expression = sequence(part, expression)
        return expression

    def _repetition(self) -> Expression:
        part = self._atom()
        while (sign := self._peek()) and sign in "*+?{":
            self._at += 1
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign) or self._bounds()
            expression: Expression = Repeat(part) if most is None else EMPTY
            for _ in range(0 if most is None else most - least):
                expression = either(EMPTY, sequence(part, expression))
            for _ in range(least):
                expression = sequence(part, expression)
            part = expression
        return part

    def _bounds(self) -> tuple[int, int | None]:
        end = self._pattern.find("}", self._at)
        low, comma, high = self._pattern[self._at : end].partition(",")
        if end < 0 or not low.isdigit() or not (high.isdigit() or not high) or (high and int(high) < int(low)):
            raise self._error("must be {m}, {m,} or {m,n}")
        if max(int(low), int(high or low)) > MOST_REPEATS:
            raise self._error(f"a part may be repeated at most {MOST_REPEATS} times, or without a limit")
        self._at = end + 1
        return int(low), int(high) if high else None if comma else int(low)

    def _atom(self) -> Expression:
        char = self._next()
        if char == "(":
            if self._take("?") and not self._take(":"):
                raise self._error("(?...) is not implemented, except (?:...)")
            expression = self._alternatives()
            if not self._take(")"):
                raise self._error("a group has no end")
            return expression
        if char == "[":
            return self._class()
        if char == "." or char in "*+?{^$":
            if char == ".":
                return Chars(frozenset("\n"), negated=True)
            raise self._error(f"{char!r} cannot be here; for the character itself, write \\{char}")
        return self._escape() if char == "\\" else Chars(frozenset(char))

    def _class(self) -> Chars:
        negated, members = self._take("^"), frozenset[str]()
        if self._peek() == "]":
            raise self._error("a class has no characters; for the character ']' itself, write \\]")
        while not self._take("]"):
            low = self._member()
            if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._member()
                if len(low) > 1 or len(high) > 1 or min(low) > min(high):
                    raise self._error("a range goes from one character to a later one; for '-' itself, write \\-")
                low = frozenset(map(chr, range(ord(min(low)), ord(min(high)) + 1)))
            members |= low
        return Chars(members, negated)

    def _member(self) -> frozenset[str]:
        char = self._next()
        found = self._escape() if char == "\\" else Chars(frozenset(char))
        if found.negated:
            raise self._error("\\D, \\W and \\S are not implemented inside a class")
        return found.members

    def _escape(self) -> Chars:
        char = self._next()
        if char.lower() in CLASSES:
            return Chars(CLASSES[char.lower()], negated=char.isupper())
        if char.isalnum() and char not in "ntr":
            raise self._error(f"\\{char} is not implemented")
        return Chars(frozenset({"n": "\n", "t": "\t", "r": "\r"}.get(char, char)))

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self) -> str:
        if not self._peek():
            raise self._error("the pattern ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _take(self, char: str) -> bool:
        found = self._peek() == char
        self._at += found
        return found

    def _error(self, reason: str) -> ValueError:
        return ValueError(f"regular expression {self._pattern!r}, position {self._at}: {reason}")


class Machine:
    """The states of a pattern, made when they are first reached. State 0 is the start; DEAD is where no text leads back.

    Characters that the pattern does not tell apart share an arrow, so the alphabet is small.
    """

    DEAD = -1

    def __init__(self, pattern: str):
        self.states: list[Expression] = [Parser(pattern).parse()]
        self._numbers = {self.states[0]: 0}
        self.arrows: dict[tuple[int, str], int] = {}  # (state, character) → state

    def step(self, state: int, text: str) -> int:
        """The state that `text` leads to from `state`."""
        for char in text:
            if state == self.DEAD:
                break
            char = char if char in self.alphabet else ""  # "" stands for every character that the pattern does not name
            if (state, char) not in self.arrows:
                self.arrows[state, char] = self._number(derivative(self.states[state], char))
            state = self.arrows[state, char]
        return state

    def accepts(self, state: int) -> bool:
        """True when the text that led here matches the pattern."""
        return state != self.DEAD and matches_empty(self.states[state])

    @cached_property
    def alphabet(self) -> frozenset[str]:
        """The characters that the pattern names."""
        found, todo = frozenset[str](), [self.states[0]]
        while todo:
            match todo.pop():
                case Chars(members):
                    found |= members
                case Concatenation(first, rest):
                    todo += [first, rest]
                case Either(parts):
                    todo += parts
                case Repeat(part):
                    todo.append(part)
        return found

    def mask(self, state: int, tokens: Sequence[str]) -> np.ndarray:
        """Which `tokens` may come next, bool `[len(tokens)]`: those that lead to a live state. Empty ones may not."""
        return np.array([bool(token) and self.step(state, token) != self.DEAD for token in tokens])

    def _number(self, expression: Expression) -> int:
        if expression == NOTHING:
            return self.DEAD
        if expression not in self._numbers:
            self._numbers[expression] = len(self.states)
            self.states.append(expression)
        return self._numbers[expression]
