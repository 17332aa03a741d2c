"""Which names of the package the package cells of a notebook use, and where the series has shown them."""

import ast
import builtins
import collections
import re
import sys
import types
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from notebooks.tools.files import source_of
from notebooks.tools.package_cells import extended, marked_path
from notebooks.tools.series import markdown_texts

_CODE = re.compile(r"`([^`\n]+)`|^```python[ \t]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


@cache
def package_names(root: Path) -> frozenset[str]:
    """Every function, class, method and field (`self.x = ...`, `x: int`) that a file of the package defines.

    Names that Python's own types, torch or numpy have as well are left out: `free` is the package's, `append` need not be.
    """
    return frozenset().union(*map(_names_of, sorted((root / "nanoinfer").rglob("*.py"))))


@cache
def _names_of(path: Path) -> frozenset[str]:
    """The names that one file defines, with the same ones left out."""
    found = _defined(ast.parse(path.read_text(encoding="utf-8")))
    return frozenset(name for name in found if name not in _elsewhere() and not name.startswith("__"))


def used(notebook: dict[str, Any], root: Path) -> dict[str, int]:
    """The names that the code of the package cells uses, and the package or the cell's own file defines → the number of the
    first cell that does, from 1."""
    found = dict[str, int]()
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] == "code" and (path := marked_path(source_of(cell))) is not None:
            names = package_names(root) | _names_of(root / path)
            for name in _uses(ast.parse(source_of(cell))):
                if name in names:
                    found.setdefault(name, number)
    return found


def shown(notebook: dict[str, Any]) -> set[str]:
    """The names that a notebook shows: its code defines or imports them, or its text has them as code (`lock_ref`)."""
    found = set[str]()
    for text in markdown_texts(notebook):
        for match in _CODE.finditer(text):
            found |= set(_IDENTIFIER.findall(match[1] or match[2]))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            try:
                tree = ast.parse(source_of(cell))
            except SyntaxError:
                continue
            found |= _defined(tree)
            if marked_path(source_of(cell)) is None:
                found |= {alias.asname or alias.name for node in ast.walk(tree) for alias in _imported(node)}
    return found


def used_before_shown(
    notebooks: Sequence[tuple[str, dict[str, Any]]], root: Path, allowed: Iterable[str]
) -> dict[str, list[str]]:
    """Notebook → a message for each name that it is the first to use, and that neither it nor one before it shows, except
    those in `allowed`."""
    known, reported = set(allowed), set[str]()
    problems: dict[str, list[str]] = {}
    for name, notebook in notebooks:
        known |= shown(notebook)
        for used_name, number in sorted(used(notebook, root).items(), key=lambda item: (item[1], item[0])):
            if used_name not in known | reported:
                problems.setdefault(name, []).append(f"cell {number} uses `{used_name}`")
                reported.add(used_name)
    return problems


def _uses(tree: ast.Module) -> set[str]:
    """Attributes that code uses, and names that it does not bind itself; annotations and decorators are no code here."""
    names, attributes, bound = set[str](), set[str](), set[str]()
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                names.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.MatchAs(name=str(name)):
                bound.add(name)
            case ast.Attribute(attr=name):
                attributes.add(name)
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "decorator_list"):
                todo += [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, ast.AST)]
    return attributes | (names - bound)


def _defined(tree: ast.AST) -> set[str]:
    found = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
                if (owner := extended(node)) is not None:
                    found.add(owner)
            case ast.ClassDef(name=name):
                found.add(name)
                found |= {
                    statement.target.id
                    for statement in node.body
                    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
                }
            case ast.Attribute(attr=name, value=ast.Name(id="self"), ctx=ast.Store()):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]) if name.isupper():
                found.add(name)
    return found


def _imported(node: ast.AST) -> list[ast.alias]:
    return node.names if isinstance(node, ast.Import | ast.ImportFrom) else []


@cache
def _elsewhere() -> frozenset[str]:
    """Names that need no introduction, because Python or a library has them."""
    import numpy as np
    import torch

    types_ = (
        list,
        dict,
        set,
        str,
        int,
        float,
        tuple,
        bytearray,
        slice,
        range,
        collections.deque,
        collections.OrderedDict,
    )
    objects: tuple[Any, ...] = (
        *types_,
        types.ModuleType,
        BaseException,
        np,
        np.ndarray,
        torch,
        torch.Tensor,
        torch.nn.Module,
    )
    modules = ("heapq", "bisect", "itertools", "functools", "math", "time", "re", "json", "dataclasses", "contextlib")
    found = set(dir(builtins)) | {name for thing in objects for name in dir(thing)}
    return frozenset(
        found | {name for module in modules for name in dir(__import__(module))} | set(sys.stdlib_module_names)
    )
