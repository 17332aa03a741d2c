"""A made-up notebook 90 with three exercises and its checks, for tests of the tools that make and grade notebooks."""

from pathlib import Path
from typing import Any

from notebooks.tools.files import write

CHECKS = '''"""Checks of the made-up notebook 90."""

from notebooks.course import Given, exercise, expect, expect_equal


@exercise("90.1", "The lowest first", points=2)
def _(given: Given) -> str | None:
    expect_equal(given["lowest"]([3, 1, 2], 2), [1, 2], "The lowest go first.")
    return "3 free, 2 taken"


@exercise("90.2", "Twice as much")
def _(given: Given) -> str | None:
    expect(given["twice"](4) == 8, "Twice 4 is 8.")


@exercise("90.3", "Rows of a pool")
def _(given: Given) -> str | None:
    from nanoinfer.cache.memory_pool import ReqToTokenPool

    expect_equal(given["rows"](ReqToTokenPool(4, 8), 2), [0, 1], "Rows come lowest first.")
'''

SETUP = "from nanoinfer.cache.memory_pool import ReqToTokenPool\nfrom notebooks.course import attempt, check"
PACKAGE = "# in nanoinfer/cache/memory_pool.py\nclass ReqToTokenPool:\n    def alloc(self): ..."
STUB = "    ### BEGIN SOLUTION\n{}\n    ### END SOLUTION"
SOLUTIONS = {
    "90.1": "def lowest(free, n):\n" + STUB.format("    return sorted(free)[:n]"),
    "90.2": "def twice(number):\n" + STUB.format("    return 2 * number"),
    "90.3": "def rows(pool, n):\n" + STUB.format("    return pool.alloc(n).tolist()"),
}


def markdown(text: str) -> dict[str, Any]:
    """A markdown cell."""
    return {"cell_type": "markdown", "id": "m", "metadata": {}, "source": text}


def code(text: str, *tags: str) -> dict[str, Any]:
    """A code cell with tags."""
    metadata = {"tags": list(tags)} if tags else {}
    return {
        "cell_type": "code",
        "id": "c",
        "metadata": metadata,
        "source": text,
        "outputs": [],
        "execution_count": None,
    }


def notebook(*cells: dict[str, Any]) -> dict[str, Any]:
    """A notebook of these cells."""
    return {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def series(exercises: dict[str, str] | None = None, *, tagged: bool = True) -> dict[str, Any]:
    """Notebook 90: the setup, then exercise and check cells; `exercises` replaces some of the solutions."""
    cells = [markdown("# Which goes first?"), code(SETUP)]
    for id, source in {**SOLUTIONS, **(exercises or {})}.items():
        cells.append(code(source, *[f"exercise-{id}"] * tagged))
        cells.append(code(f'check("{id}", globals())', *[f"check-{id}"] * tagged))
    return notebook(*cells)


def save(folder: Path, name: str, content: dict[str, Any]) -> Path:
    """Write a notebook into `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / name, content)
    return folder / name
