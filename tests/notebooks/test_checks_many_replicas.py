"""Checks of notebook 17: right answers pass, and each typical mistake gets its hint."""

from typing import Any

import pytest

from notebooks.course import check
from notebooks.course.expectations import NotWritten
from notebooks.tools.student import cleared
from tests.solution_cells import gets_hint, passes, solutions, written

ANSWERS = solutions("17_many_replicas")
IDS = ("17.1", "17.2", "17.3", "17.4", "17.5")
# What the notebook has before its exercises.
BEFORE = (
    "from hashlib import blake2b\nfrom dataclasses import dataclass\n\n\n@dataclass\nclass View:\n"
    "    name: str\n    cached: int\n    queued: int\n    requests: int\n\n\n"
)
WEIGHED = "0.001 * (view.queued + missing) + 0.01 * view.requests"
TOO_OLD = "sent_at is None or now - sent_at > self.seconds"

# exercise, what of the right answer is replaced, by what, and what the hint must say
MISTAKES = [
    ("17.1", "len(tokens) - size + 1", "len(tokens)", "left over at the end"),
    ("17.1", "parent.to_bytes(8,", "namespace.to_bytes(8,", "doesn't depend on the first block"),
    ("17.1", "hashes, parent = [], namespace", "hashes, parent = [], 0", "begin with the namespace"),
    ("17.1", "'little'", "'big'", "big-endian"),
    ("17.1", "token.to_bytes(8,", "token.to_bytes(4,", "Each token has 8 bytes"),
    ("17.2", WEIGHED, "view.requests", "It has the whole story"),
    ("17.2", WEIGHED, "-view.cached", "fewest tokens ahead"),
    ("17.2", WEIGHED, "0.00001 * view.queued - view.cached", "5,000 ahead"),
    ("17.2", WEIGHED, "0.001 * missing + 0.01 * view.requests", "fewest tokens ahead"),
    ("17.2", WEIGHED, "0.001 * (view.queued + missing) + 0.5 * view.requests",
     "Nine requests that are computed|Waiting for 100 tokens"),
    ("17.3", "order = [0, 1, 2, 1, 2, 0, 2, 0, 1] * 2", "order = [0, 1, 2] * 6", "by accident"),
    ("17.3", "order = [0, 1, 2, 1, 2, 0, 2, 0, 1] * 2", "order = [0] * 9", "With a single story"),
    ("17.3", "order = [0, 1, 2, 1, 2, 0, 2, 0, 1] * 2", "order = range(9)", "No story comes twice"),
    ("17.3", "* 2", "* 3", "1 to 24 pairs"),
    ("17.3", "0.005 * i", "5.0 * i", "has heard of it"),
    ("17.4", TOO_OLD, "sent_at is None", "They were sent too long ago"),
    ("17.4", TOO_OLD, "sent_at is None or now - sent_at >= self.seconds", "still counts"),
    ("17.4", "block not in held and (", "(", "The index knows two of them"),
    ("17.4", "                break\n", "                continue\n", "what comes after it is of no use"),
    ("17.4", "            count += 1\n", "            count += 1\n        count = max(count, 0)\n        if held:\n"
     "            return sum(b in held for b in hashes)\n", "both count together|Each block counts|should be"),
    ("17.5", "    if query_heads % parts:\n", "    if False:\n", "Raise a ValueError"),
    ("17.5", "f'parts={parts}: must divide query_heads={query_heads}'", "'cannot be divided'", "it should name"),
    ("17.5", "range(part * each, (part + 1) * each)", "range(part, query_heads, parts)", "neighbours"),
    ("17.5", "sorted({head // group for head in mine})", "[head // group for head in mine]", "List a K/V head once"),
    ("17.5", "sorted({head // group for head in mine})", "list(range(kv_heads))", "would only take memory"),
]  # fmt: skip


def source(id: str) -> str:
    return BEFORE + ANSWERS[id].replace('"', "'").replace("'''", '"""')


def namespace(text: str) -> dict[str, Any]:
    return written(text)


@pytest.mark.parametrize("id", IDS)
def test_a_right_answer_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(ANSWERS) == set(IDS)
    passes(id, BEFORE + ANSWERS[id], capsys)


@pytest.mark.parametrize("id", IDS)
def test_a_stub_is_not_written_yet(id: str) -> None:
    with pytest.raises(NotWritten):
        check(id, namespace(BEFORE + cleared(ANSWERS[id], id)))


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, source(id), right, wrong, hint)


def test_a_block_that_is_sent_again_counts_as_new() -> None:
    old = "            self.sent_at.pop((replica, block), None)  # so that the oldest are first\n"
    gets_hint("17.4", source("17.4").replace(old, ""), "self.sent_at[replica, block] = now",
              "self.sent_at.setdefault((replica, block), now)", "It was sent again")  # fmt: skip


OTHERS = [
    (
        "17.1",
        "import struct\n\n\ndef hashes_of(tokens, size, namespace):\n    if len(tokens) < size:\n        return []\n"
        "    data = struct.pack(f'<Q{size}q', namespace, *tokens[:size])\n"
        "    (first,) = struct.unpack('<Q', blake2b(data, digest_size=8).digest())\n"
        "    return [first, *hashes_of(tokens[size:], size, first)]",
    ),
    (
        "17.2",
        "def best(prompt_tokens, views):\n"
        "    return sorted(views, key=lambda v: (v.queued - v.cached) + 12 * v.requests)[0]",
    ),
    ("17.3", "def losing_burst():\n    return [(0, i % 2) for i in range(12)]"),
    (
        "17.4",
        "class Memory:\n    def __init__(self, seconds):\n        self.seconds, self.sent_at = seconds, {}\n\n"
        "    def sent(self, replica, hashes, now):\n"
        "        self.sent_at = {k: at for k, at in self.sent_at.items() if now - at <= self.seconds}\n"
        "        self.sent_at |= {(replica, block): now for block in hashes}\n\n"
        "    def matched(self, replica, hashes, held, now):\n        for i, block in enumerate(hashes):\n"
        "            young = now - self.sent_at.get((replica, block), float('-inf')) <= self.seconds\n"
        "            if not (young or block in held):\n                return i\n        return len(hashes)\n\n"
        "    def died(self, replica):\n"
        "        self.sent_at = {k: at for k, at in self.sent_at.items() if k[0] != replica}\n\n"
        "    def size(self):\n        return len(self.sent_at)",
    ),
    (
        "17.5",
        "def heads_of(part, parts, query_heads, kv_heads):\n    each, rest = divmod(query_heads, parts)\n    if rest:\n"
        "        raise ValueError(f'{query_heads} heads, {parts} processes')\n"
        "    first, group = part * each, query_heads // kv_heads\n"
        "    return list(range(first, first + each)), list(range(first // group, (first + each - 1) // group + 1))",
    ),
]


@pytest.mark.parametrize(("id", "answer"), OTHERS)
def test_other_right_answers_pass(id: str, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes(id, BEFORE + answer, capsys)
