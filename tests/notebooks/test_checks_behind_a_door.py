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
     "each half decoded by itself"),
    ("16.1", SPLIT,
     "lines = [each.encode() for each in (rest + piece).decode().splitlines()]\n        "
     'rest = b"" if piece.endswith(b"\\n") else lines.pop()',
     "splitlines|middle of a character|U.2028"),
    ("16.1", DECODE, "line = line.decode()", r"may end with \\r\\n"),
    ("16.1", DECODE, "line = line.decode().strip()", "One space after the colon"),
    ("16.1", FIELD, 'data.append(line.removeprefix("data:"))', "the text after `data: `"),
    ("16.1", FIELD, 'data.append(line.removeprefix("data: "))', "may be missing"),
    ("16.1", FIELD, 'data.append(line.removeprefix("data:").lstrip())', "One space after the colon"),
    ("16.1", FIELD, 'data.append(line.split(":")[1].removeprefix(" "))', "Only the first colon"),
    ("16.1", 'line.startswith("data:")', '":" in line', "is a comment|Only lines that begin"),
    ("16.1", "elif not line and data:", "elif not line:", "An event without data is none"),
    ("16.1", '                yield "\\n".join(data)\n                data = []', '                yield "\\n".join(data)',
     "may hold several"),
    ("16.1", JOIN, "yield from data", "join them with a line end"),
    ("16.1", JOIN, 'yield "".join(data)', "join them with a line end"),
    ("16.1", "                data = []", '                data = []\n    if data:\n        yield "\\n".join(data)',
     "was cut off, and is no event"),
    ("16.1", "for piece in pieces:", "for piece in list(pieces):", "yield an event as soon as it is complete"),
    ("16.1", JOIN, "yield", "its data is the text"),
    ("16.2", "range(4)", "range(1)", "You return .* texts"),
    ("16.2", "range(4)", "range(3)", "You return .* texts"),
    ("16.2", "rest += token", "rest = token", "Text .* is wrong|You return|must wait"),
    ("16.2", "rest[: len(rest) - waiting].decode()", 'rest[: len(rest) - waiting].decode("utf-8", "replace")',
     "must wait for the next token"),
    ("16.2", "rest[: len(rest) - waiting].decode()", 'rest[: len(rest) - waiting].decode("utf-8", "ignore")',
     "Text .* is|must not wait|each byte counts once"),
    ("16.2", "    if rest:\n        texts[-1] += '\\ufffd'\n", "", "Then the last text ends with one"),
    ("16.2", "texts[-1] += '\\ufffd'", "texts[-1] += '\\ufffd' * len(rest)", "ends with one"),
    ("16.2", "texts[-1] += '\\ufffd'", "texts.append('\\ufffd')", "You return 3 texts"),
    ("16.2", "        rest += token\n", "        rest += token\n        if not token:\n            continue\n",
     "which may be empty"),
    ("16.2", "            except UnicodeDecodeError:\n                continue\n",
     "            except KeyError:\n                continue\n", "Which bytes at the end must wait"),
    ("16.2", "            rest = rest[len(rest) - waiting :]\n", "            rest = b''\n",
     "Text .* is|each byte counts once|ends with one"),
    ("16.2", "return texts", "return ''.join(texts)", "Return a list of texts"),
    ("16.3", "min(self.burst, self.level + self.rate * (now - self.at))", "self.level + self.rate * (now - self.at)",
     "never has more than `burst`"),
    ("16.3", "        self.at = now\n", "", "it must be refused, with .* s to wait|never has more than"),
    ("16.3", "        if cost > self.level:\n            return ceil",
     "        if cost >= self.level:\n            return ceil",
     "Exactly enough is enough"),
    ("16.3", "return ceil((cost - self.level) / self.rate)", "return int((cost - self.level) / self.rate)", "Round up"),
    ("16.3", "return ceil((cost - self.level) / self.rate)", "return (cost - self.level) / self.rate",
     "whole number of seconds"),
    ("16.3", "return ceil((cost - self.level) / self.rate)", "return ceil(cost / self.rate)", "They are there after"),
    ("16.3", "return ceil((cost - self.level) / self.rate)", "return ceil((cost - self.level) * self.rate)",
     "Round up|They are there after"),
    ("16.3", "return ceil((cost - self.level) / self.rate)",
     "self.level -= cost\n            return ceil(-self.level / self.rate)", "They are there after|takes nothing"),
    ("16.3", "        self.level -= cost\n", "", "what was admitted before has taken some"),
    ("16.3", "        return None", "        return 0", "return None, not 0"),
    ("16.3", "raise ValueError(f'cost={cost}: must not exceed burst={self.burst}')", "return None",
     "can never be admitted"),
    ("16.3", "f'cost={cost}: must not exceed burst={self.burst}'", "'too much'", "should name both numbers"),
    ("16.3", "        if cost > self.burst:\n", "        if cost > self.burst:\n            self.level = 0\n",
     "must not have taken anything"),
    ("16.4", "times.append(end - arrival)", "times.append(end)", "count from its arrival"),
    ("16.4", "times.append(end - arrival)", "times.append(end - arrival - service)", "That is how long it waits"),
    ("16.4", "max(arrival, heapq.heappop(free_at)) + service", "heapq.heappop(free_at) + service",
     "can't begin before it arrives"),
    ("16.4", "max(arrival, heapq.heappop(free_at)) + service", "arrival + service",
     "those before it are first|the requests before it"),
    ("16.4", "heapq.heappush(free_at, end)", "heapq.heappush(free_at, arrival)",
     "before it are first|the requests before it"),
    ("16.4", "heapq.heappop(free_at)", "free_at.pop()", "is the one that is free first"),
    ("16.4", "[0.0] * seats", "[0.0]", "is the one that is free first|free serves a request at once"),
    ("16.4", "    free_at, times =", "    arrivals.sort(reverse=True)\n    free_at, times =", "You changed"),
    ("16.4", "return times", "return sum(times)", "return a list of numbers"),
    ("16.4", "return times", "return times[:-1]", "times for"),
    ("16.4", "    free_at, times =", "    while arrivals:\n        pass\n    free_at, times =",
     "go from request to request"),
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
    ("16.5", "        if len(key) == len(given):\n", "        if True:\n",
     "only the beginning|only its beginning|is empty"),
    ("16.5", "difference |= one ^ other", "difference += one - other", "The order|differs"),
    ("16.5", "difference |= one ^ other", "difference = one ^ other", "first character differs"),
    ("16.5", "found |= difference == 0", "found = difference == 0", "one of the keys"),
    ("16.5", "    return found", "    return int(found)", "should be True"),
    ("16.5", "    found = False\n", "    found = False\n    keys.reverse()\n", "changed the list"),
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
