"""Checks of notebook 06: right answers pass, and each typical mistake gets its hint."""

from pathlib import Path
from typing import Any

import pytest
import torch

from notebooks.course import Hint, check
from tests.solution_cells import gets_hint, passes

POSITIONS = """
def positions(seq_lens, prefix_lens):
    spans = zip(prefix_lens.tolist(), seq_lens.tolist())
    return torch.cat([torch.arange(start, end) for start, end in spans])
"""
POINTERS = """
def row_pointers(lens):
    indptr = torch.zeros(len(lens) + 1, dtype=torch.int32)
    indptr[1:] = lens.cumsum(0)
    return indptr, indptr[:-1]
"""
CONTIGUOUS = """
def contiguous(out_cache_loc):
    slots = out_cache_loc.tolist()
    start, end = slots[0], slots[0] + len(slots)
    return (start, end) if slots == list(range(start, end)) else (None, None)
"""
INDICES = """
def kv_indices(req_to_token, req_pool_indices, seq_lens):
    lens = seq_lens.long()
    request = torch.repeat_interleave(torch.arange(len(lens)), lens)
    position = torch.arange(int(lens.sum())) - (lens.cumsum(0) - lens)[request]
    return req_to_token[req_pool_indices.long()[request], position]
"""
LOOP = """
def kv_indices(req_to_token, req_pool_indices, seq_lens):
    rows = zip(req_pool_indices.tolist(), seq_lens.tolist())
    return torch.cat([req_to_token[row, :seq] for row, seq in rows])
"""
PREDICTED = """
def predicted():
    return {
        "req_pool_indices": [2, 0],
        "seq_lens": [9, 5],
        "prefix_lens": [6, 4],
        "extend_seq_lens": [3, 1],
        "positions": [6, 7, 8, 4],
        "out_cache_loc": [2, 3, 20, 4],
        "start_loc": [0, 9],
        "qo_indptr": [0, 3, 4],
        "kv_indptr": [0, 9, 14],
        "kv_indices": [8, 9, 10, 11, 0, 1, 2, 3, 20, 8, 9, 10, 11, 4],
        "kv_last_page_len": [1, 1],
    }
"""
ANSWERS = {"6.1": POSITIONS, "6.2": POINTERS, "6.3": CONTIGUOUS, "6.4": INDICES, "6.5": PREDICTED}

# exercise, what of the right answer is replaced, by what, and what the hint must say
MISTAKES = [
    ("6.1", "torch.arange(start, end)", "torch.arange(end - start)", "start every request at position 0"),
    ("6.1", "torch.arange(start, end)", "torch.arange(end)", "positions of all tokens"),
    ("6.1", "torch.cat([torch.arange(start, end) for start, end in spans])",
     "torch.arange(sum(end - start for start, end in spans))", "start every request at position 0|indices in the batch"),
    ("6.1", "torch.arange(start, end)", "torch.arange(start + 1, end + 1)", "prefix_len, ..., seq_len - 1"),
    ("6.2", "return indptr, indptr[:-1]", "return indptr[1:], indptr[:-1]", "0 at the front is missing"),
    ("6.2", "return indptr, indptr[:-1]", "return indptr[:-1], indptr[:-1]", "total is missing at the end"),
    ("6.2", "return indptr, indptr[:-1]", "return indptr, indptr[1:]", "where each request \\*ends"),
    ("6.2", "lens.cumsum(0)", "lens.cumsum_(0)", "changed `lens`"),
    ("6.2", "lens.cumsum(0)", "lens", "the running sums"),
    ("6.3", "(start, end) if", "(start, end - 1) if", "`end` is exclusive"),
    ("6.3", "else (None, None)", "else None", "return two values"),
    ("6.4", "req_pool_indices.long()[request]", "request", "Request i of the batch is in row"),
    ("6.4", "- (lens.cumsum(0) - lens)[request]", "* 0", "each in the order of its positions"),
    ("6.4", "    return req_to_token", "    req_to_token += 0\n    req_to_token[1, 15] = -1\n    return req_to_token",
     "Only read it|order of its positions"),
    ("6.5", '"prefix_lens": [6, 4]', '"prefix_lens": [6, 0]', "10 of 11 .*`prefix_lens` is \\[6, 0\\]"),
    ("6.5", '"kv_last_page_len": [1, 1]', '"kv_last_page_len": [9, 5]', "its pages have one token"),
    ("6.5", '"qo_indptr": [0, 3, 4]', '"qo_indptr": [0, 9, 14]', "among the \\*new\\* tokens"),
    ("6.5", '        "start_loc": [0, 9],\n', "", "still missing: start_loc"),
    ("6.5", '"kv_indptr": [0, 9, 14]', '"kv_indptr": None', "`kv_indptr` is None"),
]  # fmt: skip


@pytest.mark.parametrize("id", ANSWERS)
def test_a_right_answer_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes(id, ANSWERS[id], capsys)


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, ANSWERS[id], right, wrong, hint)


def test_a_loop_is_noticed_where_the_source_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "answer.py"
    path.write_text(LOOP)
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(LOOP, str(path), "exec"), namespace)
    with pytest.raises(Hint, match="Python loop"):
        check("6.4", namespace)
