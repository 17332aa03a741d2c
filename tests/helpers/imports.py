"""Reads which file imports which, without running any: everything an `import` could load, wherever it stands.

Imports within functions and under TYPE_CHECKING count like all others. A name that a folder's `__init__` only passes on
counts as imported from the file it comes from.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

Graph = Mapping[str, Iterable[str]]


@dataclass(frozen=True, order=True)
class Arrow:
    """`importer` imports `imported` in `line`; both are modules by their dotted names."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


@dataclass
class Imports:
    """The `modules` of some packages, which of them are folders (`packages`), and every arrow from one of them."""

    modules: set[str] = field(default_factory=set)
    packages: set[str] = field(default_factory=set)
    arrows: list[Arrow] = field(default_factory=list)

    def graph(self) -> dict[str, list[str]]:
        """Module → the modules of these packages that it imports."""
        graph: dict[str, list[str]] = {module: [] for module in self.modules}
        for arrow in self.arrows:
            if arrow.imported in self.modules and arrow.imported != arrow.importer:
                graph[arrow.importer].append(arrow.imported)
        return graph

    def reached_from(self, module: str) -> set[str]:
        """Every module that importing `module` can load."""
        graph, found, left = self.graph(), {module}, [module]
        while left:
            new = set(graph[left.pop()]) - found
            found |= new
            left += new
        return found - {module}


def read_imports(root: Path, *packages: str) -> Imports:
    """The imports of all `.py` files in these folders of `root`."""
    imports, trees = Imports(), {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            trees[name] = ast.parse(path.read_text(encoding="utf-8"))
            imports.modules.add(name)
            if parts[-1] == "__init__":
                imports.packages.add(name)
    written = {name: list(_written(tree, name, name in imports.packages)) for name, tree in trees.items()}
    passed_on = {
        package: {bound: (base, name) for base, name, bound, _ in written[package] if name is not None}
        for package in imports.packages
    }
    for importer, statements in written.items():
        for base, name, _, line in statements:
            origin = _origin(base, name, imports.modules, passed_on)
            imports.arrows.append(Arrow(importer, origin, line))
    imports.arrows = list(dict.fromkeys(imports.arrows))  # a line may import several names of one module
    return imports


def circles(graph: Graph) -> list[str]:
    """A circle, as `a → b → a`, if there is one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" → ".join(error.args[1])]
    return []


def loaded_by(package: str, root: Path, after: str = "sys") -> set[str]:
    """The modules that `import package` adds to those that `import after` has loaded, in a fresh process in `root`."""
    code = (
        f"import json, sys, {after}\nbefore = set(sys.modules)\nimport {package}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def _written(tree: ast.Module, module: str, is_package: bool) -> Iterator[tuple[str, str | None, str, int]]:
    """Every import as `(module, name in it or None, what it is called here, line)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None, alias.asname or alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield base, alias.name, alias.asname or alias.name, node.lineno
        elif isinstance(node, ast.Call) and _is_import_call(node.func) and node.args:
            (name, *_) = node.args
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value, None, name.value, node.lineno


def _is_import_call(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    return name in ("import_module", "__import__")


def _origin(
    base: str, name: str | None, modules: set[str], passed_on: Mapping[str, Mapping[str, tuple[str, str | None]]]
) -> str:
    """The module that `name` of `base` comes from."""
    seen: set[tuple[str, str | None]] = set()
    while name is not None and name in passed_on.get(base, {}) and (base, name) not in seen:
        seen.add((base, name))
        base, name = passed_on[base][name]
    return f"{base}.{name}" if name is not None and f"{base}.{name}" in modules else base
