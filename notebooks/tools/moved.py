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


def files_with_method(name: str, package: str, root: Path) -> list[str]:
    """The files of `package` in which a class has a method `name`."""
    define = re.compile(rf"^ +(?:async )?def {re.escape(name)}\b", re.M)
    files = sorted((root / package).rglob("*.py"))
    return [str(file.relative_to(root)) for file in files if define.search(file.read_text(encoding="utf-8"))]


def follow_imports(source: str, package: str, root: Path) -> tuple[str, list[str]]:
    """A cell's text with what it imports from `package` taken from where it is now, and a message for each import that
    fails and has no such place, or several. Nothing is imported."""
    try:
        statements = list(ast.walk(ast.parse(source)))
    except SyntaxError:  # not Python alone: `%timeit`, `!ls`
        return source, []
    lines, problems = source.split("\n"), []
    for statement in statements:
        match statement:
            case ast.Import(names=aliases):
                modules = [alias.name for alias in aliases if alias.name.partition(".")[0] == package]
                problems += [f"there is no module {module}" for module in modules if _file(module, root) is None]
            case ast.ImportFrom(module=str(module), names=aliases, level=0) if module.partition(".")[0] == package:
                gone = [alias for alias in aliases if not _binds(module, alias.name, root)]
                there = {alias.name: files_defining(alias.name, package, root) for alias in gone}
                one_place = bool(gone) and all(len(files) == 1 for files in there.values())
                if one_place and _is_alone(statement, lines):
                    places = {alias: _module(there[alias.name][0]) if alias in gone else module for alias in aliases}
                    lines[statement.lineno - 1] = _import_lines(places, " " * statement.col_offset)
                    continue
                for name, files in there.items():
                    hint = f"it is in {' and '.join(files)}" if files else f"no file of {package}/ defines it"
                    problems.append(f"`from {module} import {name}` fails: {hint}")
    return "\n".join(lines), problems


def _is_alone(statement: ast.stmt, lines: list[str]) -> bool:
    """Whether a statement is one line that holds nothing else, so that other lines can take its place."""
    line = lines[statement.lineno - 1]
    return (
        statement.lineno == statement.end_lineno
        and not line[: statement.col_offset].strip()
        and not set(line) & set("#;")
    )


def _import_lines(places: dict[ast.alias, str], indent: str) -> str:
    """`from module import names`, one line per module, for names and the modules they are in."""
    names: dict[str, list[str]] = {}
    for alias, module in places.items():
        names.setdefault(module, []).append(ast.unparse(alias))
    return "\n".join(f"{indent}from {module} import {', '.join(names[module])}" for module in sorted(names))


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


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
