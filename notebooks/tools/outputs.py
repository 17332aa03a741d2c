"""Outputs that stay when a notebook's text is refreshed without running it."""

import ast
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from notebooks.tools.files import read, source_of
from notebooks.tools.package_cells import defined_name, marked_path


def keep_outputs(notebook: dict[str, Any], old: dict[str, Any]) -> list[tuple[int, str]]:
    """Give the cells of `notebook`, in place, the outputs and execution counts they have in `old`.

    A cell is the same cell when its code is, imports and comments aside; a package cell also when it shows the same
    definitions, or stands in the same place between cells that are the same: it only defines things, so what was printed
    stays right. A new cell of imports alone prints nothing. Any other cell that is new, or whose code has changed under an
    output, is left without one: returned as (number from 1, reason).
    """
    new_cells, old_cells = _code(notebook), _code(old)
    kept: dict[int, dict[str, Any]] = {}
    old_keys, new_keys = ([_key(source_of(cell)) for _, cell in cells] for cells in (old_cells, new_cells))
    matched = SequenceMatcher(a=old_keys, b=new_keys, autojunk=False)
    for what, old_from, old_to, new_from, new_to in matched.get_opcodes():
        if what == "equal" or (what == "replace" and old_to - old_from == new_to - new_from):
            kept |= {new_cells[new_from + i][0]: old_cells[old_from + i][1] for i in range(new_to - new_from)}
    stale = []
    for number, cell in new_cells:
        before, text = kept.get(number), source_of(cell)
        cell.update(outputs=[], execution_count=None)
        if marked_path(text) is None:
            if before is None and _key(text):
                stale.append((number, "is new"))
                continue
            if before is not None and before.get("outputs") and not same_code(source_of(before), text):
                stale.append((number, "its code has changed, so its output is gone"))
                continue
        if before is not None:
            cell.update(outputs=before["outputs"], execution_count=before["execution_count"])
    if not stale:
        for count, (_, cell) in enumerate(new_cells, 1):
            _count(cell, count)
    return stale


def shown_code(path: Path) -> set[str]:
    """The definitions in the package cells of a notebook, without docstrings; none if there is no such file."""
    shown = set()
    for _, cell in _code(read(path)) if path.is_file() else []:
        text = source_of(cell)
        if marked_path(text) is None:
            continue
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
                node.body = node.body[1:]
        shown |= {ast.dump(statement) for statement in tree.body}
    return shown


def _code(notebook: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    return [(number, cell) for number, cell in enumerate(notebook["cells"], 1) if cell["cell_type"] == "code"]


def _count(cell: dict[str, Any], count: int) -> None:
    cell["execution_count"] = count
    for output in cell["outputs"]:
        if output["output_type"] == "execute_result":
            output["execution_count"] = count


def same_code(first: str, second: str) -> bool:
    """Whether two cells do the same: package cells do, which only define things, and code that differs in imports,
    comments and layout alone."""
    marks = [marked_path(source) is not None for source in (first, second)]
    return all(marks) if any(marks) else _key(first) == _key(second)


def _key(source: str) -> str:
    """Equal for two cells that are the same one: the definitions of a package cell, the code of another."""
    try:
        statements = ast.parse(source).body
    except SyntaxError:  # not Python alone: `%timeit`, `!ls`
        return source
    if marked_path(source) is not None:
        return "\n".join(
            ["# package cell", *(defined_name(statement) or ast.unparse(statement) for statement in statements)]
        )
    return "\n".join(
        ast.unparse(statement) for statement in statements if not isinstance(statement, ast.Import | ast.ImportFrom)
    )
