"""Numbers: a small table, name → value, in plain words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from nanoinfer.viz.sheet import Sheet
from notebooks.course.explore.panels.base import Panel, expect_items, expect_text


@dataclass(frozen=True)
class Number:
    """One line of the table. `look`: a swatch before the name, "" for none; `strong`: the one to look at."""

    name: str
    value: str
    look: str = ""
    strong: bool = False

    def __post_init__(self) -> None:
        expect_text("name", self.name)
        expect_text("value", self.value)


@dataclass(frozen=True)
class Numbers(Panel):
    kind: ClassVar[str] = "numbers"
    title: str
    numbers: Sequence[Number]

    def __post_init__(self) -> None:
        expect_text("title", self.title)
        expect_items("numbers", self.numbers, Number)

    def words(self) -> str:
        return f"{self.title}. {'; '.join(f'{number.name}: {number.value}' for number in self.numbers)}."

    def draw(self, sheet: Sheet) -> None:
        for number in self.numbers:
            weight = "bold" if number.strong else "normal"
            sheet.text(sheet.left, sheet.y + 8, number.name, width=400, weight=weight)
            sheet.text(sheet.left + 420, sheet.y + 8, number.value, width=440, weight=weight)
            sheet.y += 19
