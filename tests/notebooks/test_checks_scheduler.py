"""Checks of notebooks 10 and 11: the notebooks' solutions pass, and each typical mistake gets its hint."""

import pytest

from tests.solution_cells import gets_hint, passes, solutions

SOLUTIONS = solutions("10_scheduler") | solutions("11_scheduling_policy")

# exercise, what of the solution is replaced, by what, and what the hint must say
MISTAKES = [
    ("10.1", "free + evictable", "free", "Evictable slots are available too"),
    ("10.1", "[*running, candidate]", "[candidate]", "candidate can't have all"),
    ("10.1", " - wish.held", "", "don't count them again"),
    ("10.1", "ceil(ratio", "int(ratio", "rounded up"),
    ("10.1", "ratio * (wish.max_kv_len - wish.num_tokens)", "wish.max_kv_len - wish.num_tokens", "half of the 15 tokens"),
    ("11.1", "prefix_len, chunked_prefill_size - spent", "0, chunked_prefill_size - spent", "Cached tokens aren't"),
    ("11.1", "chunked_prefill_size - spent", "chunked_prefill_size", "Other requests have used 15"),
    ("11.1", "left = end, chunked_prefill_size", "left = end, chunked_prefill_size - spent", "later round has 40 again"),
    ("11.1", "        if end > start:\n            found", "        if True:\n            found", "not an empty one"),
    ("11.1", " - left % page_size", "", "page boundary"),
    ("11.2", "-hit(prompts[i])", "hit(prompts[i])", "The most cached tokens go first"),
    ("11.2", "len(prompt) - 1", "len(prompt)", "its last token must be computed"),
    ("11.2", "most - most % page_size", "most", "whole number of pages"),
    ("11.2", "for tokens in cached:", "for tokens in cached[:1]:", "every cached sequence"),
    ("11.2", "            while same < min(len(prompt) - 1, len(tokens)) and prompt[same] == tokens[same]:\n"
     "                same += 1\n", "            same = len(set(prompt[:-1]) & set(tokens))\n", "a common \\*beginning"),
    ("10.2", "list(running), []", "running, []", "You changed `running`"),
    ("10.2", "while len(staying) > 1 and len(staying) > obtainable", "if len(staying) > 1 and len(staying) > obtainable",
     "Retract until"),
    ("10.2", "len(staying) > 1 and ", "", "One request always stays|min\\(\\) "),
    ("10.2", "-req.ticket", "req.ticket", "the highest ticket"),
    ("10.2", "(req.outputs, -req.ticket)", "req.outputs", "highest ticket"),
    ("11.3", "    if left >= waiting[0].ticket + max_overtakes:\n        return waiting[0]\n", "", "starve"),
    ("11.3", "left >= waiting[0].ticket + max_overtakes", "left > waiting[0].ticket + max_overtakes", "firm limit"),
    ("11.3", "left >= waiting[0].ticket + max_overtakes", "left >= waiting[0].ticket + max_overtakes - 1", "tokens decide"),
    ("11.3", "left >= waiting[0].ticket + max_overtakes", "left >= max_overtakes", "after other requests have left"),
    ("11.3", "max(waiting, key=lambda req: req.cached)", "waiting[0]", "the most cached tokens"),
    ("10.3", "req.num_tokens + members > free", "req.num_tokens > free", "one more for each of the three"),
    ("10.3", "req.num_tokens + members > free", "req.prompt_len + members > free", "its 6 output tokens"),
    ("10.3", "            break\n", "            continue\n", "no request may overtake b"),
    ("10.3", "members > max_running or ", "", "Both rows are taken"),
    ("10.3", "members = len(running) + len(admitted) + 1", "members = len(running) + 1", "each of the three|takes 5 slots"),
]  # fmt: skip


def test_every_exercise_has_mistakes_here() -> None:
    assert {id for id, *_ in MISTAKES} == set(SOLUTIONS)


@pytest.mark.parametrize("id", SOLUTIONS)
def test_the_notebooks_solution_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes(id, SOLUTIONS[id], capsys)


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, SOLUTIONS[id], right, wrong, hint)
