"""What the pages about drafts show: the formula of notebook 14, and passes that an engine has made."""

import itertools
from collections.abc import Callable

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.drafting.measurements import ENOUGH, PassCosts
from notebooks.course.explore import Cells, Explorable, Lines, Numbers
from notebooks.course.explore.draft_gain import best_drafts, draft_gain, gain, pass_ms, tokens_per_pass
from notebooks.course.explore.verify_steps import COPY, DRAFTS, KINDS, Pass, record_passes, verify_steps


def expected_tokens(p: float, k: int) -> float:
    """By counting: the tokens that come of each outcome, times how likely it is."""
    stops = sum((j + 1) * p**j * (1 - p) for j in range(k))
    return stops + (k + 1) * p**k


def test_the_gain_is_tokens_per_second_by_the_costs_that_the_engine_would_know() -> None:
    costs = PassCosts()
    for rows in range(1, 300):
        for _ in range(ENOUGH + 1):
            costs.add(rows, 1e-3 * pass_ms(rows))
    explorable = draft_gain()
    for chosen, frame in explorable.frames.items():
        batch, p, k = (control.values[i] for control, i in zip(explorable.controls, chosen, strict=True))
        assert tokens_per_pass(p, k) == pytest.approx(expected_tokens(p, k))
        with_drafts = batch * expected_tokens(p, k) / costs.seconds(batch * (1 + k))
        times = with_drafts * costs.seconds(batch) / batch
        assert gain(batch, p, k) == pytest.approx(times)
        lines, numbers = frame.panels
        assert isinstance(lines, Lines)
        assert isinstance(numbers, Numbers)
        assert numbers.numbers[-1].value == f"{times:.2f} times as many"
        best = best_drafts(batch, p)
        here = f"{times:.2f}, the best" if k == best else f"{times:.2f}"
        there = [(best, pytest.approx(gain(batch, p, best), abs=1e-3), "the best")] if best not in (0, k) else []
        assert [(mark.x, mark.y, mark.text) for mark in lines.marks] == [
            (k, pytest.approx(times, abs=1e-3), here),
            *there,
        ]
        assert ("gains. " in frame.sentence) == (times > 1.005)
        assert ("loses. " in frame.sentence) == (times < 0.995)


def test_the_best_number_of_drafts_falls_with_the_batch_and_rises_with_acceptance() -> None:
    grid = [[best_drafts(batch, p) for p in (0.2, 0.4, 0.6, 0.8, 0.9)] for batch in (1, 4, 8, 16, 32)]
    assert all(line == sorted(line) for line in grid)
    assert all(
        before >= after for one, other in itertools.pairwise(grid) for before, after in zip(one, other, strict=True)
    )
    assert grid[0][-1] > 4
    assert grid[-1][0] == 0


@pytest.fixture(scope="module")
def passes(recorded: Callable[[Callable[[LLM], dict[str, Pass]]], dict[str, Pass]]) -> dict[str, Pass]:
    return recorded(record_passes)


def test_there_is_a_pass_of_each_kind_and_its_tokens_are_those_without_drafts(
    passes: dict[str, Pass], story: LLM
) -> None:
    (output,) = story.generate(COPY, SamplingParams(max_new_tokens=100, temperature=0, ignore_eos=True), use_tqdm=False)
    text = [*story.tokenizer.encode(COPY), *output.token_ids]
    assert set(passes) == set(KINDS)
    for kind, each in passes.items():
        assert each.got == text[each.start + 1 : each.start + 1 + len(each.got)]
        right = next((j for j in range(DRAFTS) if each.tokens[1 + j] != text[each.start + 1 + j]), DRAFTS)
        assert each.accepted == right
        assert each.kv_len == each.start + 1 + right
        assert (right == DRAFTS, right == 0) == (kind == KINDS[1], kind == KINDS[2])
        assert each.next_tokens[0] == each.got[-1]
        wrong = each.slots[1 + right :]
        assert each.next_slots[: len(wrong)] == wrong[: len(each.next_slots)], "a wrong draft's slot is used again"


def test_each_row_reads_one_token_more_and_wrong_slots_are_written_again(
    passes: dict[str, Pass], recorded: Callable[[Callable[[LLM], Explorable]], Explorable]
) -> None:
    explorable = recorded(verify_steps)
    for (i, step), frame in explorable.frames.items():
        each, (cells, outcomes, request) = passes[KINDS[i]], frame.panels
        assert isinstance(cells, Cells)
        assert isinstance(outcomes, Numbers)
        looks = [[cell.look for cell in row.cells] for row in cells.rows]
        for j in range(1 + DRAFTS):
            reads = looks[2 + j].count("in-use"), looks[2 + j].count("new")
            assert reads == ((1 + j, 1) if step > j else (0, 0))
        seen = [number.value for number in outcomes.numbers]
        assert [value == "doesn't count" for value in seen] == [step > j > each.accepted for j in range(1 + DRAFTS)]
        assert isinstance(request, Numbers)
        known = step > each.accepted
        said = f"{each.accepted} of {DRAFTS}" if known else f"{step} so far" if step else "not known yet"
        assert request.numbers[2].value == said
        assert request.numbers[3].value == (str(len(each.got)) if known else f"{max(step, 1)} at least")
        assert {look for look, _ in cells.legend} == {look for row in looks for look in row} - {"unused"}
        again = sum(cell.mark == "written" for cell in cells.rows[1].cells)
        last = step == len(explorable.controls[1].values) - 1
        assert again == (len({*each.slots} & {*each.next_slots}) if last else 0)
