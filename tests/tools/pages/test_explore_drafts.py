"""What the page about drafts shows: passes that an engine has made."""

from collections.abc import Callable

import pytest

from nanoinfer import LLM, SamplingParams
from notebooks.course.explore import Cells, Explorable, Numbers
from notebooks.course.explore.verify_steps import COPY, DRAFTS, KINDS, Pass, record_passes, verify_steps


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
