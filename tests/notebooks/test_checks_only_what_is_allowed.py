"""Checks of notebook 15: right answers pass, and each typical mistake gets its hint."""

import pytest

from notebooks.course import Hint, check
from notebooks.course.expectations import NotWritten
from notebooks.tools.student import cleared
from tests.solution_cells import gets_hint, passes, solutions, written

ANSWERS = solutions("15_only_what_is_allowed")
IDS = ("15.1", "15.2", "15.3", "15.4")
OF_TOKEN = "state in accepting if token == end else bool(text) and at is not None"

# exercise, what of the right answer is replaced, by what, and what the hint must say
MISTAKES = [
    ("15.1", "in text:", "in text[1:]:", "its first character has no arrow|all its characters have an arrow"),
    ("15.1", "arrows.get((at, char))", "arrows.get((state, char))",
     "Each arrow leads to the state for the next|one after the other"),
    ("15.1", OF_TOKEN, "bool(text) and at is not None", "the end token is allowed"),
    ("15.1", "at is not None)", "at in accepting)", "where the text may not end yet"),
    ("15.1", "and at is not None)", "and at not in (None, 0))", "all its characters have an arrow"),
    ("15.2", "            allowed.append(end)\n", "",
     "the end token 0 is the best|more than `most`|larger score|So it ends"),
    ("15.2", "        if state in accepting:\n", "        if True:\n", "the text must go on|not allowed"),
    ("15.2", "            if not allowed:\n                return ids, 'stop'\n", "", "nothing can follow"),
    ("15.2", "max(sorted(allowed)", "max(sorted(allowed)[::-1]", "Take the lower number|So it ends|ended after"),
    ("15.3", "mask[tokens // 32] >> (tokens % 32) & 1", "(mask[tokens // 32] & (1 << tokens % 32).astype(np.int32)) > 0",
     "the sign of an int32"),
    ("15.3", "(tokens % 32) & 1", "(31 - tokens % 32) & 1", "bit 0 is the lowest bit"),
    ("15.3", "allowed == 0", "allowed != 0", "you forbid the allowed tokens|you forbid token"),
    ("15.3", "    for row, mask", "    masks[:] = masks\n    masks[:1] = 0\n    for row, mask", "you changed `masks`"),
    ("15.3", "    tokens = np", "    scores += 1\n    tokens = np", "you changed it|keep their scores"),
    ("15.4", " or allowed[0] == end", "", "is no draft"),
    ("15.4", "len(allowed) != 1", "len(allowed) == 0", "so none is forced|may end as well"),
    ("15.4", "len(drafts) < most", "len(drafts) < min(most, 1)", "the run goes on with it"),
    ("15.4", "        state = after(state, drafts[-1])\n", "", "without an alternative|the run goes on|so none is forced"),
    ("15.4", "int(allowed[0])", "int(allowed[0]) + 1", "leads nowhere from there"),
]  # fmt: skip


def source(id: str) -> str:
    return ANSWERS[id].replace('"stop"', "'stop'").replace('"length"', "'length'")


@pytest.mark.parametrize("id", IDS)
def test_a_right_answer_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(ANSWERS) == set(IDS)
    passes(id, ANSWERS[id], capsys)


@pytest.mark.parametrize("id", IDS)
def test_a_stub_is_not_written_yet(id: str) -> None:
    with pytest.raises(NotWritten):
        check(id, written(cleared(ANSWERS[id], id)))


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, source(id), right, wrong, hint)


BITS = "def apply_bits(scores, rows, masks):\n    "


@pytest.mark.parametrize(
    "body",
    [
        "V = scores.shape[1]\n"
        "    if len(rows):\n"
        "        bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder='little', count=V)\n"
        "        scores[rows] = scores[rows].masked_fill(torch.from_numpy(bits == 0), -torch.inf)",
        "for row, mask in zip(rows, masks):\n        for t in range(scores.shape[1]):\n"
        "            if not int(mask[t // 32]) >> t % 32 & 1:\n                scores[row, t] = float('-inf')",
    ],
)  # fmt: skip
def test_other_ways_to_apply_bits_pass(body: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes("15.3", BITS + body, capsys)


def test_a_result_that_is_only_returned_is_not_looked_at() -> None:
    body = "out = scores.clone()\n    for row in rows:\n        out[row] = -torch.inf\n    return out"
    with pytest.raises(Hint, match="What you return isn't looked at"):
        check("15.3", written(BITS + body))


@pytest.mark.parametrize(
    ("id", "answer"),
    [
        (
            "15.1",
            "def mask_of(arrows, accepting, state, tokens, end):\n"
            "    def walk(at, text):\n"
            "        return at if at is None or not text else walk(arrows.get((at, text[0])), text[1:])\n"
            "    mask = [text != '' and walk(state, text) is not None for text in tokens]\n"
            "    mask[end] = state in accepting\n    return np.array(mask)",
        ),
        (
            "15.4",
            "def forced(bits_of, after, state, end, most):\n    found = []\n    for _ in range(most):\n"
            "        row = bits_of(state).view(np.uint32)\n"
            "        ids = [32 * w + b for w in range(len(row)) for b in range(32) if int(row[w]) >> b & 1]\n"
            "        if ids == [end] or len(ids) != 1:\n            return found\n"
            "        found += ids\n        state = after(state, ids[0])\n    return found",
        ),
    ],
)
def test_other_right_answers_pass(id: str, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes(id, answer, capsys)
