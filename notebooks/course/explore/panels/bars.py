"""Bars: one labelled bar per item; what is off is grey, and what it was before may be drawn behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from nanoinfer.viz.palette import GRID
from nanoinfer.viz.sheet import Sheet
from notebooks.course.explore.panels.base import LOOKS, Panel, expect_items, expect_look, expect_number, expect_text


@dataclass(frozen=True)
class Bar:
    """`value` as a bar with `text` at its end. `before`: a paler bar behind it. `off`: left out, so grey."""

    label: str
    value: float
    text: str
    off: bool = False
    before: float | None = None
    look: str = "in-use"

    def __post_init__(self) -> None:
        expect_text("label", self.label, empty=True)
        expect_text("text", self.text, empty=True)
        expect_number("value", self.value, 0)
        if self.before is not None:
            expect_number("before", self.before, 0)
        expect_look("look", self.look)


@dataclass(frozen=True)
class Bars(Panel):
    """`most`: the value of a bar over the full width; the same in all frames, so that bars can be compared."""

    kind: ClassVar[str] = "bars"
    title: str
    bars: Sequence[Bar]
    most: float
    note: str = ""

    def __post_init__(self) -> None:
        expect_text("title", self.title)
        expect_items("bars", self.bars, Bar)
        largest = max(max(bar.value, bar.before or 0) for bar in self.bars)
        expect_number("most", self.most, largest)
        if self.most == 0:
            raise ValueError("most=0: must be above 0")

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
                sheet.rect(x, sheet.y + 1, room * bar.before / self.most, 16, LOOKS["padding"], edge=GRID)
            if not bar.off:
                sheet.rect(x, sheet.y + 1, room * bar.value / self.most, 16, LOOKS[bar.look], name=f"bar {bar.label}")
            longest = max(bar.before or 0, 0 if bar.off else bar.value)
            sheet.text(x + room * longest / self.most + 7, sheet.y + 9, bar.text)
            sheet.y += 21
