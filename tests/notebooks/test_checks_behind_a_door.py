"""Checks of notebook 16: right answers pass, and each typical mistake gets its hint."""

import heapq
from math import ceil
from typing import Any

import pytest

from notebooks.course import check
from notebooks.course.expectations import NotWritten
from notebooks.tools.student import cleared
from tests.solution_cells import gets_hint, passes, solutions, written

ANSWERS = solutions("16_the_engine_behind_a_door")
IDS = ("16.1", "16.2", "16.3", "16.4", "16.5")
SPLIT = '*lines, rest = (rest + piece).split(b"\\n")'
DECODE = 'line = line.removesuffix(b"\\r").decode()'
FIELD = 'data.append(line.removeprefix("data:").removeprefix(" "))'
JOIN = 'yield "\\n".join(data)'

# exercise, what of the right answer is replaced, by what, and what the hint must say
MISTAKES = [
    ("16.1", SPLIT, '*lines, rest = piece.split(b"\\n")', "incomplete for the next piece"),
    ("16.1", SPLIT, '*lines, rest = (rest + piece).decode().encode().split(b"\\n")', "in the middle of a character"),
    ("16.1", SPLIT, '*lines, rest = (rest + piece.decode("utf-8", "replace").encode()).split(b"\\n")',
     "if each half is decoded"),
    ("16.1", SPLIT,
     "lines = [each.encode() for each in (rest + piece).decode().splitlines()]\n        "
     'rest = b"" if piece.endswith(b"\\n") else lines.pop()',
     "splitlines|middle of a character|U.2028"),
    ("16.1", DECODE, "line = line.decode()", r"may end with \\r\\n"),
    ("16.2", "rest[: len(rest) - waiting].decode()", 'rest[: len(rest) - waiting].decode("utf-8", "replace")',
     "must wait for the next token"),
    ("16.2", "rest[: len(rest) - waiting].decode()", 'rest[: len(rest) - waiting].decode("utf-8", "ignore")',
     "Text .* is|must not wait|each byte counts once"),
    ("16.2", "    if rest:\n        texts[-1] += '\\ufffd'\n", "", "the last text ends with one"),
    ("16.2", "        rest += token\n", "        rest += token\n        if not token:\n            continue\n",
     "which may be empty"),
    ("16.2", "            except UnicodeDecodeError:\n                continue\n",
     "            except KeyError:\n                continue\n", "Which bytes at the end must wait"),
    ("16.3", "min(self.burst, self.level + self.rate * (now - self.at))", "self.level + self.rate * (now - self.at)",
     "never has more than `burst`"),
    ("16.3", "        self.at = now\n", "", "it must be refused, with .* s to wait|never has more than"),
    ("16.3", "        if cost > self.level:\n            return ceil",
     "        if cost >= self.level:\n            return ceil",
     "Exactly enough is enough"),
    ("16.3", "return ceil((cost - self.level) / self.rate)", "return int((cost - self.level) / self.rate)", "Round up"),
    ("16.3", "return ceil((cost - self.level) / self.rate)", "return (cost - self.level) / self.rate",
     "whole number of seconds"),
    ("16.4", "times.append(end - arrival)", "times.append(end)", "count from its arrival"),
    ("16.4", "max(arrival, heapq.heappop(free_at)) + service", "heapq.heappop(free_at) + service",
     "can't begin before it arrives"),
    ("16.4", "max(arrival, heapq.heappop(free_at)) + service", "arrival + service",
     "the requests before it"),
    ("16.4", "heapq.heappush(free_at, end)", "heapq.heappush(free_at, arrival)",
     "before it are first|the requests before it"),
    ("16.4", "[0.0] * seats", "[0.0]", "free first|you use one"),
    ("16.5", "            difference = 0\n",
     "            if key == given:\n                return True\n            difference = 0\n",
     "stop at the first byte"),
    ("16.5", "    found = False\n", "    return given in keys\n", "stop at the first byte"),
    ("16.5", "                difference |= one ^ other\n",
     "                if one != other:\n                    difference = 1\n                    break\n",
     "how many bytes were right"),
    ("16.5", "                difference |= one ^ other\n",
     "                if one != other:\n                    difference = 1\n",
     "how many bytes were right|which it was"),
    ("16.5", "            found |= difference == 0\n", "            if difference == 0:\n                return True\n",
     "Compare with all keys"),
]  # fmt: skip


