"""Markdown tables that are also aligned for a terminal, and their cells."""

from collections.abc import Sequence
from itertools import groupby
from statistics import median

from nanoinfer.terminal import side_by_side


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are right-aligned."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        return f"| {' | '.join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)])} |"

    rule = "|".join("-" * (width + 2) if not i else "-" * (width + 1) + ":" for i, width in enumerate(widths))
    return "\n".join([line(head), f"|{rule}|", *(line(row) for row in rows)])


def fitted(text: str, limit: int | None) -> str:
    """`text` with tables that fit into `limit` characters: a wider one is split into parts that fit (see `side_by_side`),
    without Markdown's lines. None: the text unchanged."""
    if limit is None:
        return text
    parts = []
    for is_table, group in groupby(text.split("\n"), lambda line: line.startswith("|")):
        lines = list(group)
        parts.append(_narrowed(lines, limit) if is_table and max(map(len, lines)) > limit else "\n".join(lines))
    return "\n".join(parts)


def _narrowed(lines: Sequence[str], limit: int) -> str:
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in [lines[0], *lines[2:]]]
    first, *others = (list(column) for column in zip(*cells, strict=True))
    while len(set(first)) < len(first) and others:  # what a row is about takes more than one column to say
        first = [f"{cell}\n{more}" for cell, more in zip(first, others.pop(0), strict=True)]
    right = [[cell.rjust(max(map(len, column))) for cell in column] for column in others]
    return side_by_side([first, *right], limit)


def number_cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratio_cell(ratios: Sequence[float]) -> str:
    """The median, with the lowest and the highest."""
    return f"{median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})" if ratios else "–"
