"""The limits of a grammar's text, which bound the time and the memory that compiling it takes."""

import re

MAX_LENGTH = 200_000  # characters of a grammar of any kind
MAX_REGEX = 5_000  # characters of a regular expression, also of one that a Lark grammar puts together from terminals
MAX_CHOICES = 10_000  # of `choice`: as many take a tenth of a second to compile
MAX_DEPTH = 100  # of brackets inside each other: the compiler would run out of stack
# They look at each character once or twice, whatever the text, since no other thread runs meanwhile: nothing that was taken
# is given back (`*+`), and a regular expression without an end is taken whole, not looked for again from each `/` in it.
_DEFINITION = re.compile(r"^[ \t]*+[?!]*+([A-Za-z_]\w*+)[^:\n\"/]*+:", re.MULTILINE)
_REGEX = re.compile(r"/(?:[^/\\\n]|\\.)++/?")
_TERMINAL = re.compile(r"\b_*[A-Z][A-Z0-9_]*\b")


def check_regex(text: str) -> None:
    """ValueError when a regular expression is too long, or its brackets are too deep."""
    if len(text) > MAX_REGEX:
        raise ValueError(
            f"has {len(text)} characters: must not exceed {MAX_REGEX}; for many fixed texts, use choice=[...]"
        )
    check_depth(text)


def check_lark(text: str) -> None:
    """ValueError when a Lark grammar embeds another one, its brackets are too deep, or a terminal is too long when all
    terminals that it refers to are written out. JSON schemas are in their places no more (lark.py)."""
    for directive in ("%lark", "%regex"):
        if directive in text:
            raise ValueError(f"{directive} is not implemented in a Lark grammar")
    if "%json" in text:
        raise ValueError("%json: must not stand in a string, a regular expression or a comment")
    check_depth(text)
    starts = [(match[1], match.end(), match.start()) for match in _DEFINITION.finditer(text)]
    ends = [start for _, _, start in starts[1:]] + [len(text)] * bool(starts)  # a text may define nothing
    bodies = {name: text[begin:end] for (name, begin, _), end in zip(starts, ends, strict=True)}
    lengths: dict[str, int] = {}
    for name in bodies:
        if (length := _length(name, bodies, lengths, ())) > MAX_REGEX and name.isupper():
            raise ValueError(f"terminal {name} has {length} characters when written out: must not exceed {MAX_REGEX}")
    if (longest := max((len(regex) for regex in _REGEX.findall(text) if _ends(regex)), default=0)) > MAX_REGEX:
        raise ValueError(f"has a regular expression of {longest} characters: must not exceed {MAX_REGEX}")


def _ends(regex: str) -> bool:
    """Whether what `_REGEX` has found ends with a `/` that no backslash is for."""
    before = regex.removesuffix("/")
    return regex != before and (len(before) - len(before.rstrip("\\"))) % 2 == 0


def _length(name: str, bodies: dict[str, str], lengths: dict[str, int], inside: tuple[str, ...]) -> int:
    """The length of a definition when the terminals in it are written out. 0 for one that refers to itself, which the
    compiler refuses, and for an unknown one."""
    if name not in bodies or name in inside or len(inside) > MAX_DEPTH:
        return 0
    if name not in lengths:
        parts = _TERMINAL.findall(bodies[name])
        lengths[name] = len(bodies[name]) + sum(_length(part, bodies, lengths, (*inside, name)) for part in parts)
    return lengths[name]


def check_depth(text: str) -> None:
    """ValueError when brackets are too deep."""
    depth = deepest = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise ValueError(f"has {deepest} opening brackets inside each other: must not exceed {MAX_DEPTH}")
