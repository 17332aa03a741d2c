"""Panel: plain data that a page draws, here what all kinds have in common; and the two simplest, Bars and Numbers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from nanoinfer.viz.page import OWNERS
from nanoinfer.viz.palette import BARS, GRID, ROLES, Style
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


@dataclass(frozen=True)
class Bar:
    """`value` as a bar with `text` at its end. `before`: a paler bar behind it. `off`: left out, so grey."""

    label: str
    value: float
    text: str
    off: bool = False
    before: float | None = None
    look: str = "in-use"


@dataclass(frozen=True)
class Bars(Panel):
    """`most`: the value of a bar over the full width; the same in all frames, so that bars can be compared."""

    kind: ClassVar[str] = "bars"
    title: str
    bars: Sequence[Bar]
    most: float
    note: str = ""

    def words(self) -> str:
        bars = (f"{bar.label}: {bar.text}{' (left out)' if bar.off else ''}" for bar in self.bars)
        return f"{self.title}. {'; '.join(bars)}."

    def data(self) -> dict[str, Any]:
        """A bar is [label, value, text, off, before, look]."""
        bars = [[bar.label, bar.value, bar.text, int(bar.off), bar.before, bar.look] for bar in self.bars]
        return super().data() | {"bars": bars}

    def draw(self, sheet: Sheet) -> None:
        x, room = sheet.left + 170, sheet.right - sheet.left - 270
        for bar in self.bars:
            sheet.text(x - 8, sheet.y + 9, bar.label, ha="right", width=160)
            if bar.before is not None:
                sheet.rect(x, sheet.y + 1, room * bar.before / self.most, 16, LOOKS["leftover"], edge=GRID)
            if not bar.off:
                sheet.rect(x, sheet.y + 1, room * bar.value / self.most, 16, LOOKS[bar.look], name=f"bar {bar.label}")
            longest = max(bar.before or 0, 0 if bar.off else bar.value)
            sheet.text(x + room * longest / self.most + 7, sheet.y + 9, bar.text)
            sheet.y += 21


def bars_of(values: Mapping[str, tuple[float, str]], chosen: str, look: str = "in-use") -> list[Bar]:
    """A bar for each name, of its value and text; that of the `chosen` name stands out."""
    return [Bar(name, *each, look="highlight" if name == chosen else look) for name, each in values.items()]


@dataclass(frozen=True)
class Number:
    """One line of the table. `look`: a swatch before the name, "" for none; `strong`: the one to look at."""

    name: str
    value: str
    look: str = ""
    strong: bool = False


@dataclass(frozen=True)
class Numbers(Panel):
    kind: ClassVar[str] = "numbers"
    title: str
    numbers: Sequence[Number]

    def words(self) -> str:
        return f"{self.title}. {'; '.join(f'{number.name}: {number.value}' for number in self.numbers)}."

    def draw(self, sheet: Sheet) -> None:
        for number in self.numbers:
            weight = "bold" if number.strong else "normal"
            sheet.text(sheet.left, sheet.y + 8, number.name, width=400, weight=weight)
            sheet.text(sheet.left + 420, sheet.y + 8, number.value, width=440, weight=weight)
            sheet.y += 19
