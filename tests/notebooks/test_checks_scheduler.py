"""Checks of notebook 08: the notebook's solutions pass, and each typical mistake gets its hint."""

import pytest

from tests.solution_cells import gets_hint, passes, solutions

SOLUTIONS = solutions("08_scheduler")

# exercise, what of the solution is replaced, by what, and what the hint must say
MISTAKES = [
    ("8.1", "free + evictable", "free", "only cached are available as well"),
    ("8.1", "[*running, candidate]", "[candidate]", "are not all for the candidate"),
    ("8.1", " - wish.held", "", "must not be counted again"),
    ("8.1", "ceil(ratio", "int(ratio", "rounded up"),
    ("8.1", "ratio * (wish.max_kv_len - wish.num_tokens)", "wish.max_kv_len - wish.num_tokens", "half of the 15 tokens"),
    ("8.1", "wish.num_tokens + ceil(ratio * (wish.max_kv_len - wish.num_tokens))", "ceil(ratio * wish.max_kv_len)",
     "rounded up: exactly 6 \\+ 8|needs slots for the tokens it has"),
    ("8.1", "-(-expected // page_size) * page_size", "expected", "whole pages"),
    ("8.1", "-(-expected // page_size) * page_size", "expected // page_size * page_size", "whole pages"),
    ("8.1", "<= free", "< free", "21 slots are free and the request can fill at most 21"),
    ("8.1", "    return sum", "    sum", "Is a `return` missing|must return True or False"),
    ("8.2", "prefix_len, chunked_prefill_size - spent", "0, chunked_prefill_size - spent", "Cached tokens are not"),
    ("8.2", "chunked_prefill_size - spent", "chunked_prefill_size", "Other requests have spent 15"),
    ("8.2", "left = end, chunked_prefill_size", "left = end, chunked_prefill_size - spent", "later turn has 40 again"),
    ("8.2", "        if end > start:\n            found", "        if True:\n            found", "not an empty one"),
    ("8.2", " - left % page_size", "", "page boundary"),
    ("8.2", "found.append((start, end))", "found.append((start, end - start))", "40 tokens per turn|Cached tokens"),
    ("8.2", "end = num_tokens if num_tokens - start <= left else", "end =", "one chunk|until the prompt ends"),
    ("8.3", "-hit(prompts[i])", "hit(prompts[i])", "Most cached tokens first"),
    ("8.3", "len(prompt) - 1", "len(prompt)", "its last token is computed for its logits"),
    ("8.3", "most - most % page_size", "most", "whole number of pages"),
    ("8.3", "for tokens in cached:", "for tokens in cached[:1]:", "every cached sequence"),
    ("8.3", "            while same < min(len(prompt) - 1, len(tokens)) and prompt[same] == tokens[same]:\n"
     "                same += 1\n", "            same = len(set(prompt[:-1]) & set(tokens))\n", "a common \\*beginning"),
    ("8.3", "    return sorted(range(len(prompts)), key=lambda i: -hit(prompts[i]))",
     "    return sorted(range(len(prompts)), key=lambda i: (-hit(prompts[i]), -i))", "in order of arrival"),
    ("8.3", "    return sorted(range(len(prompts))", "    return sorted((i for i, p in enumerate(prompts) if hit(p))",
     "exactly once"),
    ("8.4", "list(running), []", "running, []", "must not change"),
    ("8.4", "while len(staying) > 1 and len(staying) > obtainable", "if len(staying) > 1 and len(staying) > obtainable",
     "retract until"),
    ("8.4", "len(staying) > 1 and ", "", "One request always stays|min\\(\\) "),
    ("8.4", "-req.ticket", "req.ticket", "the highest ticket"),
    ("8.4", "(req.outputs, -req.ticket)", "req.outputs", "highest ticket"),
    ("8.4", "(req.outputs, -req.ticket)", "(-req.outputs, -req.ticket)", "fewest output tokens"),
    ("8.4", "        obtainable += first.slots\n", "", "are free at once"),
    ("8.4", "len(staying) > obtainable", "len(running) > obtainable", "fewer slots are needed"),
    ("8.5", "    if left >= waiting[0].ticket + max_overtakes:\n        return waiting[0]\n", "", "starve"),
    ("8.5", "left >= waiting[0].ticket + max_overtakes", "left > waiting[0].ticket + max_overtakes", "firm bound"),
    ("8.5", "left >= waiting[0].ticket + max_overtakes", "left >= waiting[0].ticket + max_overtakes - 1", "bound in full"),
    ("8.5", "left >= waiting[0].ticket + max_overtakes", "left >= max_overtakes", "left already"),
    ("8.5", "max(waiting, key=lambda req: req.cached)", "waiting[0]", "the most cached tokens"),
    ("8.5", "max(waiting,", "max(waiting[::-1],", "among equals the first"),
    ("8.5", "        return waiting[0]\n", "        return 0\n", "one of the waiting requests"),
    ("8.6", "req.num_tokens + members > free", "req.num_tokens > free", "one more for each of the three"),
    ("8.6", "req.num_tokens + members > free", "req.prompt_len + members > free", "its 6 output tokens"),
    ("8.6", "            break\n", "            continue\n", "no request passes b"),
    ("8.6", "members > max_running or ", "", "Both rows are taken"),
    ("8.6", "members = len(running) + len(admitted) + 1", "members = len(running) + 1", "each of the three|takes 5 slots"),
    ("8.6", "        free -= req.num_tokens\n", "", "takes 5 slots and b 8"),
    ("8.6", 'return "EXTEND", admitted, []', 'return "EXTEND", [*running, *admitted], []', "newly admitted"),
    ("8.6", "min(reversed(staying)", "min(staying", "admitted last"),
    ("8.6", "key=lambda req: req.outputs", "key=lambda req: -req.outputs", "fewer output tokens"),
    ("8.6", "        free += first.slots\n", "", "4 slots are enough|slots are then free"),
    ("8.6", "list(running), []", "running, []", "must change neither"),
    ("8.6", "    if not running:\n        return \"IDLE\", [], []\n", "", "No request waits or runs"),
]  # fmt: skip


def test_every_exercise_has_mistakes_here() -> None:
    assert {id for id, *_ in MISTAKES} == set(SOLUTIONS)


@pytest.mark.parametrize("id", SOLUTIONS)
def test_the_notebooks_solution_passes(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes(id, SOLUTIONS[id], capsys)


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    gets_hint(id, SOLUTIONS[id], right, wrong, hint)
