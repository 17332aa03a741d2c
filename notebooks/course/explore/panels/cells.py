"""Cells: rows of slots, tokens or table entries, each with a look of the palette; unused entries are a dash."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

from nanoinfer.viz.lettering import text_width
from nanoinfer.viz.palette import GRID, INK, MUTED, ROLES
from nanoinfer.viz.sheet import SMALL, Sheet
from notebooks.course.explore.panels.base import LOOKS, Panel

MARKS = ("", "written", "read", "evicted", "shared")


@dataclass(frozen=True)
class Cell:
    """`look`: of LOOKS. `mark`: a frame around it: "written" (orange), "read" (pink), "evicted" (pink, dashed), "shared"
    (double: other rows name the same slot)."""

    look: str = "unused"
    text: str = ""
    mark: str = ""


@dataclass(frozen=True)
class CellRow:
    """A line of cells, named `label`; `note` is said at its end."""

    label: str
    cells: Sequence[Cell]
    note: str = ""


@dataclass(frozen=True)
class Cells(Panel):
    """`columns`: what is written above the cells. `legend`: (look, what it means). `group`: a line after every so many
    cells of a row, 0 for none."""

    kind: ClassVar[str] = "cells"
    title: str
    rows: Sequence[CellRow]
    legend: Sequence[tuple[str, str]] = ()
    columns: Sequence[str] = ()
    note: str = ""
    group: int = 0

    def words(self) -> str:
        meanings = dict(self.legend)
        rows = []
        for row in self.rows:
            runs = _runs(row.cells)
            said = ", ".join(
                f"{count} {meanings.get(cell.look, cell.look)}{f' {cell.text}' if cell.text else ''}"
                for cell, count in runs
            )
            rows.append(f"{row.label}: {said}" if row.label else said)
        return f"{self.title}. {'; '.join(rows)}."

    def data(self) -> dict[str, Any]:
        """Equal neighbours once, with their number: [look, text, mark, how many]."""
        rows = [
            {"label": row.label, "note": row.note, "runs": [[c.look, c.text, c.mark, n] for c, n in _runs(row.cells)]}
            for row in self.rows
        ]
        return super().data() | {"rows": rows}

    def draw(self, sheet: Sheet) -> None:
        x = sheet.left + 130
        longest = max(text_width(cell.text, SMALL) for row in self.rows for cell in row.cells)
        width = min((sheet.right - x) / max(len(row.cells) for row in self.rows), max(34, longest + 8))
        for i, text in enumerate(self.columns):
            sheet.text(x + (i + 0.5) * width, sheet.y + 6, text, size=SMALL, ha="center", colour=MUTED)
        sheet.y += 14 if self.columns else 0
        for row in self.rows:
            sheet.text(x - 8, sheet.y + 9, row.label, ha="right", width=122)
            for i, cell in enumerate(row.cells):
                if self.group and i and i % self.group == 0:
                    sheet.line([x + i * width] * 2, [sheet.y - 1, sheet.y + 19], colour=INK, line=2)
                text = "–" if cell.look == "unused" and not cell.text else cell.text
                sheet.cell(x + i * width, sheet.y, width, 18, LOOKS[cell.look], text, size=SMALL, edge=GRID)
                if cell.mark:
                    edge = ROLES["new" if cell.mark == "written" else "highlight"].face
                    sheet.rect(x + i * width + 1, sheet.y + 1, width - 2, 16, edge=edge, line=2)
            sheet.y += 20
        sheet.y += 4
        sheet.legend([(LOOKS[look], text) for look, text in self.legend])


def _runs(cells: Sequence[Cell]) -> list[tuple[Cell, int]]:
    return [(cell, len(list(same))) for cell, same in groupby(cells)]


def padded(cells: Sequence[Cell], columns: int) -> list[Cell]:
    """So many cells: unused ones behind those that are there."""
    return [*cells, *[Cell()] * columns][:columns]
