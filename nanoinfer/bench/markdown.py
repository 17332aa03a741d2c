"""Markdown tables that are also aligned for a terminal."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are right-aligned."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        return f"| {' | '.join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)])} |"

    rule = "|".join("-" * (width + 2) if not i else "-" * (width + 1) + ":" for i, width in enumerate(widths))
    return "\n".join([line(head), f"|{rule}|", *(line(row) for row in rows)])