def source(id: str) -> str:
    text = ANSWERS[id]
    return text if id == "16.1" else text.replace('"', "'")


def namespace(text: str) -> dict[str, Any]:
    return written("import heapq\nfrom math import ceil\n" + text)


@pytest.mark.parametrize("id", IDS)
def test_a_right_answer_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(ANSWERS) == set(IDS)
    passes(id, "import heapq\n" + ANSWERS[id], capsys)


@pytest.mark.parametrize("id", IDS)
def test_a_stub_is_not_written_yet(id: str) -> None:
    with pytest.raises(NotWritten):
        check(id, namespace(cleared(ANSWERS[id], id)))


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, "import heapq\n" + source(id), right, wrong, hint)


OTHERS = [
    (
        "16.1",
        "def events_of(pieces):\n    waiting = b''\n    for piece in pieces:\n        waiting += piece\n"
        "        while (end := _end(waiting)) is not None:\n"
        "            event, waiting = waiting[: end[0]], waiting[end[1] :]\n"
        "            lines = [line.rstrip(b'\\r').decode() for line in event.split(b'\\n')]\n"
        "            data = [line[6:] if line[5:6] == ' ' else line[5:] for line in lines if line[:5] == 'data:']\n"
        "            if data:\n                yield '\\n'.join(data)\n\n\n"
        "def _end(waiting):\n    at = 0\n    while (stop := waiting.find(b'\\n', at)) >= 0:\n"
        "        if waiting[at:stop] in (b'', b'\\r'):\n            return at, stop + 1\n        at = stop + 1\n"
        "    return None",
    ),
    (
        "16.2",
        "import codecs\n\n\ndef texts_of(tokens):\n    decoder = codecs.getincrementaldecoder('utf-8')('replace')\n"
        "    return [decoder.decode(token, i + 1 == len(tokens)) for i, token in enumerate(tokens)]",
    ),
    (
        "16.3",
        "class Bucket:\n    def __init__(self, rate, burst):\n"
        "        self.rate, self.burst, self.full_at = rate, burst, 0.0\n\n"
        "    def admit(self, now, cost):\n        if cost > self.burst:\n"
        "            raise ValueError(f'{cost} > {self.burst}')\n"
        "        start = max(self.full_at, now)\n        missing = (start - now) * self.rate + cost - self.burst\n"
        "        if missing > 0:\n            return ceil(missing / self.rate)\n"
        "        self.full_at = start + cost / self.rate\n",
    ),
    (
        "16.4",
        "def times_of(arrivals, services, seats):\n    ends = []\n    for arrival, service in zip(arrivals, services):\n"
        "        begin = arrival if len(ends) < seats else max(arrival, sorted(ends)[-seats])\n"
        "        ends.append(begin + service)\n    return [end - arrival for end, arrival in zip(ends, arrivals)]",
    ),
    ("16.5",
     "import hmac\n\n\ndef is_allowed(given, keys):\n    return any([hmac.compare_digest(given, key) for key in keys])"),
    (
        "16.5",
        "from hashlib import sha256\nfrom hmac import compare_digest\n\n\ndef is_allowed(given, keys):\n"
        "    digest = sha256(given).digest()\n"
        "    return sum(compare_digest(digest, sha256(key).digest()) for key in keys) > 0",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("id", "answer"), OTHERS)
def test_other_right_answers_pass(id: str, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes(id, answer, capsys)


def test_a_list_of_seats_in_any_order_passes(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ANSWERS["16.4"].replace("heapq.heappop(free_at)", "free_at.pop(free_at.index(min(free_at)))")
    passes("16.4", "import heapq\n" + answer, capsys)
    assert heapq.__name__ == "heapq"
    assert ceil(0.5) == 1
