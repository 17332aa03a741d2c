"""Refuses patterns that the compiler gets wrong inside a JSON string.

In a JSON string, `"`, `\\` and control characters are written as escapes. For a class of characters that has all control
characters, llguidance 1.9 allows every escape, so `[^"]` would match a quotation mark. Classes that have both `"` and `\\`,
as `.` and `[^a]` do, are right, and so are those without control characters.
"""

import re

from nanoinfer.grammars.limits import check_regex

CONTROL = "".join(map(chr, range(32)))
PROPERTIES = re.compile(r"\\p(?:[LN][a-z]?|\{[LN][a-z]?\})")  # letters and numbers; of other properties it is not known


def check_pattern(pattern: str) -> None:
    """ValueError naming the part of `pattern` that may not be compiled exactly."""
    check_regex(pattern)
    at = 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at += _escape(pattern, at)
        elif pattern[at] == "[":
            end = _end_of_class(pattern, at)
            _check_class(pattern[at:end], pattern)
            at = end
        else:
            at += 1


def _escape(pattern: str, at: int) -> int:
    """The length of the escape that begins at `at`."""
    if pattern[at + 1 : at + 2] not in ("p", "P"):
        return 2
    known = PROPERTIES.match(pattern, at)
    if known is None:
        raise ValueError(
            f"pattern {pattern!r}: {pattern[at : at + 6]!r}: only \\p{{L...}} and \\p{{N...}} are implemented"
        )
    return len(known[0])


def _end_of_class(pattern: str, at: int) -> int:
    """The index behind the class of characters that begins at `at`."""
    end = at + 1 + pattern.startswith("[^", at)
    if pattern.startswith("]", end):
        raise ValueError(f"pattern {pattern!r}: a class that begins with ']' is not implemented; write '\\]'")
    while end < len(pattern) and pattern[end] != "]":
        if pattern[end] == "[" or pattern[end : end + 2] in ("&&", "--", "~~"):
            raise ValueError(f"pattern {pattern!r}: classes inside classes are not implemented")
        end += _escape(pattern, end) if pattern[end] == "\\" else 1
    if end >= len(pattern):
        raise ValueError(f"pattern {pattern!r}: a class has no end")
    return end + 1


def _check_class(text: str, pattern: str) -> None:
    try:
        chars = re.compile(PROPERTIES.sub("a", text), re.ASCII)
    except re.error as error:
        raise ValueError(f"pattern {pattern!r}: {text}: {error}") from error
    if any(chars.fullmatch(char) for char in CONTROL) and not all(chars.fullmatch(char) for char in '"\\'):
        if set(filter(chars.fullmatch, CONTROL)) <= set("\t\n\v\f\r\x1c\x1d\x1e\x1f"):
            return  # spaces and line ends, which are right
        raise ValueError(
            f'pattern {pattern!r}: {text} has control characters but not both " and \\, and is not implemented; '
            "exclude control characters as well: \\x00-\\x1f"
        )
