"""Which cells of a notebook some of its cells need, judged by names."""

import ast
from collections.abc import Sequence


def needed(sources: Sequence[str], wanted: set[int]) -> set[int]:
    """Indices of the cells `wanted`, and of all that give a name or a class member to any of them, directly or not.

    Cells that cannot be parsed (magics) or import `*` are always needed. A cell that only calls something is not: what it
    changes inside an object has no name.
    """
    cells = [gives_and_uses(source) for source in sources]
    chosen = wanted | {i for i, names in enumerate(cells) if names is None}
    todo = [i for i in chosen if cells[i] is not None]
    while todo:
        _, uses = cells[todo.pop()] or (set(), set())
        more = {i for i, names in enumerate(cells) if i not in chosen and names is not None and names[0] & uses}
        chosen |= more
        todo += more
    return chosen


def gives_and_uses(source: str) -> tuple[set[str], set[str]] | None:
    """What a cell gives a value or a member to, and what it uses; None when that cannot be known."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    gives, uses = set(), set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                if any(alias.name == "*" for alias in names):
                    return None
                gives |= {alias.asname or alias.name.partition(".")[0] for alias in names}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                gives.add(name)
                gives |= {owner for decorator in node.decorator_list if (owner := _extended(decorator))}
            case ast.Name(id=name, ctx=ast.Load()):
                uses.add(name)
            case ast.Name(id=name):
                gives.add(name)
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                base: ast.expr = node
                while isinstance(base, ast.Attribute | ast.Subscript):
                    base = base.value
                if isinstance(base, ast.Name):
                    gives.add(base.id)
    return gives, uses


def _extended(decorator: ast.expr) -> str | None:
    match decorator:
        case ast.Call(func=ast.Name(id="extend"), args=[ast.Name(id=owner)]):
            return owner
    return None
