"""A made-up package `pack` with one module, for tests of package cells."""

from pathlib import Path

PACKAGE = '''"""A made-up module."""

import math
from dataclasses import dataclass

# How many there are.
# At most.
LIMIT = 3  # counted from 1
Alias = list[int]


# Above the function.
def half(number: int) -> int:
    # the first thing inside
    return number // 2  # rounded down


@dataclass
class Box:
    """A box."""

    # what is in it
    things: list[int]
    lid: bool = True  # closed

    # Above the method.
    @property
    def size(self) -> int:
        """How many.

        Counted.
        """
        return len(self.things)

    def add(self, thing: int) -> None:
        self.things.append(thing)

    @staticmethod
    def empty() -> "Box":
        return Box([])

    def _hidden(self) -> None: ...


class Bare:
    # why it is here
    def first(self) -> int:
        return 1

    def second(self) -> int:
        return 2


def _private() -> None: ...


REGISTRY.update(
    {"half": half},  # by name
)
'''


def part(begin: str, end: str) -> str:
    """What of it stands between two texts, both included."""
    return PACKAGE[PACKAGE.index(begin) : PACKAGE.index(end) + len(end)]


def save_package(folder: Path) -> Path:
    """Write pack/box.py into `folder`; returns the folder."""
    (folder / "pack").mkdir()
    (folder / "pack" / "box.py").write_text(PACKAGE)
    return folder
