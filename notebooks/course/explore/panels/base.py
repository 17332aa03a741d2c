"""Panel: plain data that a page draws; what all kinds have in common, and the checks that they share."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from nanoinfer.viz.page import OWNERS
from nanoinfer.viz.palette import BARS, ROLES, Style
from nanoinfer.viz.sheet import Sheet

# How a cell, a bar or a part of a strip may look. "unused" is nothing at all: it shows a dash.
LOOKS: dict[str, Style] = {
    **OWNERS,
    **{role.replace("_", "-"): ROLES[role] for role in ("new", "padding", "leftover", "highlight", "leaked", "in_use")},
    "bar": BARS[0],
    "unused": Style("#ffffff", "#5c5c5c"),
}


class Panel(ABC):
    """A dataclass with a `title`; `kind` is the name of its file and of its drawing function in the page."""

    kind: ClassVar[str]
    title: str

    @abstractmethod
    def words(self) -> str:
        """What it shows, in words: for readers who do not see it."""

    @abstractmethod
    def draw(self, sheet: Sheet) -> None:
        """The same on paper, from `sheet.y` downward: for viewers that leave scripts out."""

    def data(self) -> dict[str, Any]:
        """What the page gets; it can be written as JSON."""
        return {"kind": self.kind, "words": self.words(), **asdict(self)}  # type: ignore[call-overload]


def expect_text(name: str, value: object, empty: bool = False) -> None:
    """ValueError unless `value` is a text, which is not empty."""
    if not isinstance(value, str) or not (value.strip() or empty):
        raise ValueError(f"{name}={value!r}: must be a text{'' if empty else ', not an empty one'}")


def expect_number(name: str, value: object, least: float | None = None) -> None:
    """ValueError unless `value` is a finite number, at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name}={value!r}: must be a finite number")
    if least is not None and value < least:
        raise ValueError(f"{name}={value!r}: must be at least {least}")


def expect_look(name: str, look: str) -> None:
    """ValueError unless `look` is in LOOKS."""
    if look not in LOOKS:
        raise ValueError(f"{name}={look!r}: must be one of {', '.join(LOOKS)}")


def expect_items(name: str, items: Sequence[Any], kind: type, least: int = 1) -> None:
    """ValueError unless `items` are at least so many objects of the class `kind`."""
    if isinstance(items, str) or not isinstance(items, Sequence) or len(items) < least:
        raise ValueError(f"{name}: must be a list of at least {least} {kind.__name__}, got {items!r:.80}")
    for i, item in enumerate(items):
        if not isinstance(item, kind):
            raise ValueError(f"{name}[{i}]: must be {kind.__name__}, got {type(item).__name__}")
