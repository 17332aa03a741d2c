"""Colours, and tables that fit the terminal's width."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_STYLE = re.compile(r"\033\[[\d;]*m")


def styled(text: object, *styles: str) -> str:
    """`text` in the given styles if standard output is a terminal (and NO_COLOR is not set); otherwise unchanged."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return str(text)
    return f"\033[{';'.join(CODES[style] for style in styles)}m{text}\033[0m"


def one_line(error: BaseException) -> str:
    """An exception's message on one line. For an error of the operating system: the file, then the reason, no number."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    return " ".join(text.split()) or type(error).__name__


def room() -> int | None:
    """Columns of the terminal that standard output goes to, or the number in COLUMNS; None for files and pipes."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size().columns
    return None


def width(text: str) -> int:
    """How many characters `text` takes on a line, without its styles."""
    return len(_STYLE.sub("", text))


def filled(text: str, limit: int | None, indent: str = "") -> str:
    """`text` in lines of at most `limit` characters, indented from the second line on. None: the text unchanged."""
    return text if limit is None else textwrap.fill(text, limit, subsequent_indent=indent)


def shortened(text: str, limit: int) -> str:
    """`text` on one line, or only its beginning and its end if it is longer than `limit`."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit // 2]} ... {line[-limit // 2 :]}"


def side_by_side(columns: Sequence[Sequence[str]], limit: int | None = None, gap: int = 2) -> str:
    """A table whose lines have at most `limit` characters. Each column is a list of cells, all of the same length.

    If the table is wider, the columns that don't fit follow below, beside the first column again. Cells of a column that
    is still too wide are wrapped.
    """
    if limit is not None:
        first = _wrapped(columns[0], limit // 2)
        columns = [first, *(_wrapped(column, limit - gap - max(map(_cell_width, first))) for column in columns[1:])]
    sizes = [max(map(_cell_width, column)) for column in columns]
    parts: list[list[int]] = []  # each the columns beside the first
    for i in range(1, len(columns)):
        used = sum(gap + sizes[k] for k in [0, *parts[-1], i]) - gap if parts else 0
        if not parts or (limit is not None and used > limit):
            parts.append([])
        parts[-1].append(i)
    return "\n\n".join(_table([(columns[i], sizes[i]) for i in [0, *part]], gap) for part in parts or [[]])


def _wrapped(cells: Sequence[str], limit: int) -> list[str]:
    """The cells, none wider than `limit`. A cell that was wider now has several lines and no style."""
    limit = max(limit, 1)

    def wrapped(cell: str) -> str:
        lines = [textwrap.wrap(_STYLE.sub("", line), limit) or [""] for line in cell.split("\n")]
        return "\n".join(line for some in lines for line in some)

    return [wrapped(cell) if _cell_width(cell) > limit else cell for cell in cells]


def _cell_width(cell: str) -> int:
    return max(map(width, cell.split("\n")))


def _table(columns: Sequence[tuple[Sequence[str], int]], gap: int) -> str:
    lines = []
    for row in zip(*(cells for cells, _ in columns), strict=True):
        cells = [cell.split("\n") for cell in row]
        for i in range(max(map(len, cells))):
            texts = [cell[i] if i < len(cell) else "" for cell in cells]
            padded = [text + " " * (size - width(text)) for text, (_, size) in zip(texts, columns, strict=True)]
            lines.append((" " * gap).join(padded).rstrip())
    return "\n".join(lines)


def table(head: Sequence[str], rows: Iterable[Sequence[object]], left: Sequence[int] = (0,)) -> str:
    """A table as text, whose cells may be `styled`. Columns that are not in `left` are right-aligned. In a terminal that is
    too narrow, cells are wrapped."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(head), header_style="bold")
    for i, name in enumerate(head):
        grid.add_column(name, justify="left" if i in left else "right", overflow="fold")
    for row in rows:
        grid.add_row(*(Text.from_ansi(str(cell)) for cell in row))
    console = Console(width=room() or 10_000, highlight=False)
    with console.capture() as captured:
        console.print(grid)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
