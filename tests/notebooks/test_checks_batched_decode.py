"""Checks of notebook 04: right answers pass, and each typical mistake gets its hint."""

import pytest

from tests.solution_cells import gets_hint, passes

PAD = """
def pad(keys):
    lens = [len(key) for key in keys]
    rectangle = torch.zeros(len(keys), max(lens), *keys[0].shape[1:])
    for row, key in enumerate(keys):
        rectangle[row, : len(key)] = key
    seen = torch.arange(max(lens)) < torch.tensor(lens)[:, None]
    return rectangle, seen
"""
ATTENTION = """
def batched_decode_attention(q, keys, values, seen):
    keys, values = keys.clone(), values.clone()
    keys[~seen] = 0
    values[~seen] = 0
    group = q.shape[1] // keys.shape[2]
    keys, values = keys.repeat_interleave(group, 2), values.repeat_interleave(group, 2)
    scores = torch.einsum("bhd,bshd->bhs", q, keys) / q.shape[2] ** 0.5
    scores[~seen[:, None].expand_as(scores)] = -torch.inf
    return torch.einsum("bhs,bshd->bhd", scores.softmax(-1), values)
"""
SPLIT = """
def split_rows(rectangle, lens):
    return [rectangle[row, :length].clone() for row, length in enumerate(lens)]
"""
STEP = """
def step(running, waiting, max_running, decode):
    finished = []
    while waiting and len(running) < max_running:
        request = waiting.popleft()
        request.prefill()
        (finished if request.finished else running).append(request)
    if running:
        decode(running)
    finished += [request for request in running if request.finished]
    running[:] = [request for request in running if not request.finished]
    return finished
"""
SHARE = """
def padding_share(prompt_lens, new_tokens):
    used = total = 0
    for i in range(max(new_tokens) - 1):
        rows = [n + i + 1 for n, new in zip(prompt_lens, new_tokens) if new - 1 > i]
        used, total = used + sum(rows), total + len(rows) * max(rows)
    return 1 - used / total if total else 0.0
"""
ANSWERS = {"4.1": PAD, "4.2": ATTENTION, "4.3": SPLIT, "4.4": STEP, "4.5": SHARE}

# exercise, what of the right answer is replaced, by what, and what the hint must say
MISTAKES = [
    ("4.1", "max(lens)) <", "max(lens)) >=", "mask is True for padding"),
    ("4.1", "torch.zeros(", "torch.ones(", "must be zeros"),
    ("4.1", ": len(key)] = key", "-len(key) :] = key", "must begin with"),
    ("4.1", "max(lens), *keys", "10, *keys", "longest"),
    ("4.2", "    scores[~seen[:, None].expand_as(scores)] = -torch.inf\n", "", "Padding isn't masked"),
    ("4.2", "= -torch.inf", "= 0", "Padding isn't masked"),
    ("4.2", "    values[~seen] = 0\n", "", "the output is NaN"),
    ("4.2", "keys.repeat_interleave(group, 2), values.repeat_interleave(group, 2)",
     "keys.repeat(1, 1, group, 1), values.repeat(1, 1, group, 1)", "h % Hk"),
    ("4.2", " / q.shape[2] ** 0.5", "", "square root of D"),
    ("4.3", ".clone()", "", "keeps 480 bytes alive"),
    ("4.3", ".clone()", ".contiguous()", "doesn't copy a tensor that is already contiguous"),
    ("4.4", "    if running:\n        decode", "    if True:\n        decode", "pass without requests"),
    ("4.4", "(finished if request.finished else running)", "running", "has already finished"),
    ("4.4", "        request.prefill()\n", "", "wasn't prefilled"),
    ("4.4", "popleft()", "pop()", "waited longest"),
    ("4.4", "len(running) < max_running", "len(running) <= max_running", "room for"),
    ("4.5", "n + i + 1 for n, new in zip(prompt_lens, new_tokens) if new - 1 > i",
     "n + min(i + 1, new - 1) for n, new in zip(prompt_lens, new_tokens)", "keep all requests in the batch"),
    ("4.5", "used = total = 0\n", "return 1 - sum(prompt_lens) / len(prompt_lens) / max(prompt_lens)\n", "Rows grow"),
    ("4.5", "n + i + 1", "n + i", "another share"),
    ("4.5", "new - 1 > i", "new > i", "another share"),
    ("4.5", "1 - used / total", "used / total", "another share"),
]  # fmt: skip


@pytest.mark.parametrize("id", ANSWERS)
def test_a_right_answer_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes(id, ANSWERS[id], capsys)


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, ANSWERS[id], right, wrong, hint)
