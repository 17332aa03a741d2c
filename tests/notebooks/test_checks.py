"""Every exercise's check: solutions and other right answers pass, stubs are not written yet, and each typical mistake gets
its hint."""

import re
from pathlib import Path

import pytest

from notebooks.course import Hint, check
from notebooks.course.exercises import all_exercises
from notebooks.course.expectations import NotWritten
from notebooks.course.tables import ALSO
from notebooks.tools.student import cleared
from tests.notebooks import answers_03_to_07, answers_08_to_13, answers_14_to_19
from tests.solution_cells import SOLUTIONS, solutions, written

STUB = (
    "def tokens_to_compute(prompt, cached):\n    ### BEGIN SOLUTION\n    return prompt - cached\n    ### END SOLUTION"
)
SOLVED = {"0.1": STUB} | {
    id: text for path in sorted(SOLUTIONS.glob("*.ipynb")) for id, text in solutions(path.stem).items()
}
COMPILED = "12.4"  # has a file of its own: test_inner_loop.py
RIGHT = {**SOLVED, **answers_03_to_07.RIGHT}
MISTAKES = [
    ("0.1", "prompt - cached", "prompt", "only read"),
    ("0.1", "prompt - cached", "4 if cached else 14", "Other prompts"),
    *answers_03_to_07.MISTAKES,
    *answers_08_to_13.MISTAKES,
    *answers_14_to_19.MISTAKES,
]
OTHERS = [*answers_03_to_07.RIGHT.items(), *answers_08_to_13.OTHERS, *answers_14_to_19.OTHERS]


def test_every_exercise_has_a_solution_and_mistakes_here() -> None:
    ids = {exercise.id for exercise in all_exercises()}
    assert set(SOLVED) == ids
    assert {id for id, *_ in MISTAKES} == ids - {COMPILED}


@pytest.mark.parametrize("id", sorted(set(SOLVED) - {COMPILED}))
def test_the_solution_passes_and_the_stub_is_not_written_yet(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    check(id, written(SOLVED[id]))
    assert capsys.readouterr().out.startswith(f"✓ {id}")
    with pytest.raises(NotWritten):
        check(id, written(cleared(SOLVED[id], id)))


@pytest.mark.parametrize(("id", "answer"), OTHERS)
def test_other_right_answers_pass(id: str, answer: str) -> None:
    check(id, written(answer))


@pytest.mark.parametrize(("id", "right", "wrong", "hint"), MISTAKES)
def test_a_typical_mistake_gets_its_hint(id: str, right: str, wrong: str, hint: str) -> None:
    assert right in RIGHT[id]
    with pytest.raises(Hint, match=f"(?i){hint}") as caught:
        check(id, written(RIGHT[id].replace(right, wrong)))
    assert id == "6.5" or ALSO not in str(caught.value), "one mistake gets one hint"


@pytest.mark.parametrize(("id", "answer", "hint"), answers_08_to_13.WRONG)
def test_a_wrong_answer_gets_its_hint(id: str, answer: str, hint: str) -> None:
    with pytest.raises(Hint, match=hint):
        check(id, written(answer))


def test_two_mistakes_are_both_named() -> None:
    answer = (
        RIGHT["3.1"].replace("num_tokens * 2 *", "num_tokens *").replace("num_key_value_heads", "num_attention_heads")
    )
    with pytest.raises(
        Hint, match=re.compile(f"key/value heads, not query heads.*{ALSO}.*a key and a value", re.DOTALL)
    ):
        check("3.1", written(answer))


def test_a_loop_is_noticed_where_the_source_can_be_read(tmp_path: Path) -> None:
    text = (
        "import torch\n\n\ndef kv_indices(req_to_token, req_pool_indices, seq_lens):\n"
        "    rows = zip(req_pool_indices.tolist(), seq_lens.tolist())\n"
        "    return torch.cat([req_to_token[row, :seq] for row, seq in rows])\n"
    )
    (tmp_path / "answer.py").write_text(text)
    namespace: dict[str, object] = {}
    exec(compile(text, str(tmp_path / "answer.py"), "exec"), namespace)
    with pytest.raises(Hint, match="Python loop"):
        check("6.4", namespace)
