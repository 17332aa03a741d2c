"""Package cells: notebook cells that are a file's text letter for letter. Here: what text a cell should have.

The file is one of the package, or of what the series teaches with: notebooks/course/regular_expression.py.
"""

import ast
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

MARK = re.compile(r"# in (\S+\.py)\s*")
_NEARLY = re.compile(r"^\s*#\s*in:?\s+`?(?:nanoinfer|notebooks)/\S+\.py`?:?\s*$", re.IGNORECASE | re.MULTILINE)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class CellError(ValueError):
    """A package cell that names what its file does not have, or holds what no package cell may hold."""


@dataclass
class Cell:
    """What one package cell should be: its `text`, and the classes of which it shows every method (`whole`)."""

    path: str
    text: str
    whole: set[str] = field(default_factory=set)


def marked_path(source: str) -> str | None:
    """`nanoinfer/cache/radix_cache.py` when a cell's first line is `# in nanoinfer/cache/radix_cache.py`, else None."""
    match = MARK.fullmatch(source.split("\n", 1)[0])
    return match[1] if match else None


def package_cell(source: str, root: Path, whole: AbstractSet[str] = frozenset()) -> Cell | None:
    """The cell that `source` asks for by its first line and by the names it defines; None for other cells.

    Classes named in `whole` are shown with all their methods, whichever ones `source` names.
    Raises CellError when the file or a definition is missing, the cell cannot be parsed, or the mark is not its first
    line (or is misspelt): such a cell would drift unnoticed.
    """
    path = marked_path(source)
    if stray := _NEARLY.search(source if path is None else source.partition("\n")[2]):
        raise CellError(
            f"`{stray[0].strip()}`: a package cell has one such line, its first: # in nanoinfer/cache/memory_pool.py"
        )
    if path is None:
        return None
    try:
        wanted = ast.parse(source)
    except SyntaxError as error:
        raise CellError(f"{path}: line {error.lineno} of the cell: {error.msg}") from None
    if not wanted.body:
        raise CellError(f"{path}: the cell names no definition (write `def name(): ...` or `class Name: ...`)")
    if not (root / path).is_file():
        raise CellError(f"{path}: there is no such file")
    module = Module.of(path, root)
    cell = Cell(path, f"# in {path}\n")
    previous: tuple[ast.stmt, ast.stmt] | None = None
    for statement in wanted.body:
        text, first, last, shown = module.wanted(statement, whole)
        if previous is not None:
            cell.text += "\n" * module.gap(previous[1], first)
        previous = first, last
        cell.text += text + "\n"
        if isinstance(statement, ast.ClassDef) and module.methods(statement.name) <= shown:
            cell.whole.add(statement.name)
    cell.text = cell.text.rstrip("\n")
    return cell


