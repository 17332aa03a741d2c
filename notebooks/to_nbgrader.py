"""The exercises as an nbgrader course: `python -m notebooks.to_nbgrader OUTDIR`.

Makes `OUTDIR/source/NAME/NAME.ipynb` for every notebook in `solutions/`, with nbgrader's metadata (schema version 3), and
`OUTDIR/nbgrader_config.py` where there is none. From there on nbgrader takes over: `generate_assignment`, `autograde`,
`generate_feedback`. An exercise's cell is its solution cell; its check is a locked cell with the exercise's points, which
imports `check` again, whatever that name means in the notebook by then.
"""

import argparse
import copy
import sys
from pathlib import Path
from typing import Any

from notebooks.course.exercises import find
from notebooks.tools.files import ROOT, read, set_source, source_of, sources, tags, write
from notebooks.tools.student import NotebookError, exercise_ids, student_notebook
from notebooks.tools.tidy import clear_outputs, tidy

SCHEMA_VERSION = 3
CONFIG = '''"""nbgrader's settings for this course."""

c = get_config()  # noqa: F821

c.CourseDirectory.course_id = "nanoinfer"
c.ExecutePreprocessor.timeout = 120  # seconds per cell
'''


def nbgrader_notebook(solution: dict[str, Any], name: str) -> dict[str, Any]:
    """A notebook with solutions as nbgrader's source. `solution` stays as it is.

    All other cells stay free: a student may try things out anywhere but in the checks. Raises NotebookError for what
    `student_notebook` refuses, and where one cell checks several exercises.
    """
    student_notebook(solution, name)  # finds what does not fit together
    notebook = copy.deepcopy(solution)
    tidy(notebook)
    clear_outputs(notebook)
    for cell in notebook["cells"]:
        for id in exercise_ids(cell, "exercise"):
            cell["metadata"]["nbgrader"] = _metadata(f"exercise-{_dashed(id)}", solution=True)
        checked = exercise_ids(cell, "check")
        if len(checked) > 1:
            raise NotebookError(f"{name}: one cell checks {', '.join(checked)}; nbgrader gives points to one per cell")
        for id in checked:
            cell["metadata"]["nbgrader"] = _metadata(f"check-{_dashed(id)}", points=find(id).points)
            cell["metadata"]["tags"] = [tag for tag in tags(cell) if tag != "raises-exception"]
            set_source(cell, f"from notebooks.course import check\n\n{source_of(cell)}")
    return notebook


def _metadata(grade_id: str, *, solution: bool = False, points: int | None = None) -> dict[str, Any]:
    grade = points is not None
    metadata: dict[str, Any] = {"grade": grade, "grade_id": grade_id, "locked": not solution}
    metadata |= {"schema_version": SCHEMA_VERSION, "solution": solution, "task": False}
    return {**metadata, "points": points} if grade else metadata


def _dashed(id: str) -> str:
    return id.replace(".", "-")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m notebooks.to_nbgrader", description=__doc__.split("\n", 1)[0])
    parser.add_argument("outdir", type=Path, help="the course's folder; made where it is not there")
    folder: Path = parser.parse_args(arguments).outdir
    for source in sources(ROOT):
        if source.parent.name == "solutions":
            try:
                notebook = nbgrader_notebook(read(source), source.stem)
            except ValueError as error:
                print(error, file=sys.stderr)
                return 1
            target = folder / "source" / source.stem / source.name
            target.parent.mkdir(parents=True, exist_ok=True)
            write(target, notebook)
            print(target)
    if not (folder / "nbgrader_config.py").exists():
        (folder / "nbgrader_config.py").write_text(CONFIG)
    return 0


if __name__ == "__main__":
    sys.exit(main())
