"""Package cells: notebook cells that are a file's text letter for letter. Here: what text a cell should have."""

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

MARK = re.compile(r"# in (\S+\.py)\s*")
_NEARLY = re.compile(r"^\s*#\s*in:?\s+`?nanoinfer/\S+\.py`?:?\s*$", re.IGNORECASE | re.MULTILINE)


class CellError(ValueError):
    """A package cell that names what its file has not, or holds what no package cell may hold."""


@dataclass
class Cell:
    """What one package cell is to be: `text`, and what it shows as "RadixCache" or "RadixCache.match_prefix"."""

    path: str
    text: str
    shown: set[str] = field(default_factory=set)


def marked_path(source: str) -> str | None:
    """`nanoinfer/cache/radix_cache.py` when a cell's first line is `# in nanoinfer/cache/radix_cache.py`, else None."""
    match = MARK.fullmatch(source.split("\n", 1)[0])
    return match[1] if match else None


def package_cell(source: str, root: Path) -> Cell | None:
    """The cell that `source` asks for by its first line and by the names it defines; None for other cells.

    Raises CellError when the file or a definition is not there, the cell cannot be parsed, or the mark is not its first
    line (or not quite the mark): nobody would notice that such a cell drifts.
    """
    path = marked_path(source)
    if stray := _NEARLY.search(source if path is None else source.partition("\n")[2]):
        raise CellError(
            f"`{stray[0].strip()}`: a package cell has one such line, its first: # in nanoinfer/cache/memory_pool.py"
        )
    if path is None:
        return None
    if not (root / path).is_file():
        raise CellError(f"{path}: there is no such file")
    module = Module((root / path).read_text(encoding="utf-8"), path)
    try:
        wanted = ast.parse(source)
    except SyntaxError as error:
        raise CellError(f"{path}: line {error.lineno} of the cell: {error.msg}") from None
    if not wanted.body:
        raise CellError(f"{path}: the cell names no definition (write `def name(): ...` or `class Name: ...`)")
    cell = Cell(path, f"# in {path}\n")
    previous: tuple[ast.stmt, ast.stmt] | None = None
    for statement in wanted.body:
        text, first, last, shown = module.wanted(statement)
        if previous is not None:
            cell.text += "\n" * module.gap(previous[1], first)
        previous = first, last
        cell.text += text + "\n"
        cell.shown |= shown
    cell.text = cell.text.rstrip("\n")
    return cell


class Module:
    """A file of the package, by definitions. Texts keep decorators, and comments directly above and inside."""

    def __init__(self, text: str, path: str):
        self.path, self.lines, self.tree = path, text.split("\n"), ast.parse(text)

    def wanted(self, statement: ast.stmt) -> tuple[str, ast.stmt, ast.stmt, set[str]]:
        """What one statement of a cell stands for: text, first and last statement of the file in it, names shown."""
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if (owner := _extended(statement)) is not None:
                found = self._only(self._members(self._class(owner), statement.name), f"{owner}.{statement.name}")
                text = "\n".join(line[4:] if line.startswith("    ") else line for line in self._region(found))
                return f"@extend({owner})\n{text}", found, found, {f"{owner}.{statement.name}"}
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found = self._only(self._functions(statement.name), statement.name)
                return "\n".join(self._region(found)), found, found, {statement.name}
            case ast.ClassDef():
                cls = self._class(statement.name)
                text, shown = self._class_text(cls, statement)
                return text, cls, cls, shown
            case ast.Assign() | ast.AnnAssign() if names := _targets(statement):
                found = self._only([s for s in self.tree.body if names & _targets(s)], ", ".join(sorted(names)))
                return "\n".join(self._region(found)), found, found, set()
            case ast.Import() | ast.ImportFrom() | ast.Expr(ast.Constant(str())):
                is_text = isinstance(statement, ast.Expr)
                same = [s for s in self.tree.body if (_is_text(s) if is_text else ast.dump(s) == ast.dump(statement))]
                found = self._only(same, "docstring" if is_text else f"`{ast.unparse(statement)}`")
                return "\n".join(self._region(found)), found, found, set()
        raise CellError(f"{self.path}: `{ast.unparse(statement).splitlines()[0]}` is none of its definitions")

    def gap(self, before: ast.stmt, after: ast.stmt) -> int:
        """Empty lines between two definitions of a cell: as in the file for neighbours, else as it is usual."""
        body = self.tree.body
        if before in body and after in body and body.index(before) + 1 == body.index(after):
            between = self.lines[_end(before) : self._start(after) - 1]
            return sum(not line.strip() for line in between)
        plain = not any(isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for s in (before, after))
        return 0 if plain else 2

    def public(self) -> set[str]:
        """Public functions, classes and methods, as "RadixCache" and "RadixCache.match_prefix"."""
        names = set()
        for statement in self.tree.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = statement.body if isinstance(statement, ast.ClassDef) else []
                methods = [s.name for s in inner if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef)]
                names |= {statement.name} | {f"{statement.name}.{method}" for method in methods}
        return {name for name in names if not any(part.startswith("_") for part in name.split("."))}

    def _class(self, name: str) -> ast.ClassDef:
        classes = [s for s in self.tree.body if isinstance(s, ast.ClassDef) and s.name == name]
        if not classes:
            raise CellError(f"{self.path}: has no class {name}")
        return classes[0]

    def _class_text(self, cls: ast.ClassDef, wanted: ast.ClassDef) -> tuple[str, set[str]]:
        """The whole class where the cell says `class Name: ...` or names all methods; else header, docstring, fields
        and the methods named, in the file's order."""
        members = {s.name for s in cls.body if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef)}
        named = {s.name for s in wanted.body if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef)}
        if _is_ellipsis(wanted.body):
            named = members
        if named - members:
            raise CellError(f"{self.path}: class {cls.name} has no {', '.join(sorted(named - members))}")
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
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name not in named:
                continue
            while first and gap and not gap[0].strip():
                gap = gap[1:]
            lines += [] if first else gap
            lines += self._region(statement)
            first = False
        if first:
            raise CellError(f"{self.path}: class {cls.name} would be empty: name one of its methods in the cell")
        return "\n".join(lines), shown

    def _functions(self, name: str) -> list[ast.stmt]:
        return [s for s in self.tree.body if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef) and s.name == name]

    def _members(self, cls: ast.ClassDef, name: str) -> list[ast.stmt]:
        return [s for s in cls.body if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef) and s.name == name]

    def _only(self, found: list[ast.stmt], name: str) -> ast.stmt:
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


def _end(statement: ast.stmt) -> int:
    assert statement.end_lineno is not None
    return statement.end_lineno


def _extended(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
    """`RadixCache` for a function under `@extend(RadixCache)`."""
    for decorator in function.decorator_list:
        match decorator:
            case ast.Call(func=ast.Name(id="extend"), args=[ast.Name(id=owner)]):
                return owner
    return None


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