class Module:
    """A file that cells show, by definitions. Texts keep decorators, and comments directly above and inside."""

    def __init__(self, text: str, path: str):
        self.path, self.lines, self.tree = path, text.split("\n"), ast.parse(text)

    @classmethod
    def of(cls, path: str, root: Path) -> "Module":
        """The file `path` of the project `root`."""
        return cls((root / path).read_text(encoding="utf-8"), path)

    def wanted(self, statement: ast.stmt, whole: AbstractSet[str]) -> tuple[str, ast.stmt, ast.stmt, set[str]]:
        """What one statement of a cell stands for: text, first and last statement of the file in it, names shown."""
        shown = set[str]()
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if (owner := extended(statement)) is not None:
                name = f"{owner}.{statement.name}"
                cls = self._class(owner)
                found = self._only([s for s in _functions(cls.body) if s.name == statement.name], name)
                text = "\n".join(line[4:] if line.startswith("    ") else line for line in self._region(found))
                return f"@extend({owner})\n{text}", found, found, {name}
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found = self._only([s for s in _functions(self.tree.body) if s.name == statement.name], statement.name)
                shown = {statement.name}
            case ast.ClassDef():
                cls = self._class(statement.name)
                text, shown = self._class_text(cls, statement, all_of_it=statement.name in whole)
                return text, cls, cls, shown
            case ast.Assign() | ast.AnnAssign() if names := _targets(statement):
                found = self._only([s for s in self.tree.body if names & _targets(s)], ", ".join(sorted(names)))
            case ast.Expr(ast.Call(func=function)):  # SCHEDULE_POLICIES.update({...})
                calls = [s for s in self.tree.body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)]
                same = [s for s in calls if ast.dump(s.value.func) == ast.dump(function)]  # type: ignore[attr-defined]
                found = self._only(same, f"`{ast.unparse(function)}(...)`")
            case ast.Import() | ast.ImportFrom():
                same_imports = [s for s in self.tree.body if ast.dump(s) == ast.dump(statement)]
                found = self._only(same_imports, f"`{ast.unparse(statement)}`")
            case ast.Expr(ast.Constant(str())):
                found = self._only([s for s in self.tree.body if _is_text(s)], "docstring")
            case _:
                raise CellError(f"{self.path}: `{ast.unparse(statement).splitlines()[0]}` is none of its definitions")
        return "\n".join(self._region(found)), found, found, shown

    def gap(self, before: ast.stmt, after: ast.stmt) -> int:
        """Empty lines between two definitions of a cell: as in the file for neighbours, else the usual number."""
        body = self.tree.body
        if before in body and after in body and body.index(before) + 1 == body.index(after):
            between = self.lines[_end(before) : self._start(after) - 1]
            return sum(not line.strip() for line in between)
        return 2 if any(isinstance(statement, _Definition) for statement in (before, after)) else 0

    def methods(self, name: str) -> set[str]:
        """The methods of the class `name`, as "RadixCache.match_prefix", private ones included."""
        return {f"{name}.{method.name}" for method in _functions(self._class(name).body)}

    def _class(self, name: str) -> ast.ClassDef:
        for statement in self.tree.body:
            if isinstance(statement, ast.ClassDef) and statement.name == name:
                return statement
        raise CellError(f"{self.path}: has no class {name}")

    def _class_text(self, cls: ast.ClassDef, wanted: ast.ClassDef, *, all_of_it: bool) -> tuple[str, set[str]]:
        """The whole class where the cell says `class Name: ...`, names all methods or is to show all of it; else header,
        docstring, fields and the methods named, in the file's order."""
        members = {s.name for s in _functions(cls.body)}
        named = {s.name for s in _functions(wanted.body)}
        if all_of_it or _is_ellipsis(wanted.body):
            named = members
        if named - members:
            gone, there = ", ".join(sorted(named - members)), ", ".join(sorted(members)) or "no methods"
            raise CellError(f"{self.path}: class {cls.name} has no {gone}: take it out of the cell (it has {there})")
        shown = {cls.name} | {f"{cls.name}.{name}" for name in named}
        if named == members:
            return "\n".join(self._region(cls)), shown
        lines = self.lines[self._start(cls) - 1 : self._start(cls.body[0]) - 1]
        while not lines[-1].strip():
            lines.pop()
        end, first = cls.body[0].lineno - 1, True
        for statement in cls.body:
            gap = self.lines[end : self._start(statement) - 1]
            end = _end(statement)
            if isinstance(statement, _Function) and statement.name not in named:
                continue
            while first and gap and not gap[0].strip():
                gap = gap[1:]
            lines += [] if first else gap
            lines += self._region(statement)
            first = False
        if first:
            raise CellError(f"{self.path}: class {cls.name} would be empty: name one of its methods in the cell")
        return "\n".join(lines), shown

    def _only(self, found: Sequence[ast.stmt], name: str) -> ast.stmt:
        if len(found) != 1:
            problem = "more than once: show it inside its class" if found else "nowhere"
            raise CellError(f"{self.path}: {name} is there {problem}")
        return found[0]

    def _start(self, statement: ast.stmt) -> int:
        """Its first line, decorators and the comment lines directly above included; from 1."""
        decorators = getattr(statement, "decorator_list", [])
        start = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
        indent = " " * statement.col_offset + "#"
        while start > 1 and self.lines[start - 2].startswith(indent):
            start -= 1
        return start

    def _region(self, statement: ast.stmt) -> list[str]:
        return self.lines[self._start(statement) - 1 : _end(statement)]


def extended(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
    """`RadixCache` for a function under `@extend(RadixCache)`."""
    for decorator in function.decorator_list:
        match decorator:
            case ast.Call(func=ast.Name(id="extend"), args=[ast.Name(id=owner)]):
                return owner
    return None


def _functions(body: list[ast.stmt]) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [statement for statement in body if isinstance(statement, _Function)]


def _end(statement: ast.stmt) -> int:
    assert statement.end_lineno is not None
    return statement.end_lineno


def _targets(statement: ast.stmt) -> set[str]:
    """The names that an assignment gives a value to."""
    match statement:
        case ast.Assign():
            return {n.id for target in statement.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_ellipsis(body: list[ast.stmt]) -> bool:
    match body:
        case [ast.Expr(ast.Constant(value=value))]:
            return value is ...
    return False
