"""Package cells of the notebooks are the package's text: `python -m notebooks.sync [--write] [files]`.

A cell whose first line is `# in nanoinfer/cache/radix_cache.py` holds definitions of that file, letter for letter:
functions, classes, constants, calls like `SCHEDULE_POLICIES.update(...)`, or methods under `@extend(RadixCache)`. A class
may be shown with some of its methods only. A cell that shows all of `Name` carries the tag `whole-Name`, which this tool
adds: methods that the class gains later then appear in the cell by themselves. The file may also be one of the course:
`# in notebooks/course/regular_expression.py`.

Without options: fails on drift, with a diff. `--write` fills in the text of the sources; the names alone are enough, and
bodies may be `...` (`class Name: ...` is the whole class; a class with nothing but a docstring is its header, docstring and
fields). `python -m notebooks.build --text` does the same and carries it on into the students' notebooks.
"""

import argparse
import difflib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from notebooks.tools.files import ROOT, add_tag, read, set_source, source_of, sources, tags, write
from notebooks.tools.package_cells import CellError, package_cell

REFRESH = "python -m notebooks.build --text"


@dataclass
class Synced:
    """What came of syncing one notebook: `refreshed`, a message with a diff per cell that differed from the package and
    has been changed; `broken`, a message per cell that a person has to change."""

    refreshed: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def sync(notebook: dict[str, Any], name: str, root: Path) -> Synced:
    """Refresh the package cells of `notebook`, in place, and say what differed. A cell that asks for something the package
    does not have stays as it is."""
    result = Synced()
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] != "code":
            continue
        source, here = source_of(cell), f"{name}, cell {number}"
        whole = {tag.removeprefix("whole-") for tag in tags(cell) if tag.startswith("whole-")}
        try:
            wanted = package_cell(source, root, whole)
        except CellError as error:
            result.broken.append(f"{here}: {error}")
            continue
        if wanted is None:
            continue
        for shown in sorted(wanted.whole):
            add_tag(cell, f"whole-{shown}")
        if wanted.text != source:
            old, new = source.splitlines(), wanted.text.splitlines()
            diff = difflib.unified_diff(old, new, here, wanted.path, n=2, lineterm="")
            result.refreshed.append("\n".join([f"{here}: differs from {wanted.path}", *diff]))
            set_source(cell, wanted.text)
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m notebooks.sync", description=__doc__.split("\n", 1)[0])
    parser.add_argument("files", nargs="*", type=Path, help="notebooks; without any: all that people write")
    parser.add_argument("--write", action="store_true", help="fill in the package's text instead of failing")
    options = parser.parse_args(arguments)
    problems, drift = list[str](), False
    for path in options.files or sources(ROOT):
        name = str(path.resolve().relative_to(ROOT)) if path.resolve().is_relative_to(ROOT) else str(path)
        try:
            notebook = read(path)
        except (OSError, ValueError) as error:
            problems.append(str(error))
            continue
        result = sync(notebook, name, ROOT)
        problems += result.broken
        if options.write and result.refreshed:
            write(path, notebook)
            print(f"{name}: {len(result.refreshed)} cells refreshed")
        else:
            problems += result.refreshed
            drift |= bool(result.refreshed)
    if drift:
        problems.append(f"To refresh these cells, in seconds and without running any: {REFRESH}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
