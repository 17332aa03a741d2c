"""Where a definition has gone to that a notebook looks for in the wrong file."""

import ast
import re
from pathlib import Path


def files_defining(name: str, package: str, root: Path) -> list[str]:
    """The files of `package`, as "nanoinfer/cache/tree_node.py", with a function, class or constant `name`."""
    define = re.compile(
        rf"^(?:(?:class|def|async def) {re.escape(name)}\b|{re.escape(name)}\s*(?::[^=\n]*)?=[^=])", re.M
    )
    files = sorted((root / package).rglob("*.py"))
    return [str(file.relative_to(root)) for file in files if define.search(file.read_text(encoding="utf-8"))]


def import_problems(source: str, package: str, root: Path) -> list[str]:
    """What a cell imports from `package` that is not there, and where it is; one message for each. Nothing is imported."""
    try:
        statements = list(ast.walk(ast.parse(source)))
    except SyntaxError:  # not Python alone: `%timeit`, `!ls`
        return []
    problems = []
    for statement in statements:
        match statement:
            case ast.Import(names=aliases):
                modules = [alias.name for alias in aliases if alias.name.partition(".")[0] == package]
                problems += [f"there is no module {module}" for module in modules if _file(module, root) is None]
            case ast.ImportFrom(module=str(module), names=aliases, level=0) if module.partition(".")[0] == package:
                for alias in aliases:
                    if not _binds(module, alias.name, root):
                        there = files_defining(alias.name, package, root)
                        hint = f"it is in {', '.join(there)}" if there else f"no file of {package}/ defines it"
                        problems.append(f"`from {module} import {alias.name}` fails: {hint}")
    return problems


def _file(module: str, root: Path) -> Path | None:
    path = root.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _binds(module: str, name: str, root: Path) -> bool:
    """Whether `from module import name` finds something: a name the module's file binds, or a module below it."""
    file = _file(module, root)
    if file is None:
        return root.joinpath(*module.split(".")).is_dir() and _file(f"{module}.{name}", root) is not None
    bound = {"*", "__getattr__"}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if node.name == "__getattr__" and node.col_offset == 0:
                    return True  # the module decides when it is asked
                bound.add(node.name)
            case ast.alias():
                bound.add((node.asname or node.name).partition(".")[0])
            case ast.Name(ctx=ast.Store()):
                bound.add(node.id)
    return name in bound or _file(f"{module}.{name}", root) is not None
