"""What of a submission is to be run and checked, in which order."""

import ast
from collections import Counter
from dataclasses import dataclass
from typing import Any

from notebooks.course.exercises import exercises_of, notebook_of
from notebooks.tools.files import source_of
from notebooks.tools.needed import needed
from notebooks.tools.student import checked_ids, exercise_ids, number_of


@dataclass
class Step:
    """One thing to do: run a cell's `source`, or check the exercise `check`. `cell` counts from 1."""

    cell: int
    source: str | None = None
    check: str | None = None


def plan(notebook: dict[str, Any], name: str, *, quick: bool = False) -> tuple[int | None, list[Step]]:
    """Which notebook of the series this is, by its exercises (else by its file's name), and the steps to take.

    A check stands where its cell stands, since later cells may give a name another meaning. Where none stands
    behind an exercise, one follows it; a check whose cell and exercise are both gone comes last. With `quick` only
    those cells are run that the exercises' cells need by their names; all, where one of those cells has lost its
    tag.
    """
    cells = [(i, cell) for i, cell in enumerate(notebook["cells"], 1) if cell.get("cell_type") == "code"]
    there = []
    for _, cell in cells:
        tagged = exercise_ids(cell, "exercise"), exercise_ids(cell, "check")
        there.append((tagged[0], list(dict.fromkeys([*tagged[1], *checked_ids(source_of(cell))]))))
    votes = Counter(notebook_of(id) for ids in there for id in {*ids[0], *ids[1]})
    number = votes.most_common(1)[0][0] if votes else number_of(name)
    wanted = [exercise.id for exercise in exercises_of(number)] if number is not None else []
    if not wanted:
        return None, []
    last_check = {id: i for (i, _), (_, checks) in zip(cells, there, strict=True) for id in checks}
    steps, placed = [], set[str](last_check)
    for (i, cell), (written, checks) in zip(cells, there, strict=True):
        source = source_of(cell)
        if source.strip() and not (checks and _only_checks(source)):
            steps.append(Step(i, source=source))
        missing = [id for id in written if last_check.get(id, 0) < i]
        placed |= set(missing)
        steps += [Step(i, check=id) for id in [*checks, *missing] if id in wanted]
    if quick and set(wanted) <= {id for written, _ in there for id in written}:
        steps = _only_needed(steps, {i for (i, _), (written, _) in zip(cells, there, strict=True) if written})
    last = cells[-1][0] if cells else 0
    return number, steps + [Step(last, check=id) for id in wanted if id not in placed]


def _only_needed(steps: list[Step], exercise_cells: set[int]) -> list[Step]:
    runs = [step for step in steps if step.source is not None]
    chosen = needed([step.source or "" for step in runs], {i for i, s in enumerate(runs) if s.cell in exercise_cells})
    kept = {runs[i].cell for i in chosen}
    return [step for step in steps if step.check is not None or step.cell in kept]


def _only_checks(source: str) -> bool:
    """Whether a cell does nothing but call `check`."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return False
    return all(
        isinstance(s, ast.Expr)
        and isinstance(s.value, ast.Call)
        and isinstance(s.value.func, ast.Name)
        and s.value.func.id == "check"
        for s in body
    )
