"""expression_text: an expression as the shortest pattern that means it."""

from collections.abc import Collection

from nanoinfer.viz.words import visible
from notebooks.course.regular_expression import EMPTY, NOTHING, Chars, Concatenation, Either, Expression, Repeat

SPECIAL = frozenset(r"\.*+?{}()[]|^$")
DIGITS = frozenset("0123456789")


def expression_text(expression: Expression) -> str:
    """The pattern of `expression`; empty if it matches the empty text only."""
    match expression:
        case Chars(members, negated):
            if len(members) == 1 and not negated:
                (char,) = members
                return f"\\{char}" if char in SPECIAL else visible(char)
            if members == DIGITS:
                return r"\D" if negated else r"\d"
            return "." if negated and members == {"\n"} else f"[{'^' if negated else ''}{_ranges(members)}]"
        case Concatenation(first, rest):
            once_more = rest.first if isinstance(rest, Concatenation) else rest
            if once_more == Repeat(first):  # a a* is a+
                return _group(first) + "+" + (expression_text(rest.rest) if isinstance(rest, Concatenation) else "")
            return _part(first) + _part(rest)
        case Either(parts):
            if expression == NOTHING:
                return "[]"
            shown = sorted(expression_text(part) for part in parts if part != EMPTY)
            if len(shown) < len(parts):
                (alone, *others) = (part for part in parts if part != EMPTY)
                return (f"({'|'.join(shown)})" if others else _group(alone)) + "?"
            return "|".join(shown)
    return "" if expression == EMPTY else _group(expression.part) + "*"


def said(chars: Collection[str], *, negated: bool = False) -> str:
    """Characters as an arrow names them: `0-9`, `all but "`."""
    ranges = _ranges(chars)
    return f"all but {ranges}" if negated and chars else "all" if negated else ranges


def _part(expression: Expression) -> str:
    """As a part of a sequence."""
    text = expression_text(expression)
    return f"({text})" if isinstance(expression, Either) and not text.endswith("?") else text


def _group(expression: Expression) -> str:
    """As what is repeated."""
    text = expression_text(expression)
    return text if isinstance(expression, Chars) else f"({text})"


def _ranges(chars: Collection[str]) -> str:
    """Characters, three neighbours or more as `a-z`."""
    runs: list[list[int]] = []
    for char in sorted(map(ord, chars)):
        if runs and runs[-1][-1] == char - 1:
            runs[-1].append(char)
        else:
            runs.append([char])
    return "".join(f"{chr(run[0])}-{chr(run[-1])}" if len(run) > 2 else visible("".join(map(chr, run))) for run in runs)
