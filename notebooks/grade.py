"""Grade a folder of notebooks: `python -m notebooks.grade submissions/*.ipynb`.

Each submission runs in a process of its own, cell by cell, with a time limit for each cell and for all, and (on Linux)
one for memory. An exception ends the cell that raised it and no other. A cell that never ends, fills the memory or kills
its process costs only itself: the rest runs again without it. Where a check cell is (or was), this checkout's checker is
asked, and its answer is the mark. The submission's outputs do not count, and neither does what it calls `check`.

What is guarded against: a `check`, `expect` or any other name redefined in the notebook; functions, classes and modules of
nanoinfer and the course, and the functions of torch, numpy and builtins, replaced or patched (they are put back before each
check); tags that were changed or lost; forged messages, unless the submission looks for the secret they carry.

What is not guarded against: this is no sandbox. A submission runs with your rights, can read and write your files and the
network, and code that sets out to deceive a checker inside its process can do so; a process that leaves its session
outlives the grading. Run strangers' notebooks in a container.

Needs a POSIX system (signals, process groups).
"""

import argparse
import csv
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from notebooks.course import checks
from notebooks.course.exercises import Exercise, exercises_of
from notebooks.tools.submission import Graded, grade, printable


def points(graded: Graded, exercise: Exercise) -> int:
    """The mark: all of the exercise's points, or none."""
    return exercise.points if graded.outcomes.get(exercise.id) == "passed" else 0


def notes(graded: Graded) -> str:
    """What a teacher wants to know besides the marks, in one line."""
    ids: dict[str, list[str]] = {}
    for id, outcome in graded.outcomes.items():
        if outcome != "passed":
            ids.setdefault(outcome, []).append(id)
    return "; ".join([*graded.notes, *(f"{', '.join(failed)} {outcome}" for outcome, failed in ids.items())])


def table(rows: Sequence[Graded], exercises: Sequence[Exercise], *, verbose: bool = False) -> str:
    """Submissions of one notebook: file, marks, sum, notes. `verbose`: below each row its hints and exceptions."""
    total = sum(exercise.points for exercise in exercises)
    head = ["file", *(exercise.id for exercise in exercises), f"of {total}" if exercises else "", "notes"]
    body = []
    for row in rows:
        marks = [points(row, exercise) for exercise in exercises]
        body.append([row.name, *map(str, marks), str(sum(marks)) if exercises else "", notes(row)])
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    lines = [_line(head, widths)]
    for row, cells in zip(rows, body, strict=True):
        lines.append(_line(cells, widths))
        if verbose:
            said = [row.texts.get(e.id, "") for e in exercises if row.outcomes.get(e.id) in ("wrong", "syntax error")]
            said += [f"cell {number} raises {error}" for number, error in row.raised.items()]
            lines += [f"    {line}" for text in said for line in text.splitlines()]
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    marks = (cell.rjust(width) for cell, width in zip(cells[1:-1], widths[1:-1], strict=True))
    return "  ".join([cells[0].ljust(widths[0]), *marks, cells[-1]]).rstrip()


def write_csv(path: Path, rows: Sequence[Graded]) -> None:
    """One line per submission and exercise: file, notebook, exercise, points, of, outcome, hint; and one for its notes.
    Texts that a spreadsheet would take for a formula begin with an apostrophe."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "notebook", "exercise", "points", "of", "outcome", "text"])
        for row in rows:
            name = _no_formula(row.name)
            for exercise in exercises_of(row.notebook) if row.notebook is not None else []:
                outcome, text = row.outcomes[exercise.id], row.texts.get(exercise.id, "")
                mark = points(row, exercise)
                writer.writerow([name, row.notebook, exercise.id, mark, exercise.points, outcome, _no_formula(text)])
            for note in row.notes:
                writer.writerow([name, row.notebook, "", "", "", "note", _no_formula(note)])


def _no_formula(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m notebooks.grade",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="notebook.ipynb")
    parser.add_argument("--timeout", type=float, default=60, metavar="S", help="seconds per cell (%(default)s)")
    parser.add_argument("--total", type=float, default=600, metavar="S", help="seconds per submission (%(default)s)")
    parser.add_argument("--memory", type=float, default=4, metavar="GIB", help="per process, on Linux (%(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="submissions at a time (%(default)s)"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write the marks to FILE")
    parser.add_argument("--verbose", action="store_true", help="show each hint, and what cells raise")
    parser.add_argument(
        "--checks", type=Path, action="append", default=[], metavar="FOLDER", help="has nbNN.py with your own exercises"
    )
    options = parser.parse_args(arguments)
    for path in options.files:
        if not path.is_file():
            parser.error(f"{path}: there is no such file")
    if options.csv and not options.csv.absolute().parent.is_dir():
        parser.error(f"--csv {options.csv}: there is no such folder")
    for name in ("timeout", "total", "memory", "jobs"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name} {getattr(options, name)}: must be more than 0")
    for folder in options.checks:
        if not folder.is_dir():
            parser.error(f"--checks {folder}: there is no such folder")
        if str(folder.resolve()) not in checks.__path__:
            checks.__path__.append(str(folder.resolve()))
    folders = [folder.resolve() for folder in options.checks]

    def graded(path: Path) -> Graded:
        limits = {name: getattr(options, name) for name in ("timeout", "total", "memory")}
        return grade(path, **limits, checks=folders)

    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(graded, options.files))
    folder = os.path.commonpath([path.resolve().parent for path in options.files])
    for row, path in zip(rows, options.files, strict=True):
        row.name = printable(os.path.relpath(path.resolve(), folder)).replace("\n", "?")
    numbers = sorted({row.notebook for row in rows if row.notebook is not None})
    tables = [
        table([row for row in rows if row.notebook == n], exercises_of(n), verbose=options.verbose) for n in numbers
    ]
    if unknown := [row for row in rows if row.notebook is None]:
        tables.append(table(unknown, []))
    print("\n\n".join(tables))
    if options.csv:
        write_csv(options.csv, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
