"""Package cells of the notebooks are the package's text: `python -m tests.notebook_sync [--write] [--coverage] [files]`.

A cell whose first line is `# in nanoinfer/cache/radix_cache.py` holds definitions of that file, letter for letter:
functions, classes, constants, or methods under `@extend(RadixCache)`. A class may be shown with some of its methods only.
Without options: fails on drift, with a diff. `--write` fills in the text; the names alone are enough, bodies may be `...`
(`class Name: ...` is the whole class, a class with nothing but a docstring is its header, docstring and fields).
`--coverage`: every public definition of CORE is shown somewhere, or NOT_TAUGHT says why not.
"""

import argparse
import difflib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.package_cells import CellError, Module, package_cell

ROOT = Path(__file__).parent.parent

# What the notebooks show between them.
CORE = [
    "nanoinfer/model/attention/base.py",
    "nanoinfer/model/attention/torch_native.py",
    "nanoinfer/batch.py",
    "nanoinfer/cache/cache_manager.py",
    "nanoinfer/cache/eviction.py",
    "nanoinfer/cache/indices.py",
    "nanoinfer/cache/kv_storage.py",
    "nanoinfer/model/input_metadata.py",
    "nanoinfer/model/layers/radix_attention.py",
    "nanoinfer/cache/memory_pool.py",
    "nanoinfer/model/model_runner.py",
    "nanoinfer/scheduling/prefill_budget.py",
    "nanoinfer/scheduling/prefix_sharing.py",
    "nanoinfer/cache/radix_cache.py",
    "nanoinfer/scheduling/retraction.py",
    "nanoinfer/scheduling/policy.py",
    "nanoinfer/scheduling/scheduler.py",
    "nanoinfer/sessions.py",
    "nanoinfer/cache/slot_allocator.py",
    "nanoinfer/cache/tree_checks.py",
    "nanoinfer/scheduling/waiting_queue.py",
]

# "nanoinfer/cache/radix_cache.py:RadixCache.reset": why no notebook shows it.
NOT_TAUGHT: dict[str, str] = {}


def sources(root: Path) -> list[Path]:
    """The notebooks that people write: those with exercises in `solutions/`, others where they are."""
    solutions = sorted((root / "notebooks" / "solutions").glob("*.ipynb"))
    generated = {path.name for path in solutions}
    others = [path for path in sorted((root / "notebooks").glob("*.ipynb")) if path.name not in generated]
    return others + solutions + sorted((root / "notebooks" / "demos").glob("*.ipynb"))


class NoNotebook(ValueError):
    """A file that is no notebook: names the file and the `reason`."""

    def __init__(self, path: Path, reason: str):
        super().__init__(f"{path}: {reason}")
        self.reason = reason


def read(path: Path) -> dict[str, Any]:
    """A notebook as JSON. NoNotebook (a ValueError) naming the file when it is none."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise NoNotebook(path, f"is no notebook ({type(error).__name__}: {error})") from None
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        old = isinstance(notebook, dict) and "worksheets" in notebook
        why = "format 3: open and save it in Jupyter" if old else "it has no list of cells"
        raise NoNotebook(path, f"is no notebook of format 4 ({why})")
    return notebook


def as_text(notebook: dict[str, Any]) -> str:
    """A notebook as nbformat writes it: JSON with an indent of one, sources as lists of lines, a newline at the end."""
    cells = [{**cell, "source": source_of(cell).splitlines(keepends=True)} for cell in notebook["cells"]]
    return json.dumps({**notebook, "cells": cells}, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def write(path: Path, notebook: dict[str, Any]) -> None:
    """Write a notebook's file."""
    path.write_text(as_text(notebook), encoding="utf-8")


def source_of(cell: dict[str, Any]) -> str:
    """A cell's text; in the file it may be one string or a list of lines."""
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def set_source(cell: dict[str, Any], text: str) -> None:
    """Give a cell its text, as a list of lines."""
    cell["source"] = text.splitlines(keepends=True)


def sync(notebook: dict[str, Any], name: str, root: Path) -> tuple[list[str], set[str]]:
    """Refresh the package cells of `notebook` in place: what was wrong, one message a cell, and what the cells show.

    A cell that names what is not in the package stays as it is, and its message does not begin with a diff.
    """
    problems, shown = [], set()
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] != "code":
            continue
        source = source_of(cell)
        try:
            wanted = package_cell(source, root)
        except CellError as error:
            problems.append(f"{name}, cell {number}: {error}")
            continue
        if wanted is None:
            continue
        shown |= {f"{wanted.path}:{definition}" for definition in wanted.shown}
        if wanted.text != source:
            diff = difflib.unified_diff(
                source.splitlines(), wanted.text.splitlines(), f"{name}, cell {number}", wanted.path, lineterm=""
            )
            what = ", ".join(sorted(wanted.shown)) or "text"
            problems.append(f"{name}, cell {number}: {what} differs from {wanted.path}\n" + "\n".join(diff))
            set_source(cell, wanted.text)
    return problems, shown


def public_names(path: str, root: Path) -> set[str]:
    """Public functions, classes and methods of a file, as "RadixCache" and "RadixCache.match_prefix"."""
    return Module((root / path).read_text(encoding="utf-8"), path).public()


def coverage(shown: set[str], core: Iterable[str], not_taught: dict[str, str], root: Path) -> list[str]:
    """What is neither shown nor excused, and excuses that are none: one message each."""
    public = {f"{path}:{name}" for path in core for name in public_names(path, root)}
    excused = set(not_taught)
    return (
        [f"{name}: no notebook shows it, and NOT_TAUGHT does not say why" for name in sorted(public - shown - excused)]
        + [f"{name}: NOT_TAUGHT excuses it, but a notebook shows it" for name in sorted(excused & shown)]
        + [f"{name}: NOT_TAUGHT excuses it, but it is no public definition" for name in sorted(excused - public)]
        + [f"{name}: NOT_TAUGHT gives no reason" for name in sorted(excused) if not not_taught[name].strip()]
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.notebook_sync", description=__doc__.split("\n", 1)[0])
    parser.add_argument("files", nargs="*", type=Path, help="notebooks; without any: all that people write")
    parser.add_argument("--write", action="store_true", help="fill in the package's text instead of failing")
    parser.add_argument("--coverage", action="store_true", help="also: every public definition is shown or excused")
    options = parser.parse_args(arguments)
    failed, shown = False, set()
    for path in options.files or sources(ROOT):
        name = str(path.resolve().relative_to(ROOT)) if path.resolve().is_relative_to(ROOT) else str(path)
        try:
            notebook = read(path)
        except (OSError, ValueError) as error:
            print(error, file=sys.stderr)
            failed = True
            continue
        problems, here = sync(notebook, name, ROOT)
        shown |= here
        drifted = [problem for problem in problems if "\n" in problem]
        if options.write and drifted:
            write(path, notebook)
            print(f"{name}: {len(drifted)} cells refreshed")
            problems = [problem for problem in problems if problem not in drifted]
        for problem in problems:
            print(problem, file=sys.stderr)
            failed = True
    if options.coverage:
        for problem in coverage(shown, CORE, NOT_TAUGHT, ROOT):
            print(problem, file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
