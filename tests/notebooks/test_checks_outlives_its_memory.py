"""Checks of notebook 19: right answers pass, and each typical mistake gets its hint."""

import pytest

from notebooks.course import check
from notebooks.course.expectations import NotWritten
from notebooks.tools.student import cleared
from tests.solution_cells import gets_hint, passes, solutions, written

ANSWERS = solutions("19_a_cache_that_outlives_its_memory")
IDS = ("19.1", "19.2", "19.3", "19.4")
BEFORE = "from collections.abc import Callable\nfrom hashlib import sha256\n\n\n"  # what the notebook imports
KEPT = "bucket[tuple(tokens)] = kv"
FOUND = "self.buckets.get(self.hash_of(tokens), {}).get(tuple(tokens))"

# exercise, what of the right answer is replaced, by what, and what the hint must say
MISTAKES = [
    ("19.1", "int(begin / gain) + 1", "-int(-begin // gain)", "Equal isn't faster|at least 1"),
    ("19.1", "gain <= 0", "gain < -1", "never faster|division"),
    ("19.1", "        return None\n", "        return 0\n", "Return None"),
    ("19.1", "int(begin / gain) + 1", "1", "forget the"),
    ("19.2", "if name not in continued", "", "is behind the one"),
    ("19.2", "return min(", "return max(", "was used longer ago"),
    ("19.3", KEPT, "bucket[0] = kv", "and get|is wrong"),
    ("19.3", KEPT, "bucket[len(tokens)] = kv", "is wrong"),
    ("19.3", "self.buckets.setdefault(self.hash_of(tokens), {})", "self.buckets[self.hash_of(tokens)] = {}",
     "Both are to be kept"),
    ("19.3", FOUND, "next(iter(self.buckets.get(self.hash_of(tokens), {}).values()), None)", "another text"),
    ("19.3", FOUND, "{tuple(sorted(k)): v for k, v in self.buckets.get(self.hash_of(tokens), {}).items()}"
     ".get(tuple(sorted(tokens)))", "in their order"),
    ("19.4", " or data[: len(head)] != head", "", "checksum fits"),
    ("19.4", "    if sha256(data[:end]).digest() != data[end:]:\n        return None\n", "", "has changed"),
    ("19.4", "data[len(head) : end]", "data[len(head) :]", "It is right, and so are the tokens"),
    ("19.4", "    if len(data)", "    assert data\n    if len(data)", "it is only a miss"),
    ("19.4", "head = fingerprint +", "head = data[:16] +", "another model"),
]  # fmt: skip


def source(id: str) -> str:
    return BEFORE + ANSWERS[id].replace('"', "'").replace("'''", '"""')


@pytest.mark.parametrize("id", IDS)
def test_a_right_answer_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(ANSWERS) == set(IDS)
    passes(id, BEFORE + ANSWERS[id], capsys)


@pytest.mark.parametrize("id", IDS)
def test_a_stub_is_not_written_yet(id: str) -> None:
    with pytest.raises(NotWritten):
        check(id, written(BEFORE + cleared(ANSWERS[id], id)))


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, source(id), right, wrong, hint)


def test_a_list_that_its_owner_changes_does_not_change_the_table() -> None:
    kept_list = (
        "class Table:\n    def __init__(self, hash_of):\n        self.hash_of, self.buckets = hash_of, {}\n\n"
        "    def put(self, tokens, kv):\n        bucket = self.buckets.setdefault(self.hash_of(tokens), [])\n"
        "        bucket[:] = [pair for pair in bucket if pair[0] != tokens] + [(tokens, kv)]\n\n"
        "    def get(self, tokens):\n        for known, kv in self.buckets.get(self.hash_of(tokens), []):\n"
        "            if known == tokens:\n                return kv\n        return None\n\n"
        "    def size(self):\n        return sum(map(len, self.buckets.values()))\n"
    )
    gets_hint("19.3", kept_list, "[(tokens, kv)]", "[(tokens, kv)]", "keep a copy")
    check("19.3", written(kept_list.replace("[(tokens, kv)]", "[(list(tokens), kv)]")))


OTHERS = [
    (
        "19.1",
        "def fewest_tokens(bytes_per_token, bytes_per_second, begin, compute):\n"
        "    each = bytes_per_token / bytes_per_second\n    if each >= compute:\n        return None\n    n = 1\n"
        "    while begin + n * each >= n * compute:\n        n += 1\n    return n",
    ),
    (
        "19.2",
        "def first_to_leave(blocks):\n    for name, _ in sorted(blocks.items(), key=lambda item: item[1][1]):\n"
        "        if not any(before == name for before, _ in blocks.values()):\n            return name",
    ),
    (
        "19.4",
        "import struct\n\n\ndef read_kv(data, fingerprint, tokens, token_bytes):\n    n = len(tokens)\n"
        "    if len(data) != 20 + n * (4 + token_bytes) + 32:\n        return None\n"
        "    if sha256(data[:-32]).digest() != data[-32:]:\n        return None\n"
        "    name, count = data[:16], int.from_bytes(data[16:20], 'little')\n"
        "    found = list(struct.unpack(f'<{n}I', data[20 : 20 + 4 * n]))\n"
        "    same = (name, count, found) == (fingerprint, n, tokens)\n"
        "    return data[20 + 4 * n : -32] if same else None",
    ),
]


@pytest.mark.parametrize(("id", "answer"), OTHERS)
def test_other_right_answers_pass(id: str, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes(id, BEFORE + answer, capsys)
