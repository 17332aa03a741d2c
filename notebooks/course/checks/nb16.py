"""Checks of notebook 16: events in bytes, and whole characters. nb16_door.py has the bucket, the queue and the keys."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from notebooks.course.exercises import Given, exercise
from notebooks.course.expectations import a_kind, expect, expect_equal

STREAM = (
    b'data: {"text":" She"}\n\ndata: {"text":" caf\xc3\xa9"}\n\n: still there\n\nevent: note\ndata: [1,\ndata: 2]\n\n'
    b"data:no space\r\n\r\ndata:   three spaces\n\ndata: [DONE]\n\n"
)
SEPARATOR = "data: one\u2028line\x85still\n\n".encode()  # line ends for str.splitlines, not for server-sent events
UNFINISHED = b"data: whole\n\ndata: cut off\n"


# --- 16.1 -------------------------------------------------------------------------------------------------------------


def _events(stream: bytes) -> list[str]:
    """What is right, for a whole stream."""
    found, data = list[str](), list[str]()
    for line in stream.split(b"\n")[:-1]:
        text = line.removesuffix(b"\r").decode()
        if text.startswith("data:"):
            data.append(text.removeprefix("data:").removeprefix(" "))
        elif not text and data:
            found.append("\n".join(data))
            data = []
    return found


def _cut(stream: bytes, sizes: Sequence[int]) -> list[bytes]:
    """`stream` in pieces of these sizes, which are repeated."""
    pieces, at, i = list[bytes](), 0, 0
    while at < len(stream):
        pieces.append(stream[at : at + sizes[i % len(sizes)]])
        at, i = at + sizes[i % len(sizes)], i + 1
    return pieces


def _collected(events_of: Callable[..., Any], pieces: Sequence[bytes]) -> list[Any]:
    try:
        return list(events_of(iter(pieces)))
    except UnicodeDecodeError:
        expect(
            False,
            f"Your code decodes bytes that end in the middle of a character: the pieces are {_short(pieces)}. Wait until a "
            "line is complete, and decode the line.",
        )
        raise AssertionError from None  # expect has raised


def _short(pieces: Sequence[bytes]) -> str:
    return f"{list(pieces[:6])}{' and so on' if len(pieces) > 6 else ''}"


@exercise("16.1", "Events in bytes", points=2)
def _(given: Given) -> str:
    events_of = given["events_of"]
    got = events_of(iter([b"data: a\n\n"]))
    expect(isinstance(got, Iterator), f"Write a generator: `yield` the data of each event. You return {a_kind(got)}.")
    expect_equal(list(got), ["a"], "One event, in one piece: its data is the text after `data: `, as str.")
    _about_lines(events_of)
    rng, tried = random.Random(16), 0
    for stream in (STREAM, SEPARATOR, UNFINISHED, STREAM + SEPARATOR):
        want = _events(stream)
        for sizes in ([1], [2], [3], [5], [7, 1], [16], *([rng.randrange(1, 9) for _ in range(7)] for _ in range(20))):
            pieces, tried = _cut(stream, sizes), tried + 1
            seen = _collected(events_of, pieces)
            expect(
                not any("\ufffd" in str(text) for text in seen),
                "There is a replacement character (\ufffd) in your text: a character was cut in two, and each half decoded "
                "by itself. Wait until a line is complete, and decode the line.",
            )
            expect_equal(
                seen,
                want,
                f"The same stream, cut into {len(pieces)} pieces that begin with {_short(pieces)}. A piece may end "
                "anywhere: in a line, between two line ends, in a character. Keep what is incomplete for the next piece.",
            )
    _about_waiting(events_of)
    return f"4 streams, cut in {tried} ways"


def _about_lines(events_of: Callable[..., Any]) -> None:
    """Whole streams in one piece: what is an event, and what is its data."""
    for stream, hint in (
        (b"data: a\n\ndata: b\n\n", "Two events in one piece. A piece may hold several."),
        (b": hello\n\ndata: a\n\n", "A line that begins with a colon is a comment. An event without data is none."),
        (b"event: x\nid: 7\ndata: a\n\n", "Only lines that begin with `data:` are data; others are ignored."),
        (b"data: a\ndata: b\n\n", "Two data lines before one empty line are one event: join them with a line end."),
        (b"data:a\n\n", "The space after the colon may be missing."),
        (b"data:   a \n\n", "One space after the colon doesn't belong to the data. All others do, also those at the end."),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", r"A line may end with \r\n, too. Then the \r doesn't belong to the data."),
        (b"data: a: b data: c\n\n", "Only the first colon ends the field's name. What follows is data."),
        (SEPARATOR, r"Only \n ends a line here. `str.splitlines` knows others, such as U+2028, which may be in a text."),
        (UNFINISHED, "The last event has no empty line after it: it was cut off, and is no event."),
        (b"", "Without any bytes there is no event."),
    ):  # fmt: skip
        expect_equal(
            _collected(events_of, [stream] if stream else []), _events(stream), f"The stream {stream!r}. {hint}"
        )


def _about_waiting(events_of: Callable[..., Any]) -> None:
    """An event comes as soon as its empty line has come."""
    taken = 0

    def pieces() -> Iterator[bytes]:
        nonlocal taken
        for piece in (b"data: 1\n", b"\nda", b"ta: 2\n\n", b"data: 3\n\n"):
            taken += 1
            yield piece

    for number, (event, after) in enumerate(zip(events_of(pieces()), (2, 3, 4), strict=False), 1):
        expect(event == str(number), f"Event {number} is {event!r}.")
        expect(
            taken == after,
            f"Event {number} is complete with piece {after}, but your code had read {taken} pieces before it gave the "
            "event. A stream may pause for seconds: yield an event as soon as it is complete.",
        )


# --- 16.2 -------------------------------------------------------------------------------------------------------------

WORDS = (
    "She",
    " café",
    "naïve",
    " 火",
    "🦊",
    "🦊🐻",
    "é",
    "a\u0301",
    " Übermut",
    "\u2028",
    "ÿ",
    "߿",
    "\uffff",
    "\U0010ffff",
)


def _texts(tokens: Sequence[bytes]) -> list[str]:
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [decoder.decode(token, i == len(tokens) - 1) for i, token in enumerate(tokens)]


@exercise("16.2", "Whole characters")
def _(given: Given) -> str:
    texts_of = given["texts_of"]
    rng = random.Random(162)
    cases: list[list[bytes]] = [
        [b" She", b" lived"],
        [b"\xc3", b"\xa9"],
        [b"caf\xc3", b"\xa9 "],
        ["🦊".encode()[:1], "🦊".encode()[1:2], "🦊".encode()[2:3], "🦊".encode()[3:]],
        ["é火".encode()[:3], "é火".encode()[3:]],
        [],
        [b"a", b"", b"b"],
        [b"a\xf0\x9f", b""],
        [b"a", b"\xe7\x81"],
    ]
    for _ in range(200):
        data = "".join(rng.choices(WORDS, k=rng.randrange(1, 6))).encode()
        data = data[: len(data) - rng.choice((0, 0, 0, 1, 2))]
        cases.append(_cut(data, [rng.randrange(1, 5) for _ in range(11)]))
    for tokens in cases:
        _about_texts(texts_of, tokens)
    return "209 outputs, with characters of one to four bytes"


def _about_texts(texts_of: Callable[..., Any], tokens: list[bytes]) -> None:
    said, want, kept = f"The tokens {tokens}.", _texts(tokens), list(tokens)
    try:
        got = texts_of(tokens)
        if isinstance(got, Iterator | tuple):
            got = list(got)
    except UnicodeDecodeError:
        expect(
            False, f"{said} You decode bytes that end in the middle of a character. Which bytes at the end must wait?"
        )
    expect(tokens == kept, "You changed the list of tokens.")
    expect(
        isinstance(got, list) and all(isinstance(text, str) for text in got), f"{said} Return a list of texts (str)."
    )
    expect(
        len(got) == len(tokens),
        f"{said} You return {len(got)} texts. There is one for each token, which may be empty.",
    )
    cut = bool(want) and want[-1].endswith("\ufffd")
    for i, (text, right) in enumerate(zip(got, want, strict=True)):
        last = i == len(tokens) - 1
        if "\ufffd" in text and not (last and cut):
            expect(
                False,
                f"{said} Text {i} is {text!r}. A character that isn't complete yet must wait for the next token; it "
                "isn't wrong.",
            )
        if last and cut and text != right:
            expect(
                text.count("\ufffd") == 1,
                f"{said} They end in the middle of a character, and no token follows. Then the last text ends with one "
                f"'\\ufffd', so {right!r}, not {text!r}.",
            )
        expect(
            text == right or not right.startswith(text),
            f"{said} Text {i} is {text!r}, but {right!r} is complete with this token. What is complete must not wait.",
        )
        expect_equal(
            text, right, f"{said} Text {i} is wrong: all texts together are the output, and each byte counts once."
        )
