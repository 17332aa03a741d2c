"""Patterns and formats of JSON schemas. The compiler has no look-ahead, and gets some patterns wrong inside a JSON string,
which are refused.

In a JSON string, `"`, `\\` and control characters are written as escapes. For a class of characters that has all control
characters, llguidance 1.9 allows every escape, so `[^"]` would match a quotation mark. Classes that have both `"` and `\\`,
as `.` and `[^a]` do, are right, and so are those without control characters.
"""

import re

CONTROL = "".join(map(chr, range(32)))
SPACES = set("\t\n\v\f\r\x1c\x1d\x1e\x1f")  # classes of these are right
PROPERTIES = re.compile(r"\\p(?:[LN][a-z]?|\{[LN][a-z]?\})")  # letters and numbers; of other properties it is not known
ESCAPE = re.compile(r"\\(?:[pP](?:\{\w*\}|\w)?|.)", re.DOTALL)
TOKEN = re.compile(rf"{ESCAPE.pattern}|\[\^?(?:{ESCAPE.pattern}|[^]\\])*\]?|\(\?<?[=!]|.", re.DOTALL)  # a class is one
# At the beginning of a pattern: what comes is like this, or has a character that is not of a class.
LOOK_AHEAD = re.compile(r"\^\(\?(?:=((?:[^()\\[]|\\.|\[(?:[^]\\]|\\.)+\])+)|!\^?\[([^]\\^][^]\\]*)\]\*\$)\)")
# How pydantic 2.12 ends the pattern of a Decimal with max_digits. The first choice may be empty, so the other adds nothing.
DECIMAL_END = re.compile(r"\(\?:(\\d\{0,\d+\})\|\(\?=[^()|]+\)[^()|]+\)$")

_LONG_MONTH, _SHORT_MONTH = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])", "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_DAYS = f"(?:{_LONG_MONTH}|{_SHORT_MONTH}|02-(?:0[1-9]|1[0-9]|2[0-8]))"
_LEAP_YEAR = "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = f"(?:[1-9][0-9]{{3}}-{_DAYS}|{_LEAP_YEAR}-02-29)"
_HOUR_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"{_HOUR_MINUTE}:[0-5][0-9](?:\\.[0-9]{{1,9}})?(?:Z|[+-]{_HOUR_MINUTE})"
_UUID = "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
# The compiler's own date has a 29 February in every year, and its time a second 60 in every minute.
FORMATS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$", "uuid": f"^{_UUID}$"}
COMPILED_FORMATS = ("duration", "email", "hostname", "ipv4", "ipv6", "uri")  # any other says nothing about documents


def without_look_ahead(pattern: str) -> list[str]:
    """Patterns that all match a text if, and only if, `pattern` does. ValueError as of `check_pattern`."""
    pattern, patterns = DECIMAL_END.sub(r"\1", pattern), []
    while (found := LOOK_AHEAD.match(pattern)) and "|" not in pattern[found.end() :]:
        patterns.append(f"^(?:{found[1]})" if found[1] else rf"[^{found[2]}\n]")
        pattern = "^" + pattern[found.end() :]
    for each in (*patterns, pattern):
        check_pattern(each)
    return [*patterns, pattern]


def check_pattern(pattern: str) -> None:
    """ValueError naming the part of `pattern` that may not be compiled exactly."""
    for token in TOKEN.findall(pattern):
        for escape in ESCAPE.findall(token):
            if escape[1:2] in ("p", "P") and not PROPERTIES.fullmatch(escape):
                raise ValueError(f"pattern {pattern!r}: {escape}: only \\p{{L...}} and \\p{{N...}} are implemented")
        if token.startswith("(?"):
            raise ValueError(
                f"pattern {pattern!r}: {token}: look-around is only implemented as (?=...) at the beginning"
            )
        if token[0] == "[":
            _check_class(token, pattern)


def matches(pattern: str, text: str) -> bool:
    """Whether `pattern` matches anywhere in `text`. ValueError when Python does not know it."""
    try:
        return re.search(pattern, text, re.ASCII) is not None
    except re.error as error:
        raise ValueError(f"pattern {pattern!r}: {error}") from error


def _check_class(text: str, pattern: str) -> None:
    bare = ESCAPE.sub("", text)[1:]
    if "[" in bare or any(operator in bare for operator in ("&&", "--", "~~")):
        raise ValueError(f"pattern {pattern!r}: classes inside classes are not implemented")
    chars = {char for char in f'{CONTROL}"\\' if matches(PROPERTIES.sub("a", text), char)}
    if chars & set(CONTROL) and not chars >= set('"\\') and not chars & set(CONTROL) <= SPACES:
        raise ValueError(
            f'pattern {pattern!r}: {text} has control characters but not both " and \\, and is not implemented; '
            "exclude control characters as well: \\x00-\\x1f"
        )
