"""Notebook files: which ones people write, how they are read and written, and the text of a cell."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


def sources(root: Path) -> list[Path]:
    """The notebooks that people write: those with exercises in `solutions/`, others where they are."""
    solutions = sorted((root / "notebooks" / "solutions").glob("*.ipynb"))
    generated = {path.name for path in solutions}
    others = [path for path in sorted((root / "notebooks").glob("*.ipynb")) if path.name not in generated]
    return others + solutions + sorted((root / "notebooks" / "demos").glob("*.ipynb"))


class NoNotebook(ValueError):
    """A file that is not a notebook: names the file and the `reason`."""

    def __init__(self, path: Path, reason: str):
        super().__init__(f"{path}: {reason}")
        self.reason = reason


def read(path: Path) -> dict[str, Any]:
    """A notebook as JSON. NoNotebook (a ValueError) names the file when it is not one."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise NoNotebook(path, f"is not a notebook ({type(error).__name__}: {error})") from None
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        old = isinstance(notebook, dict) and "worksheets" in notebook
        why = "format 3: open and save it in Jupyter" if old else "it has no list of cells"
        raise NoNotebook(path, f"is not a notebook of format 4 ({why})")
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
    """Replace a cell's text, stored as a list of lines."""
    cell["source"] = text.splitlines(keepends=True)


def tags(cell: dict[str, Any]) -> list[str]:
    """A cell's tags."""
    return [str(tag) for tag in cell.get("metadata", {}).get("tags") or []]


def add_tag(cell: dict[str, Any], tag: str) -> None:
    """Tag a cell, unless it has the tag already."""
    if tag not in tags(cell):
        cell.setdefault("metadata", {})["tags"] = [*tags(cell), tag]
