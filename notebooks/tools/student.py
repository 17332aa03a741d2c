"""A notebook with solutions → the notebook of a student: solutions cleared, whatever could be forgotten checked."""

import copy
import re
from typing import Any

from notebooks.course.exercises import exercises_of
from notebooks.tools.files import set_source, source_of, tags

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
_NEARLY = re.compile(r"#\s*(begin|end)\s+solution", re.IGNORECASE)
_TAG = re.compile(r"(exercise|check)-(\d+\.\d+)")
_CALL = re.compile(r"""^\s*check\(\s*["'](\d+\.\d+)["']""", re.MULTILINE)


class NotebookError(ValueError):
    """A notebook that cannot be built: names the notebook and the cell."""


def exercise_ids(cell: dict[str, Any], kind: str) -> list[str]:
    """The ids of a cell's tags `exercise-5.1` (`kind="exercise"`) or `check-5.1` (`kind="check"`)."""
    return [match[2] for tag in tags(cell) if (match := _TAG.fullmatch(tag)) and match[1] == kind]


def checked_ids(source: str) -> list[str]:
    """The ids that a cell's `check("5.1", globals())` calls name."""
    return _CALL.findall(source)


def number_of(name: str) -> int | None:
    """4 of "05_memory_pools"; None for a notebook without a number."""
    match = re.match(r"(\d+)_", name)
    return int(match[1]) if match else None


def student_notebook(solution: dict[str, Any], name: str) -> dict[str, Any]:
    """The student's notebook: solutions become `raise NotImplementedError("exercise 5.1")`, check cells may raise.

    `name`: as in "05_memory_pools". Raises NotebookError, with every problem there is, when tags, solution blocks, check
    cells and the checks in `notebooks.course.checks` do not fit together. `solution` stays as it is.
    """
    problems = _problems(solution, name)
    if problems:
        raise NotebookError("\n".join(problems))
    notebook = copy.deepcopy(solution)
    for cell in notebook["cells"]:
        if exercise_ids(cell, "exercise"):
            set_source(cell, cleared(source_of(cell), exercise_ids(cell, "exercise")[0]))
        if exercise_ids(cell, "check") and "raises-exception" not in tags(cell):
            cell["metadata"]["tags"] = [*tags(cell), "raises-exception"]
    return notebook


def cleared(source: str, id: str) -> str:
    """A cell's text with each solution block replaced, at its indentation."""
    lines, inside = [], False
    for line in source.split("\n"):
        if line.strip() == BEGIN:
            inside = True
            lines.append(line[: len(line) - len(line.lstrip())] + f'raise NotImplementedError("exercise {id}")')
        elif line.strip() == END:
            inside = False
        elif not inside:
            lines.append(line)
    return "\n".join(lines)


def _problems(notebook: dict[str, Any], name: str) -> list[str]:
    number = number_of(name)
    if number is None:
        return [f"{name}: the name of a notebook with exercises begins with its number, as in 05_memory_pools"]
    problems, written, checked = list[str](), list[str](), list[str]()
    for position, cell in enumerate(notebook["cells"], 1):
        here, source = f"{name}, cell {position}", source_of(cell)
        exercises, checks = exercise_ids(cell, "exercise"), exercise_ids(cell, "check")
        if cell["cell_type"] != "code":
            problems += [f"{here}: tag exercise- or check- on a cell that is not code"] * bool(exercises + checks)
            continue
        problems += _block_problems(source, exercises, here)
        if sorted(called := checked_ids(source)) != sorted(checks):
            problems.append(f"{here}: checks {called}, but its tags check- say {checks}")
        problems += [f"{here}: check {id} comes before its exercise" for id in checks if id not in written]
        written += exercises
        checked += checks
    known = [exercise.id for exercise in exercises_of(number)]
    for kind, there in (("exercise", written), ("check", checked)):
        if sorted(there, key=_order) != known:
            problems.append(f"{name}: tags {kind}- are {there}, but there are checkers of {known}")
    return problems


def _block_problems(source: str, ids: list[str], here: str) -> list[str]:
    lines = [line.strip() for line in source.split("\n")]
    marks = [line for line in lines if line in (BEGIN, END)]
    if stray := next((line for line in lines if line not in marks and _NEARLY.search(line)), None):
        return [f"{here}: `{stray}` is not a line {BEGIN} or {END}: students would see what it marks"]
    if len(ids) > 1:
        return [f"{here}: holds several exercises ({', '.join(ids)}): must be one per cell"]
    if marks and not ids:
        return [f"{here}: a solution block, but no tag exercise-N.M"]
    if ids and not marks:
        return [f"{here}: exercise {ids[0]} has no solution block ({BEGIN} ... {END})"]
    if marks != [BEGIN, END] * (len(marks) // 2):
        return [f"{here}: {BEGIN} and {END} do not match"]
    return []


def _order(id: str) -> tuple[int, ...]:
    return tuple(map(int, id.split(".")))
